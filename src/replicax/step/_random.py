"""Random streams of the replicas."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.values import Frame, StrategyLike, Variable, entered
from replicax.values._operators import ArrayLike


class RandomStream:
    """The random stream of a strategy: a seed, and how many keys were taken.

    The count is a mirrored variable, so a compiled step advances it like any other state.

    Args:
        strategy: The strategy; None for the stream outside of every scope.
        seed: Where the stream starts.
    """

    def __init__(self, strategy: StrategyLike | None, seed: int) -> None:
        name = "random stream" if strategy is None else f"random stream of {strategy.name}"
        with entered(Frame(strategy)), jax.ensure_compile_time_eval():
            self._state = Variable(_words(seed), trainable=False, name=name)

    def reset(self, seed: int) -> None:
        """Start again from ``seed``."""
        self._state.assign(_words(seed))

    def next_key(self) -> jax.Array:
        """Take the next key, the same on every replica."""
        seed, count = self._state.value
        self._state.at[1].add(1)
        return jax.random.fold_in(jax.random.key(seed), count)


def _words(seed: Any) -> Any:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`seed` = {seed!r} is not an integer.", fix="Pass a Python integer, such as 7."
            )
        )
    if not 0 <= seed < 2**32:
        raise errors.InvalidArgumentError(
            errors.describe(f"`seed` = {seed} is out of range.", fix="Pass 0 to 2**32 - 1.")
        )
    return np.array([seed, 0], np.uint32)


def checked_key(key: Any) -> jax.Array:
    """A random key that a user passed, as an array.

    Raises:
        ArgumentTypeError: It is none.
    """
    value = key.value if isinstance(key, ArrayLike) else key
    dtype = getattr(value, "dtype", None)
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    is_raw = dtype == jnp.uint32 and getattr(value, "ndim", 0) == 1
    if (is_typed and value.ndim == 0) or is_raw:
        checked: jax.Array = value
        return checked
    raise errors.ArgumentTypeError(
        errors.describe(
            f"`rng` was given {key!r}, which is no random key.",
            fix="Pass `jax.random.key(seed)`, or nothing for the strategy's own stream.",
        )
    )
