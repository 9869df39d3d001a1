"""The launcher: starts the workers of a job, watches them, and sees them through to the end."""

from __future__ import annotations

from ._launch import launch as launch
from ._options import LaunchOptions as LaunchOptions

__all__ = [
    "LaunchOptions",
    "launch",
]
