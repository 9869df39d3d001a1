"""An explanation as one HTML page that needs nothing else, and fits a phone."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from ._explanation import Explanation, Memory, Program, Value
from ._report import PREDICTED, duration, predictions, size, start_up

_STYLE = """\
:root { color-scheme: light dark; --line: #8a9ba855; --mirrored: #2a7de1; --varying: #d9822b; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 0; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font-size: 12px; } td code { white-space: nowrap; }
.m::before, .v::before { content: ""; display: inline-block; width: .7em; height: .7em;
  margin-right: .4em; background: var(--mirrored); } .v::before { background: var(--varying); }
.bar { display: flex; height: 1.6rem; margin: .3rem 0; }
.bar span { min-width: 2px; } .key { font-size: 13px; }
"""
_COLOURS = {
    "arguments": "#2a7de1",
    "new results": "#0f9960",
    "in between": "#d9822b",
}


def page(shown: Explanation) -> str:
    """The page."""
    title = f"{shown.function}: {shown.replicas} replica(s)"
    where = "that are not there" if shown.is_imagined else f"of {shown.strategy}"
    legend = (
        '<span class="m">mirrored: equal on all replicas</span> &ensp; '
        '<span class="v">per replica</span>'
    )
    parts = [
        f"<h1>{_text(shown.function)}</h1>",
        f"<p>{shown.replicas} replica(s) {_text(where)}. {legend}</p>",
        _values("Arguments", shown.arguments),
        _values("Variables", shown.variables),
        *map(_program, shown.programs),
        _predictions(shown),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{_text(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>{''.join(parts)}</body></html>\n"
    )


def _program(program: Program) -> str:
    batch = "A full batch" if program.batch == "full" else "The remainder, padded"
    names = ", ".join(program.functions) or "nothing on the replicas"
    sent = [
        (
            f"#{number} {_text(each.primitive)}",
            f"{each.arrays} {_text(', '.join(each.dtypes))}",
            size(each.bytes),
            "unknown" if each.times is None else str(each.times),
            duration(each.seconds),
            _code(each.call_site),
        )
        for number, each in enumerate(program.sent, 1)
    ]
    asked = [
        (
            f"{each.group_key}:{each.instance_key}",
            _text(f"{each.kind} {each.op or ''}".strip()),
            str(each.leaves),
            size(each.bytes),
            _code(each.call_site),
        )
        for each in program.requests
    ]
    compiled = [
        (_text(each.kind), _text(", ".join(dict.fromkeys(each.dtypes))), size(each.bytes))
        for each in program.compiled or ()
    ]
    columns = ("", "arrays", "bytes", "times", "predicted", "at")
    return "".join(
        [
            f"<h2>{batch}</h2><p>On each replica: {_code(names)}</p>",
            _values("Goes in", program.inputs),
            _values("Comes out", program.outputs),
            _table("Asked for", ("key", "collective", "arrays", "bytes", "at"), asked),
            _table("Crosses replicas, after packing", columns, sent),
            _table("In XLA's program", ("collective", "dtypes", "bytes"), compiled),
            f'<p class="key">{start_up(program)}.</p>',
            _memory(program.memory),
        ]
    )


def _memory(memory: Memory | None) -> str:
    if memory is None:
        return ""
    parts = {
        "arguments": memory.arguments,
        "new results": memory.results,
        "in between": memory.temporary,
    }
    bars = "".join(
        f'<span style="flex:{count};background:{_COLOURS[name]}"></span>'
        for name, count in parts.items()
        if count
    )
    told = "; ".join(f"{size(count)} of {name}" for name, count in parts.items())
    return (
        f'<h3>Memory of each device</h3><div class="bar">{bars}</div>'
        f'<p class="key">{told}; {size(memory.reused)} of results reuse that of arguments.</p>'
    )


def _predictions(shown: Explanation) -> str:
    title, rows = predictions(shown)
    return _table(title, PREDICTED, rows)


def _values(title: str, values: Iterable[Value]) -> str:
    rows = [
        (
            f'<span class="{"m" if each.is_mirrored else "v"}">{_text(each.name)}</span>',
            _code(f"{each.dtype}[{', '.join(map(str, each.shape))}]"),
            size(each.bytes),
            _text(each.note),
        )
        for each in values
    ]
    return _table(title, ("name", "type", "bytes", "note"), rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    numbers = {i for i, name in enumerate(columns) if name in _NUMBERS}
    head = "".join(f"<th>{name}</th>" for name in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="n">{cell}</td>' if i in numbers else f"<td>{cell}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<h3>{_text(title)}</h3><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


_NUMBERS = ("bytes", "times", "predicted", "replicas", "communication", "efficiency")


def _text(text: str) -> str:
    return html.escape(text)


def _code(text: str) -> str:
    return f"<code>{_text(text)}</code>"
