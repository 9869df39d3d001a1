"""Results of runs, and which of them a sum over replicas may count once a replica.

`strategy.reduce("sum", x)` of an array that is equal on all replicas is ambiguous. If replicas made
the array each for itself (the number of rows of its batch, say), it counts once a replica. If it
was combined before, by a collective, counting it again gives the number of replicas times what one
device gives. Any other array has no replicas at all.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.step import _compat
from replicax.step._proof import COLLECTIVES
from replicax.values import PerReplica, Variable


def flatten_result(result: Any) -> tuple[list[str], list[Any], Any]:
    """Split the result of a replica function into paths, leaves and structure.

    Raises:
        ArgumentTypeError: It holds a per-replica value.
    """
    structure: Any
    with_paths, structure = jax.tree_util.tree_flatten_with_path(
        result, is_leaf=lambda leaf: isinstance(leaf, (Variable, PerReplica))
    )
    paths = [jax.tree_util.keystr(path) for path, _ in with_paths]
    leaves = [_leaf(path, leaf) for path, (_, leaf) in zip(paths, with_paths, strict=True)]
    return paths, leaves, structure


def _leaf(path: str, leaf: Any) -> Any:
    if isinstance(leaf, PerReplica):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"The replica function returned {leaf!r} at `result{path}`.",
                why="In replica context a replica holds its own component only.",
                fix="Return the component.",
            )
        )
    if isinstance(leaf, Variable):
        return leaf.value
    return jnp.asarray(leaf) if hasattr(leaf, "dtype") else leaf


# By identity: arrays compare by element.
_COUNTED: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()


def remember(result: jax.Array) -> None:
    """Note a mirrored result of the eager runner that no collective made."""
    _COUNTED[id(result)] = result


def is_counted(value: Any) -> bool:
    """Whether ``value`` is such a result."""
    return isinstance(value, jax.Array) and _COUNTED.get(id(value)) is value


_PER_ROW: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()


def remember_rows(result: jax.Array) -> None:
    """Note a result of the eager runner whose rows are those of each replica, equal by chance."""
    _PER_ROW[id(result)] = result


def is_per_row(value: Any) -> bool:
    """Whether ``value`` is such a result."""
    return isinstance(value, jax.Array) and _PER_ROW.get(id(value)) is value


def combined_outputs(program: Any) -> list[bool]:
    """Which outputs of a traced replica function depend on a collective."""
    jaxpr, _ = _compat.opened(program)
    combined: set[int] = set()
    for eqn in jaxpr.eqns:
        if any(id(atom) in combined for atom in eqn.invars) or _holds_collective(eqn):
            combined.update(id(variable) for variable in eqn.outvars)
    return [id(atom) in combined for atom in jaxpr.outvars]


def _holds_collective(eqn: Any) -> bool:
    """Whether an equation is a collective, or has one inside."""
    if eqn.primitive.name in COLLECTIVES:
        return True
    return any(
        _holds_collective(inner)
        for jaxpr in _compat.nested_jaxprs(eqn)
        for inner in _compat.opened(jaxpr)[0].eqns
    )
