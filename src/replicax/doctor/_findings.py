"""What an examination finds, and how it is told."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from replicax.errors import InternalError, Table, describe

Status = Literal["ok", "warning", "failure", "skipped"]

IDS = (
    "backend",
    "clocks",
    "collectives",
    "cpu-devices",
    "cpus",
    "dead-peer",
    "device-group",
    "device-pairs",
    "devices",
    "driver",
    "examination",
    "gpu-memory",
    "hidden-devices",
    "host-name",
    "hosts",
    "memory",
    "open-files",
    "plugins",
    "ports",
    "processes",
    "proxies",
    "shared-memory",
    "unused-devices",
    "versions",
    "worker-group",
    "worker-pairs",
    "workers",
    "workers-differ",
)
"""Every kind of finding; the page `doctor.md` has a section for each."""

_ORDER: tuple[Status, ...] = ("failure", "warning", "skipped", "ok")
_WORDS = {"failure": "FAILURE", "warning": "warning", "skipped": "skipped", "ok": "ok"}
_STATUS_WIDTH, _ID_WIDTH, _WIDTH = 9, 16, 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        id: Its kind; the documentation has a section of this name.
        status: `ok`, `warning`, `failure`, or `skipped` where it could not be looked at.
        what: What was found.
        why: Why it matters, or what causes it.
        fix: What to do.
        table: Who differs, where someone does.
        workers: The workers that it holds for; empty where there is one process.

    Examples:
        >>> Finding(id="cpus", status="ok", what="4 CPUs.").is_fine
        True
    """

    id: str
    status: Status = "ok"
    what: str
    why: str | None = None
    fix: str | None = None
    table: Table | None = None
    workers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Checks that the documentation explains it."""
        if self.id not in IDS:
            raise InternalError(describe(f"There is no kind of finding {self.id!r}."))

    @property
    def is_fine(self) -> bool:
        """Whether there is nothing to do."""
        return self.status in ("ok", "skipped")

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.table is not None:
            rows = [[_plain(cell) for cell in row] for row in self.table.rows]
            fields["table"] = {"columns": list(self.table.columns), "rows": rows}
        return fields | {"workers": list(self.workers)}

    def __str__(self) -> str:
        """The finding as text; reasons and advice only where something is to be done."""
        head = f"{_WORDS[self.status]:<{_STATUS_WIDTH}}{self.id:<{_ID_WIDTH}}"
        of = f" (worker {', '.join(map(str, self.workers))})" if self.workers else ""
        indent = " " * (_STATUS_WIDTH + _ID_WIDTH)
        lines = [_wrapped(self.what + of, head, indent)]
        if self.table is not None:
            lines += [indent + line for line in str(self.table).splitlines()]
        if not self.is_fine:
            for word, text in (("Why: ", self.why), ("What to do: ", self.fix)):
                if text:
                    lines.append(_wrapped(word + text, indent, indent + "  "))
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What an examination has found.

    Attributes:
        findings: Everything that was looked at, the worst first.
        facts: What each worker told, by rank; of one process: its own.
        seconds: How long it took.
        rank: The worker that made it. All have the same; worker 0 is the one to print it.

    Examples:
        >>> fine = Finding(id="cpus", what="4 CPUs.")
        >>> print(Report(findings=[fine], facts=[], seconds=1.0))
        ok       cpus            4 CPUs.
        <BLANKLINE>
        1 looked at: 0 failures, 0 warnings. 1.0 s.
    """

    findings: Sequence[Finding]
    facts: Sequence[Mapping[str, Any]]
    seconds: float
    rank: int = 0

    def __post_init__(self) -> None:
        """Puts the worst first."""
        found = sorted(self.findings, key=lambda one: _ORDER.index(one.status))
        object.__setattr__(self, "findings", tuple(found))

    @property
    def ok(self) -> bool:
        """Whether there is no failure. Warnings are none."""
        return all(one.status != "failure" for one in self.findings)

    def of(self, kind: str) -> list[Finding]:
        """The findings of one kind."""
        return [one for one in self.findings if one.id == kind]

    def to_json(self) -> str:
        """The report as JSON."""
        told = {
            "ok": self.ok,
            "seconds": round(self.seconds, 2),
            "findings": [one.to_json() for one in self.findings],
            "workers": list(self.facts),
        }
        return json.dumps(told, indent=1, default=str)

    def __str__(self) -> str:
        """The report as text."""
        counts = dict.fromkeys(_ORDER, 0)
        for one in self.findings:
            counts[one.status] += 1
        told = [_counted(counts["failure"], "failure"), _counted(counts["warning"], "warning")]
        if counts["skipped"]:
            told.append(f"{counts['skipped']} skipped")
        last = f"{len(self.findings)} looked at: {', '.join(told)}. {self.seconds:.1f} s."
        return "\n".join([*map(str, self.findings), "", last])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _wrapped(text: str, first: str, later: str) -> str:
    """The lines of a text, each of them broken where it is too long."""
    told = []
    for number, line in enumerate(text.splitlines()):
        lead = first if number == 0 else later
        told.append(
            textwrap.fill(
                line,
                _WIDTH,
                initial_indent=lead,
                subsequent_indent=later,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    return "\n".join(told)


def _plain(cell: object) -> object:
    return cell if isinstance(cell, (str, int, float, bool, type(None))) else str(cell)
