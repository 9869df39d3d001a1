"""What the processes of a strategy agree on before they touch a variable between steps."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.cluster import agree
from replicax.values._distributed import DistributedValues, PerReplica
from replicax.values._frames import StrategyLike, current_frame
from replicax.values._mesh import ReplicaMesh, own_part

if TYPE_CHECKING:
    from replicax.values._variable import Variable


def digest(value: Any) -> str:
    """A number of a value's dtype, shape and bits, as 16 hexadecimal digits."""
    array = own_part(value)
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    host = np.asarray(array)
    kind = f"{host.dtype}{host.shape}".encode()
    return hashlib.sha256(kind + np.ascontiguousarray(host).tobytes()).hexdigest()[:16]


def common_start(variable: Variable, value: jax.Array) -> jax.Array:
    """The value that a new variable starts from on all workers: that of worker 0. Collective.

    Raises:
        CollectiveMismatchError: The workers create different variables.
    """
    mesh: Any = variable.strategy.replica_mesh  # type: ignore[union-attr] # it spans processes
    facts = {
        **_facts(variable),
        "dtype": str(value.dtype),
        "shape": str(value.shape),
        "trainable": variable.trainable,
    }
    records = agree(
        "the creation of a variable",
        facts,
        untold={"digest": digest(value)},
        why=f"`{variable.name}`, a variable of the strategy, is one variable for all workers.",
        fix="Create the same variables in the same order on every worker.",
    )
    return _first(mesh, value, records)


def common_value(mesh: ReplicaMesh, name: str, value: jax.Array) -> jax.Array:
    """The value that worker 0 has of something that all have. Collective.

    Raises:
        CollectiveMismatchError: The workers have different things.
    """
    facts = {"name": name, "dtype": str(value.dtype), "shape": str(value.shape)}
    return _first(mesh, value, agree("a common value", facts, untold={"digest": digest(value)}))


def _first(mesh: ReplicaMesh, value: jax.Array, records: list[dict[str, Any]]) -> jax.Array:
    if all(record["digest"] == records[0]["digest"] for record in records):
        return value
    rows = mesh.from_rows([own_part(value)] * mesh.num_local_replicas)
    first: jax.Array = mesh.all_rows(rows)[0]
    return first


def check_workers_write_alike(variable: Variable, call: str, *operands: Any) -> None:
    """Make sure that all workers write the same in cross-replica context. Collective there.

    Raises:
        VaryingWriteError: They write different values; no variable was changed.
        CollectiveMismatchError: They make different calls.
    """
    frame = current_frame()
    if not variable._spans_processes:
        return
    if frame is not None and (frame.access is not None or frame.agreed):
        return
    values = [digest(x) if hasattr(x, "dtype") else repr(x) for x in operands]
    agree(
        f"a variable's `{call}`",
        {**_facts(variable), "digest of the value": " ".join(values)},
        why="In cross-replica context a write reaches all copies, and each worker writes those of "
        "its own replicas. No variable was changed.",
        fix="Write the same value on every worker. To combine what differs, use "
        "`strategy.reduce`, or write in replica context.",
        error=errors.VaryingWriteError,
    )


def meet_to_read(variable: Variable) -> None:
    """Meet the other workers before the copies of a sync-on-read variable are aggregated."""
    agree("reading a sync-on-read variable", _facts(variable))


def meet_to_combine(call: str, value: Any, facts: dict[str, Any]) -> None:
    """Meet the other workers before values of all replicas are combined. Collective.

    Raises:
        CollectiveMismatchError: They combine other values, or values that are equal on the
            replicas of each worker differ between workers.
    """
    leaves, structure = jax.tree.flatten(value, is_leaf=lambda x: isinstance(x, DistributedValues))
    kinds = [
        "per-replica"
        if isinstance(leaf, PerReplica)
        else type(leaf).__name__
        if isinstance(leaf, DistributedValues)
        else f"digest {digest(leaf)}"
        for leaf in leaves
    ]
    agree(call, {**facts, "structure": str(structure), "values": ", ".join(kinds)})


def check_count(
    strategy: StrategyLike, value: PerReplica, what: str, *, is_compiled: bool = False
) -> None:
    """Check that a per-replica value has one component a replica.

    Args:
        strategy: The strategy.
        value: The value. One that is held as components has those of this process.
        what: How the message begins.
        is_compiled: Whether it becomes an array ``[num_replicas, ...]`` of a compiled step.

    Raises:
        InvalidArgumentError: It has more or fewer.
        UnimplementedError: Components of this process alone, in a compiled step.
    """
    mesh = strategy.replica_mesh
    count = mesh.num_replicas if value.stacked is not None else mesh.num_local_replicas
    if value.num_components != count:
        own = f", {mesh.num_local_replicas} of them in this process" if mesh.spans_processes else ""
        raise errors.InvalidArgumentError(
            errors.describe(
                f"{what} with {value.num_components} components, but {strategy.name} has "
                f"{mesh.num_replicas} replicas{own}.",
                fix="Make it with this strategy: `strategy.distribute_dataset` or "
                "`strategy.distribute_values_from_function`.",
            )
        )
    if is_compiled and value.stacked is None and mesh.spans_processes:
        raise errors.UnimplementedError(
            errors.describe(
                f"{what}, whose components are those of this process, in a compiled step of "
                f"{strategy.name}.",
                why="The step is one program for all processes, which takes the components of all "
                "as one array.",
                fix="Make it with `strategy.distribute_values_from_function`, and pass it to the "
                "`rx.function` as an argument.",
            )
        )


def _facts(variable: Variable) -> dict[str, Any]:
    """What tells variables apart on all workers; names that were counted may differ."""
    is_named = variable.name != f"Variable_{variable._index}"
    return {
        "name": variable.name if is_named else None,
        "kind": type(variable).__name__,
        "aggregation": variable.aggregation.name,
    }
