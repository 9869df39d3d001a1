"""A report as one HTML page that needs nothing else: no script, and nothing from elsewhere."""

from __future__ import annotations

import html
import re
from collections import Counter
from typing import TYPE_CHECKING

from ._plots import pictures

if TYPE_CHECKING:
    from replicax.errors import Table

    from ._report import Finding, Report

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --card: #f6f7f9; --ink: #1b2330; --soft: #5b6676;
  --edge: #d9dee5; --blue: #2f6fde; --amber: #c77700; --grey: #7b8694; --green: #1c7f3f;
  --red: #c62f2f; --grid: #e3e7ec; --idle: #e6eaef; }
@media (prefers-color-scheme: dark) { :root { --back: #12161d; --card: #1a2029; --ink: #e6eaf0;
  --soft: #9aa5b4; --edge: #2d3643; --blue: #6ea2ff; --amber: #f2ab3f; --grey: #8e99a8;
  --green: #56c97b; --red: #ff7b72; --grid: #2a323e; --idle: #262e39; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 56rem; margin: 0 auto; padding: 1.25rem 1rem 3rem; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); font-size: .9rem; }
.verdict { display: inline-block; padding: .1rem .7rem; border-radius: 1rem; color: var(--back);
  font-weight: 600; }
.counts { display: flex; flex-wrap: wrap; gap: .5rem; padding: 0; margin: 1rem 0 0;
  list-style: none; }
.counts li { border: 1px solid var(--edge); border-radius: .5rem; padding: .15rem .65rem;
  background: var(--card); font-size: .9rem; }
details { border: 1px solid var(--edge); border-left-width: 5px; border-radius: .5rem;
  background: var(--card); margin: .5rem 0; padding: .55rem .8rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
summary b { margin-right: .4rem; }
summary .tag { font-size: .78rem; font-weight: 600; text-transform: uppercase;
  letter-spacing: .03em; margin-right: .5rem; white-space: nowrap; }
.passed { border-left-color: var(--green); } .passed .tag { color: var(--green); }
.failed { border-left-color: var(--red); } .failed .tag { color: var(--red); }
.warning { border-left-color: var(--amber); } .warning .tag { color: var(--amber); }
.not-checked { border-left-color: var(--grey); } .not-checked .tag { color: var(--grey); }
.verdict.passed { background: var(--green); } .verdict.failed { background: var(--red); }
.scroll { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--edge);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
td.number, th.number { text-align: right; }
code { font: .92em ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .4rem 0;
  font: .82rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
figure { margin: .5rem 0 1.5rem; border: 1px solid var(--edge); border-radius: .5rem;
  padding: .8rem; background: var(--card); }
figcaption { margin-bottom: .5rem; }
svg { display: block; width: 100%; max-width: 28rem; height: auto; }
svg text { font-family: inherit; font-size: 12px; fill: var(--ink); }
svg text.axis { fill: var(--soft); font-size: 11.5px; }
rect.rows, i.rows { fill: var(--blue); background: var(--blue); }
rect.none { stroke: var(--red); stroke-dasharray: 3 2; fill: none; }
rect.compute { fill: var(--blue); } i.compute { background: var(--blue); }
rect.communication { fill: var(--amber); } i.communication { background: var(--amber); }
rect.idle { fill: var(--idle); } i.idle { background: var(--idle); }
.grid { stroke: var(--grid); } .line { fill: none; stroke-width: 2; }
.line.all { stroke: var(--blue); } .dot.all { fill: var(--blue); }
i.all { background: var(--blue); }
.line.one { stroke: var(--amber); stroke-width: 5; stroke-opacity: .45; }
.dot.one { fill: none; stroke: var(--amber); stroke-width: 2; } i.one { background: var(--amber); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1rem; list-style: none; padding: 0;
  margin: .4rem 0 0; font-size: .85rem; color: var(--soft); }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem;
  margin-right: .4rem; vertical-align: -.08rem; }
"""


def page(report: Report) -> str:
    """The page."""
    verdict = "passed" if report.ok else "failed"
    name = html.escape(report.step)
    counts = Counter(each.status.value for each in report.findings)
    figures = "".join(
        f"<figure><figcaption><b>{html.escape(title)}</b>"
        f'<p class="soft">{html.escape(words)}</p></figcaption>{picture}</figure>'
        for title, words, picture in pictures(report.facts)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{name}: {verdict}</title><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head><body><main>"
        f"<h1><code>{name}</code> on {report.replicas} replicas</h1>"
        f'<p><span class="verdict {verdict}">{verdict}</span> '
        f'<span class="soft">{html.escape(report.strategy)}</span></p>'
        f'<ul class="counts">{"".join(f"<li>{n} {s}</li>" for s, n in counts.items())}</ul>'
        f"<h2>Checks</h2>{''.join(map(_finding, report.findings))}"
        + (f"<h2>Pictures</h2>{figures}" if figures else "")
        + "</main></body></html>\n"
    )


def _finding(finding: Finding) -> str:
    status = finding.status.value
    is_open = "" if status == "passed" else " open"
    what, _, more = finding.what.partition("\n")
    body = f"<pre>{html.escape(more)}</pre>" if more else ""
    if finding.table is not None:
        body += _table(finding.table)
    for head, text in (("Why", finding.why), ("What to do", finding.fix)):
        if text:
            body += f"<p><b>{head}.</b> {_words(text[0].upper() + text[1:])}</p>"
    return (
        f'<details class="{status.replace(" ", "-")}"{is_open}><summary>'
        f'<span class="tag">{status}</span><b>{html.escape(finding.check)}</b> '
        f"{_words(what)}</summary>{body or '<p class=soft>Nothing more to say.</p>'}</details>"
    )


def _words(text: str) -> str:
    """Text in which names stand in backquotes."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _table(table: Table) -> str:
    numbers = [
        bool(table.rows) and all(isinstance(row[i], (int, float)) for row in table.rows)
        for i in range(len(table.columns))
    ]

    def cells(row: object, tag: str) -> str:
        parts = zip(row, numbers, strict=True)  # type: ignore[call-overload]
        return "".join(
            f"<{tag}{' class=number' if is_number else ''}>{html.escape(str(cell))}</{tag}>"
            for cell, is_number in parts
        )

    rows = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    head = f"<tr>{cells(table.columns, 'th')}</tr>"
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'
