"""Whether gradients are finite, asked of those that the replicas have combined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax.step import require_mirrored


def all_finite(gradients: Any) -> jax.Array:
    """Whether no entry of a tree is infinite or undefined.

    Context: any. Collective: no in a compiled step; in the eager runner, where it compares bits.

    Args:
        gradients: A tree of arrays that are equal on all replicas. One replica's own gradients
            would make it skip a step that others take.

    Returns:
        bool[], mirrored.

    Raises:
        VaryingWriteError: In replica context: the gradients may differ between replicas.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> print(rx.precision.all_finite([jnp.ones(2), jnp.array([1.0, jnp.nan])]))
        False
    """
    return finite_if_mirrored(gradients, "rx.precision.all_finite", None)


def finite_if_mirrored(gradients: Any, call: str, names: Sequence[str] | None) -> jax.Array:
    """`all_finite` for another public function, whose messages call the leaves by `names`."""
    finite: jax.Array = _finite(require_mirrored(gradients, call, names))
    return finite


@jax.jit
def _finite(tree: Any) -> jax.Array:
    result = jnp.array(True)  # noqa: FBT003 - the value itself
    for leaf in jax.tree.leaves(tree):
        result &= jnp.all(jnp.isfinite(leaf))
    return result


def choose(condition: Any, new: Any, old: Any) -> Any:
    """`new` where the condition holds, else `old`: a step that was skipped, in functional style.

    Context: any. Collective: no.

    Args:
        condition: bool[].
        new: A tree of arrays.
        old: A tree of the same structure.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> print(rx.precision.choose(jnp.array(False), {"w": 2.0}, {"w": 1.0}))
        {'w': Array(1., dtype=float32, weak_type=True)}
    """
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)
