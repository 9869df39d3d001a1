"""Numbers and lists as messages write them."""

from __future__ import annotations

from replicax.input._sources import RowIds


def counted(count: int | None, what: str, plural: str | None = None) -> str:
    """A number with its noun: "1 row", "2 rows", "unknown"."""
    if count is None:
        return "unknown"
    return f"{count} {what}" if count == 1 else f"{count} {plural or what + 's'}"


def listed(ids: RowIds, most: int = 8) -> str:
    """The first of some row ids, and how many there are."""
    shown = ", ".join(map(str, ids[:most].tolist()))
    return f"{shown}, ... ({len(ids)} rows)" if len(ids) > most else shown or "none"
