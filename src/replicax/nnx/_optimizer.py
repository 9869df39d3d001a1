"""`rx.apply_gradients` for the optimizers of Flax NNX."""

from __future__ import annotations

from typing import Any

from replicax.nnx._compat import nnx, set_value, value_of
from replicax.nnx._owner import parts_of
from replicax.precision import choose
from replicax.step import register_optimizer


def _apply(
    optimizer: Any, gradients: Any, module: Any, *, apply_if: Any = None, **extra: Any
) -> None:
    """Let an `nnx.Optimizer` update its module, or nothing where `apply_if` is false."""
    parts = [
        part for value in (module, optimizer) if value is not None for _, part in parts_of(value)
    ]
    before = [value_of(part) for part in parts]
    if isinstance(optimizer, nnx.ModelAndOptimizer):
        optimizer.update(gradients, **extra)
    else:
        optimizer.update(module, gradients, **extra)
    if apply_if is None:
        return
    for part, old in zip(parts, before, strict=True):
        new = value_of(part)
        if new is not old:
            set_value(part, choose(apply_if, new, old))


register_optimizer(lambda optimizer: isinstance(optimizer, nnx.Optimizer), _apply)
