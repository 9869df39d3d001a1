"""A report as text."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from ._report import Report

_WIDTH = 110


def text(report: Report) -> str:
    """The checks as a table, and below what there is to say of them."""
    verdict = "passed" if report.ok else "FAILED"
    head = f"{report.step} on {report.replicas} replica(s) of {report.strategy}: {verdict}"
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("check", "result", "found"):
        table.add_column(column, overflow="fold")
    for each in report.findings:
        table.add_row(each.check, str(each.status), each.what)
    written = io.StringIO()
    Console(file=written, width=_WIDTH, color_system=None).print(table)
    summary = "\n".join(line.rstrip() for line in written.getvalue().splitlines())
    more = [str(each) for each in report.findings if each.table or each.why or each.fix]
    return "\n\n".join([head, summary, *more]) + "\n"
