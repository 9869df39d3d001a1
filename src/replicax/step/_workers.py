"""What the processes of a strategy agree on before a compiled step runs the first time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from replicax.cluster import agree
from replicax.step._arguments import argument_name
from replicax.values import PerReplica, Variable
from replicax.values._workers import digest

if TYPE_CHECKING:
    from replicax.step._program import Program


def check_workers_call_alike(
    program: Program, args: Any, kwargs: Any, names: Sequence[str]
) -> None:
    """Make sure that all workers give a step the same plain arguments. Collective.

    Plain arguments are the same on every replica. That is looked at when a program is new; later
    calls do not meet outside of the program.

    Raises:
        CollectiveMismatchError: They differ; the error has a row a worker.
    """
    strategy = program.strategy
    if strategy is None or not strategy.replica_mesh.spans_processes:
        return
    with_paths, _ = jax.tree_util.tree_flatten_with_path(
        (args, kwargs), is_leaf=lambda value: isinstance(value, (PerReplica, Variable))
    )
    agree(
        f"the first call of `{program.function.__name__}`",
        {f"`{argument_name(path, names)}`": _kind(value) for path, value in with_paths},
        why="Plain arrays and numbers are arguments that are the same on every replica, on all "
        "workers.",
        fix="Pass rows of each worker's own as a batch of `strategy.distribute_dataset`, or as a "
        "value of `strategy.distribute_values_from_function`.",
    )


def _kind(value: Any) -> str:
    if isinstance(value, Variable):
        return repr(value)
    if isinstance(value, PerReplica):
        return repr(value)
    shape = getattr(value, "shape", ())
    dtype = getattr(value, "dtype", type(value).__name__)
    return f"{dtype}[{', '.join(map(str, shape))}] {digest(value)}"
