"""Keras optimizers in steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import keras

from replicax import errors


def is_optimizer(thing: Any) -> bool:
    """Whether something is a Keras optimizer."""
    return isinstance(thing, keras.optimizers.Optimizer)


def apply_gradients(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], *, apply_if: Any = None
) -> None:
    """What `rx.apply_gradients` does with a Keras optimizer.

    It does what `optimizer.apply(gradients, variables)` does. It also works for a
    `LossScaleOptimizer`, which finds out by itself whether the gradients are finite.

    Args:
        optimizer: A `keras.optimizers.Optimizer`, made in the strategy's scope. It is built for
            `variables` if it was not yet.
        gradients: One a variable, combined and checked.
        variables: The Keras variables that are changed.
        apply_if: bool[]; where it is false, nothing changes.

    Raises:
        InvalidArgumentError: The numbers of gradients and variables differ.
    """
    gradients, variables = list(gradients), list(variables)
    if len(gradients) != len(variables):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"rx.apply_gradients was given {len(gradients)} gradients for "
                f"{len(variables)} variables.",
                fix="Pass the variables that `rx.value_and_grad` differentiated.",
            )
        )
    if not optimizer.built:
        optimizer.build(variables)
    state = list(optimizer.variables)
    before = [v.value for v in variables], [v.value for v in state]
    after = optimizer.stateless_apply(before[1], gradients, before[0])
    for variable, old, new in zip(
        [*variables, *state], [*before[0], *before[1]], [*after[0], *after[1]], strict=True
    ):
        if new is not old:
            variable.assign(new if apply_if is None else jnp.where(apply_if, new, old))
