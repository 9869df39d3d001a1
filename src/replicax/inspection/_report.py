"""An explanation as text."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from ._explanation import Explanation, Program, Value

_WIDTH = 110
_MOST_ROWS = 40
_MOST_NAMES = 6
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024


def report(shown: Explanation) -> str:
    """The explanation as tables, for a terminal or a log."""
    written = io.StringIO()
    console = Console(file=written, width=_WIDTH, color_system=None)
    where = "that are not there" if shown.is_imagined else f"of {shown.strategy}"
    console.print(f"{shown.function}: {shown.replicas} replica(s) {where}")
    _print(console, "Arguments", _values(shown.arguments))
    _print(console, "Variables", _values(shown.variables))
    for program in shown.programs:
        _program(console, program)
    _predictions(console, shown)
    return "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines())


def _program(console: Console, program: Program) -> None:
    names = ", ".join(program.functions) or "nothing on the replicas"
    batch = "a full batch" if program.batch == "full" else "the remainder, padded"
    console.print(f"\nThe program of {batch}. On each replica: {names}")
    _print(console, "Goes in", _values(program.inputs))
    _print(console, "Comes out", _values(program.outputs))
    rows: list[tuple[str, ...]] = [
        (
            f"{each.group_key}:{each.instance_key}",
            f"{each.kind} {each.op or ''}".strip(),
            str(each.leaves),
            size(each.bytes),
            each.call_site,
        )
        for each in program.requests
    ]
    _print(console, "Asked for", rows, ("key", "collective", "arrays", "bytes", "at"))
    _print(console, "Travels together", _packs(program), ("key", "arrays", "bytes", "which"))
    rows = [
        (
            f"#{number}",
            each.primitive,
            f"{each.arrays} {', '.join(each.dtypes)}",
            size(each.bytes),
            "unknown" if each.times is None else str(each.times),
            duration(each.seconds),
            each.call_site,
        )
        for number, each in enumerate(program.sent, 1)
    ]
    titles = ("", "collective", "arrays", "bytes", "times", "predicted", "at")
    _print(console, "Crosses replicas, after packing", rows, titles)
    if program.compiled is not None:
        rows = [
            (
                each.kind,
                str(len(each.shapes)),
                ", ".join(dict.fromkeys(each.dtypes)),
                size(each.bytes),
            )
            for each in program.compiled
        ]
        _print(console, "In XLA's program", rows, ("collective", "arrays", "dtypes", "bytes"))
    console.print(_costs(program))


def _packs(program: Program) -> list[tuple[str, ...]]:
    """A row for each pack of several arrays."""
    return [
        (
            f"{each.group_key}:{each.instance_key}",
            f"{len(pack.arrays)} {pack.dtype}",
            size(pack.bytes),
            _shortened(pack.arrays),
        )
        for each in program.requests
        for pack in each.packs
        if len(pack.arrays) > 1 or " as " in pack.dtype
    ]


def _shortened(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_NAMES - 1])} ... {names[-1]}"


def start_up(program: Program) -> str:
    """How long the program took until it could run, in words."""
    parts = [
        f"Traced in {duration(program.trace_seconds)}",
        f"proved in {duration(program.proof_seconds)}",
    ]
    if program.compile_seconds is not None:
        cache = f"compile cache: {program.compile_cache}"
        parts.append(f"compiled in {duration(program.compile_seconds)} ({cache})")
    return ", ".join(parts)


def _costs(program: Program) -> str:
    parts = [start_up(program)]
    if program.flops is not None:
        parts.append(f"{program.flops:.3g} floating-point operations a replica")
    text = ", ".join(parts) + "."
    memory = program.memory
    if memory is not None:
        text += (
            f" On each device: {size(memory.arguments)} of arguments, {size(memory.results)} of "
            f"new results, {size(memory.reused)} reused, {size(memory.temporary)} in between."
        )
    return text


PREDICTED = ("replicas", "communication", "efficiency")


def predictions(shown: Explanation) -> tuple[str, list[tuple[str, str, str]]]:
    """What a table of predictions is called, and its rows under `PREDICTED`."""
    fabric = shown.fabric
    rows = [
        (
            str(each.replicas),
            duration(each.communication_seconds),
            "" if each.efficiency is None else f"{100 * each.efficiency:.1f} %",
        )
        for each in shown.predict()
    ]
    title = (
        f"Predicted: {fabric.bandwidth / 1e9:g} GB/s and {fabric.latency * 1e6:g} us a message, "
        "nothing overlaps"
    )
    return title, rows


def _predictions(console: Console, shown: Explanation) -> None:
    title, rows = predictions(shown)
    _print(console, title, rows, PREDICTED)
    if shown.compute_seconds is None:
        console.print("Efficiencies need `compute_seconds`: what one replica computes in a step.")


def _values(values: Iterable[Value]) -> list[tuple[str, ...]]:
    return [
        (
            each.name,
            f"{each.dtype}[{', '.join(map(str, each.shape))}]",
            size(each.bytes),
            "mirrored" if each.is_mirrored else "per replica",
            each.note,
        )
        for each in values
    ]


def _print(
    console: Console,
    title: str,
    rows: Sequence[tuple[str, ...]],
    columns: Sequence[str] = ("name", "type", "bytes", "is", "note"),
) -> None:
    if not rows:
        return
    console.print(f"\n{title}")
    table = Table(box=None, padding=(0, 2, 0, 2), pad_edge=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows[:_MOST_ROWS]:
        table.add_row(*row)
    console.print(table)
    if len(rows) > _MOST_ROWS:
        console.print(f"... and {len(rows) - _MOST_ROWS} more; `to_json()` has all.")


def size(num_bytes: float) -> str:
    """A number of bytes for people."""
    unit = 0
    while num_bytes >= _STEP and unit < len(_UNITS) - 1:
        num_bytes, unit = num_bytes / _STEP, unit + 1
    return f"{num_bytes:.4g} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """A time for people."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"
