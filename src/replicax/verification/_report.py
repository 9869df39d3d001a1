"""What `rx.verify` has found."""

from __future__ import annotations

import dataclasses
import enum
import json
from pathlib import Path
from typing import Any

from replicax.errors import Table, VerificationError, describe

from ._facts import Facts


class Status(enum.StrEnum):
    """What came of a check."""

    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"
    NOT_CHECKED = "not checked"


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check has found.

    Attributes:
        check: Which check: `runs`, `rows`, `mirrored`, `collectives`, `parity`, `busy`, `random`.
        status: What came of it.
        what: What was found, in a sentence.
        table: Who differs, or the figures; None where there is nothing to list.
        why: The cause, where it is known; of what was not checked, the reason.
        fix: What to do.
    """

    check: str
    status: Status
    what: str
    table: Table | None = None
    why: str | None = None
    fix: str | None = None

    @property
    def is_failed(self) -> bool:
        """Whether the check has failed."""
        return self.status is Status.FAILED

    def __str__(self) -> str:
        """The finding, with its table."""
        text = describe(self.what, table=self.table, why=self.why, fix=self.fix)
        return f"[{self.status}] {self.check}: {text}"

    def to_dict(self) -> dict[str, Any]:
        """The finding in terms of JSON."""
        table = None
        if self.table is not None:
            rows = [[_plain(cell) for cell in row] for row in self.table.rows]
            table = {"columns": list(self.table.columns), "rows": rows}
        return {**_fields(self), "status": self.status.value, "table": table}


@dataclasses.dataclass(frozen=True)
class Report:
    """What `rx.verify` has found: print it, or take `to_json()` and `write_html(path)`.

    Attributes:
        step: Name of the step.
        strategy: Name of the strategy.
        replicas: Number of replicas.
        findings: One or more for each check, in order.
        facts: What the checks measured.

    Examples:
        >>> report = Report("step", "MirroredStrategy", 2, ())
        >>> report.ok
        True
        >>> report.raise_if_failed()
    """

    step: str
    strategy: str
    replicas: int
    findings: tuple[Finding, ...]
    facts: Facts = dataclasses.field(default_factory=Facts)

    @property
    def ok(self) -> bool:
        """Whether no check has failed. Warnings and what was not checked do not count."""
        return not self.failed

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings of checks that have failed."""
        return tuple(each for each in self.findings if each.is_failed)

    def raise_if_failed(self) -> None:
        """Raises an error with the findings of all checks that have failed, if there are any.

        Raises:
            VerificationError: A check has failed.
        """
        if self.ok:
            return
        count = len(self.failed)
        head = (
            f"`{self.step}` on {self.replicas} replicas failed "
            f"{count} check{'s' if count > 1 else ''}."
        )
        raise VerificationError("\n\n".join([head, *map(str, self.failed)]))

    def to_json(self) -> str:
        """The report as a JSON object."""
        found = {
            "ok": self.ok,
            "step": self.step,
            "strategy": self.strategy,
            "replicas": self.replicas,
            "findings": [each.to_dict() for each in self.findings],
            "facts": dataclasses.asdict(self.facts),
        }
        return json.dumps(found, indent=2, default=_plain)

    def to_html(self) -> str:
        """The report as one HTML page that needs nothing else."""
        from ._html import page  # noqa: PLC0415 - few need it

        return page(self)

    def write_html(self, path: str | Path) -> None:
        """Writes the report as one HTML page.

        Args:
            path: The file.
        """
        Path(path).write_text(self.to_html(), encoding="utf-8")

    def __str__(self) -> str:
        """The report as text, with tables."""
        from ._text import text  # noqa: PLC0415 - as above

        return text(self)


def _fields(finding: Finding) -> dict[str, Any]:
    return {each.name: getattr(finding, each.name) for each in dataclasses.fields(finding)}


def _plain(value: Any) -> Any:
    """A value in terms of JSON."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    return value.item() if hasattr(value, "item") else str(value)
