"""What Keras is told when a thread enters a context of Replicax."""

from __future__ import annotations

import contextlib
from typing import Any

from replicax.keras._distribution import in_scope
from replicax.keras._scope import inside_step
from replicax.values import Frame


def hook(frame: Frame) -> contextlib.AbstractContextManager[Any]:
    """Install the distribution in a strategy's scope; lead variables through steps inside."""
    if frame.access is not None and not frame.updating:
        return inside_step(frame)
    if frame.access is None and frame.strategy is not None:
        return in_scope(frame)
    return contextlib.nullcontext()
