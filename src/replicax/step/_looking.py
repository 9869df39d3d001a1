"""Looking at the program of a step for given arguments, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from replicax.step._arguments import argument_name
from replicax.step._function import Function
from replicax.step._programs import stacked
from replicax.step._trace import Traced
from replicax.values import PerReplica
from replicax.values._imagined import enlarged, imagined_here


@dataclass(frozen=True)
class ArgumentFacts:
    """One array among the arguments of a step.

    Attributes:
        name: How messages call it.
        shape: Its shape; of a per-replica value that of one component.
        dtype: Its dtype.
        is_per_replica: Whether it is part of a per-replica value.
        is_donated: Whether the step may reuse its memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    is_per_replica: bool
    is_donated: bool


@dataclass(frozen=True)
class Look:
    """A step as it is traced for given arguments.

    Attributes:
        arguments: Its arrays.
        traced: The trace.
        lowered: The program; None for replicas that are not there.
    """

    arguments: tuple[ArgumentFacts, ...]
    traced: Traced
    lowered: jax.stages.Lowered | None


def look(
    function: Function, args: Sequence[Any], kwargs: dict[str, Any], *, padded: bool = False
) -> Look:
    """Traces a step. Context: cross-replica or outside.

    Args:
        function: The step.
        args: Its arguments; whole ones may be iterators.
        kwargs: Its named arguments.
        padded: Whether to look at the program of a remainder: full batches are taken as padded.
    """

    def at(function: Function, *args: Any, **kwargs: Any) -> Look:
        if padded:
            args, kwargs = _as_remainder((args, kwargs))
        return _look_at(function, args, kwargs)

    # What a look has traced must not serve a call: its keys are those of this moment.
    found: Look = function.fresh().look_at(at, tuple(args), kwargs)
    return found


def _look_at(function: Function, args: Any, kwargs: Any) -> Look:
    names = function._programs.names(args)
    args, kwargs = stacked((args, kwargs), names)
    mesh = imagined_here()
    if mesh is not None:
        args, kwargs = enlarged((args, kwargs), mesh.num_replicas)
    arguments = _arguments(args, kwargs, names, function._donate)
    if mesh is not None:
        leaves, structure = jax.tree.flatten((args, kwargs))
        return Look(arguments, function._programs.trace(structure, leaves), None)
    program, args, kwargs = function.program_for(args, kwargs)
    [traced] = program.traces.values()
    return Look(arguments, traced, program.lower(args, kwargs))


def _arguments(
    args: Any, kwargs: Any, names: Sequence[str], donated: Sequence[str]
) -> tuple[ArgumentFacts, ...]:
    with_paths, _ = jax.tree_util.tree_flatten_with_path(
        (args, kwargs), is_leaf=lambda value: isinstance(value, PerReplica)
    )
    found = []
    for path, value in with_paths:
        is_per_replica = isinstance(value, PerReplica)
        array = value.stacked if is_per_replica else value
        shape = jnp.shape(array)[1:] if is_per_replica else jnp.shape(array)
        dtype = getattr(array, "dtype", None) or jnp.result_type(array)
        name = argument_name(path, names)
        is_donated = name.partition("[")[0].partition(".")[0] in donated
        found.append(ArgumentFacts(name, tuple(shape), dtype, is_per_replica, is_donated))
    return tuple(found)


def _as_remainder(tree: Any) -> Any:
    def one(value: Any) -> Any:
        if not isinstance(value, PerReplica) or value.stacked is None or value.rows is not None:
            return value
        num_replicas, *shape = value.stacked.shape
        if not shape:
            return value
        counts = jnp.full(num_replicas, shape[0], jnp.int32)
        return PerReplica.from_stacked(value.stacked, counts)

    return jax.tree.map(one, tree, is_leaf=lambda value: isinstance(value, PerReplica))
