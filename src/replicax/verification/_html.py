"""A report as one HTML page."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._report import Report


def page(report: Report) -> str:
    """The page."""
    return f"<!doctype html><title>rx.verify</title><pre>{html.escape(str(report))}</pre>"
