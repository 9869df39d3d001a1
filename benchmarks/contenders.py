"""The ways to train a workload on the replicas of a strategy: with replicax, and by hand in jax.

By hand means `jit` over `shard_map` (or over arrays with shardings) with the state donated, on
the same devices, with the batch placed once. What differs is how gradients are combined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from measuring import Step
from workloads import Workload

import replicax as rx

AXIS = "replica"
BUCKET_BYTES = 4 * 1024 * 1024
MANY_LEAVES, SMALL_BYTES = 20, 64 * 1024
SPLIT, WHOLE = PartitionSpec(AXIS), PartitionSpec()


# -- with replicax --------------------------------------------------------------------------------


def functional(strategy: rx.Strategy, workload: Workload) -> Step:
    """State in, state out."""
    return _kept(*functional_step(strategy, workload))


def packed_functional(strategy: rx.Strategy, workload: Workload) -> Step:
    """State in, state out, in a few buffers."""
    return _kept(*functional_step(strategy, workload, packed=True))


def functional_step(
    strategy: rx.Strategy, workload: Workload, *, packed: bool = False
) -> tuple[Any, Any, Any]:
    """An `rx.function` of `state, loss = step(state, batch)`, with its first arguments."""

    def replica_step(state: Any, batch: Any) -> Any:
        parameters, statistics = state
        new, updated, loss = _gradient_step(workload, parameters, statistics, batch)
        return (new, updated), loss

    @rx.function(donate="state")
    def run(state: Any, batch: Any) -> Any:
        return strategy.run(replica_step, args=(state, batch))

    state = _state(workload, packed=packed)
    return run, placed(strategy, state, WHOLE), _distributed(strategy, workload)


def _state(workload: Workload, *, packed: bool) -> tuple[Any, Any]:
    parameters, statistics = workload.state()
    return (rx.pack(parameters) if packed else parameters), statistics


def variables(strategy: rx.Strategy, workload: Workload, *, packed: bool = False) -> Step:
    """The state in variables, which a step writes in place."""
    leaves, structure = jax.tree.flatten(_state(workload, packed=packed))
    with strategy.scope():
        cells = [rx.Variable(leaf, name=f"leaf{i:03d}") for i, leaf in enumerate(leaves)]

    def replica_step(batch: Any) -> Any:
        state = structure.unflatten([cell.value for cell in cells])
        new, updated, loss = _gradient_step(workload, *state, batch)
        for cell, value in zip(cells, jax.tree.leaves((new, updated)), strict=True):
            cell.assign(value)
        return loss

    return _in_place(strategy, workload, replica_step)


def packed_variables(strategy: rx.Strategy, workload: Workload) -> Step:
    """The same in a few variables."""
    return variables(strategy, workload, packed=True)


def sparse_rows(strategy: rx.Strategy, workload: Workload) -> Step:
    """State in, state out; the gradient of the table is the rows that were looked up."""
    assert workload.losses_by is not None  # noqa: S101 - `makers` offers it only then
    row_losses = workload.losses_by(rx.embedding_lookup)

    def replica_step(state: Any, batch: Any) -> Any:
        ctx = rx.get_replica_context()

        def loss_of(parameters: Any) -> Any:
            return ctx.global_mean(row_losses(parameters, {}, batch)[0])

        parameters = dict(state)
        loss, gradients = rx.value_and_grad(loss_of)(parameters)
        gradients = ctx.all_reduce("mean", gradients)
        rows, table = gradients.pop("table"), parameters.pop("table")
        table = table.at[rows.indices].add(-workload.rate * rows.values)
        return {"table": table, **workload.updated(parameters, gradients)}, loss

    @rx.function(donate="state")
    def run(state: Any, batch: Any) -> Any:
        return strategy.run(replica_step, args=(state, batch))

    state = placed(strategy, workload.parameters(), WHOLE)
    return _kept(run, state, _distributed(strategy, workload))


def _gradient_step(workload: Workload, parameters: Any, statistics: Any, batch: Any) -> Any:
    ctx = rx.get_replica_context()

    def loss_of(parameters: Any) -> Any:
        whole = parameters.unpack() if isinstance(parameters, rx.Packed) else parameters
        rows, updated = workload.row_losses(whole, statistics, batch)
        return ctx.global_mean(rows), updated

    (loss, updated), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters)
    gradients, updated = ctx.all_reduce("mean", (gradients, updated))
    return workload.updated(parameters, gradients), updated, loss


def sparse_variables(strategy: rx.Strategy, workload: Workload) -> Step:
    """The same in variables, with an optimizer, which changes the rows alone."""
    assert workload.losses_by is not None  # noqa: S101 - `makers` offers it only then
    row_losses = workload.losses_by(rx.embedding_lookup)
    with strategy.scope():
        cells = {name: rx.Variable(leaf, name=name) for name, leaf in workload.parameters().items()}
        optimizer = rx.Optimizer(optax.sgd(workload.rate), cells)

    def replica_step(batch: Any) -> Any:
        ctx = rx.get_replica_context()

        def loss_of() -> Any:
            read = {name: cell.value for name, cell in cells.items() if name != "table"}
            return ctx.global_mean(row_losses({**read, "table": cells["table"]}, {}, batch)[0])

        loss, gradients = rx.value_and_grad(loss_of, cells)()
        rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients))
        return loss

    return _in_place(strategy, workload, replica_step)


def _in_place(strategy: rx.Strategy, workload: Workload, replica_step: Callable[..., Any]) -> Step:
    """A step that takes nothing but its batch."""

    @rx.function
    def run(batch: Any) -> Any:
        return strategy.run(replica_step, args=(batch,))

    batch = _distributed(strategy, workload)
    return lambda: run(batch)


def _distributed(strategy: rx.Strategy, workload: Workload) -> Any:
    return next(iter(strategy.distribute_dataset([workload.batch()])))


# -- by hand --------------------------------------------------------------------------------------

Mean = Callable[[list[jax.Array], int], list[jax.Array]]
"""From the leaves of a replica, and the number of replicas, to their means."""


def each_alone(leaves: list[jax.Array], count: int) -> list[jax.Array]:
    """One all-reduce a leaf."""
    return [lax.psum(leaf, AXIS) / count for leaf in leaves]


def all_joined(leaves: list[jax.Array], count: int) -> list[jax.Array]:
    """One buffer for all leaves, behind a barrier, which makes it faster."""
    members: list[jax.Array] = lax.optimization_barrier(leaves)
    total = lax.psum(jnp.concatenate([leaf.ravel() for leaf in members]), AXIS) / count
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = jnp.split(total, ends)
    return [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]


def in_buckets(leaves: list[jax.Array], count: int) -> list[jax.Array]:
    """Buckets of 4 MB in the order of the leaves; what is larger fills one alone."""
    buckets: list[list[int]] = []
    filled = BUCKET_BYTES
    for number, leaf in enumerate(leaves):
        if filled + leaf.nbytes > BUCKET_BYTES:
            buckets.append([])
            filled = 0
        buckets[-1].append(number)
        filled += leaf.nbytes
    means: list[jax.Array] = list(leaves)
    for bucket in buckets:
        joined = all_joined([leaves[i] for i in bucket], count)
        for number, mean in zip(bucket, joined, strict=True):
            means[number] = mean
    return means


def by_hand(mean: Mean) -> Callable[[rx.Strategy, Workload], Step]:
    """A contender that combines gradients, statistics and loss by `mean`."""

    def made(strategy: rx.Strategy, workload: Workload) -> Step:
        count = strategy.num_replicas_in_sync

        def replica_step(state: Any, batch: Any) -> Any:
            parameters, statistics = state

            def loss_of(parameters: Any) -> Any:
                rows, updated = workload.row_losses(parameters, statistics, batch)
                return rows.mean(), updated

            (loss, updated), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters)
            leaves, structure = jax.tree.flatten((loss, gradients, updated))
            loss, gradients, updated = structure.unflatten(mean(leaves, count))
            return (workload.updated(parameters, gradients), updated), loss

        return _placed_step(_mapped(replica_step, strategy), strategy, workload)

    return made


def automatic(strategy: rx.Strategy, workload: Workload) -> Step:
    """Arrays with shardings; XLA finds the collectives. The rows stand in a group a replica."""
    count, mesh = strategy.num_replicas_in_sync, strategy.replica_mesh.mesh

    def grouped(leaf: jax.Array) -> jax.Array:
        groups = leaf.reshape(count, -1, *leaf.shape[1:])
        return lax.with_sharding_constraint(groups, NamedSharding(mesh, SPLIT))

    def step(state: Any, batch: Any) -> Any:
        parameters, statistics = state
        groups = jax.tree.map(grouped, batch)

        def loss_of(parameters: Any) -> Any:
            rows, updated = jax.vmap(lambda g: workload.row_losses(parameters, statistics, g))(
                groups
            )
            return rows.mean(), jax.tree.map(lambda x: x.mean(0), updated)

        (loss, updated), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters)
        return (workload.updated(parameters, gradients), updated), loss

    whole = NamedSharding(mesh, WHOLE)
    run = jax.jit(step, donate_argnums=0, out_shardings=(whole, whole))
    return _placed_step(run, strategy, workload)


def rows_by_hand(strategy: rx.Strategy, workload: Workload) -> Step:
    """The rows of the table that were looked up are gathered and added to it."""
    assert workload.losses_by is not None  # noqa: S101 - `makers` offers it only then
    row_losses = workload.losses_by(lambda rows, _: rows)
    count = strategy.num_replicas_in_sync

    def replica_step(state: Any, batch: Any) -> Any:
        parameters, statistics = state
        table, ids = parameters["table"], batch[0]

        def loss_of(parameters: Any) -> Any:
            return row_losses(parameters, statistics, batch)[0].mean()

        looked_up = {**parameters, "table": table[ids]}
        loss, gradients = jax.value_and_grad(loss_of)(looked_up)
        rows = lax.all_gather((ids, gradients.pop("table")), AXIS, tiled=True)
        leaves, structure = jax.tree.flatten((loss, gradients))
        loss, gradients = structure.unflatten(all_joined(leaves, count))
        table = table.at[rows[0]].add(-workload.rate / count * rows[1])
        rest = {name: leaf for name, leaf in parameters.items() if name != "table"}
        return ({"table": table, **workload.updated(rest, gradients)}, statistics), loss

    return _placed_step(_mapped(replica_step, strategy), strategy, workload)


def one_buffer_kept(strategy: rx.Strategy, workload: Workload) -> Step:
    """The parameters are one buffer, which is cut where the loss is computed."""
    leaves, structure = jax.tree.flatten(workload.parameters())
    sizes = [leaf.size for leaf in leaves]
    count = strategy.num_replicas_in_sync

    def replica_step(buffer: Any, batch: Any) -> Any:
        def loss_of(buffer: Any) -> Any:
            # Behind the barrier the cut is not computed again for each layer, or backwards.
            parts = lax.optimization_barrier(lax.split(buffer, sizes))
            whole = [x.reshape(leaf.shape) for x, leaf in zip(parts, leaves, strict=True)]
            return workload.row_losses(structure.unflatten(whole), {}, batch)[0].mean()

        loss, gradient = jax.value_and_grad(loss_of)(buffer)
        loss, gradient = lax.psum(loss, AXIS) / count, lax.psum(gradient, AXIS) / count
        return workload.updated(buffer, gradient), loss

    buffer = placed(strategy, np.concatenate([leaf.ravel() for leaf in leaves]), WHOLE)
    batch = placed(strategy, workload.batch(), SPLIT)
    return _kept(_mapped(replica_step, strategy), buffer, batch)


def _mapped(replica_step: Callable[..., Any], strategy: rx.Strategy) -> Callable[..., Any]:
    """`state, loss = step(state, batch)` over all replicas, with donated state."""
    mapped = jax.shard_map(
        replica_step,
        mesh=strategy.replica_mesh.mesh,
        in_specs=(WHOLE, SPLIT),
        out_specs=(WHOLE, WHOLE),
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=0)


def _placed_step(run: Callable[..., Any], strategy: rx.Strategy, workload: Workload) -> Step:
    state = placed(strategy, workload.state(), WHOLE)
    return _kept(run, state, placed(strategy, workload.batch(), SPLIT))


def _kept(run: Callable[..., Any], state: Any, batch: Any) -> Step:
    def next_step() -> jax.Array:
        nonlocal state
        state, loss = run(state, batch)
        return loss

    return next_step


def placed(strategy: rx.Strategy, tree: Any, spec: PartitionSpec) -> Any:
    """Arrays on the devices of the replicas, of all processes."""
    sharding = NamedSharding(strategy.replica_mesh.mesh, spec)

    def one(leaf: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__)

    return jax.tree.map(one, tree)


Make = Callable[[rx.Strategy, Workload], Step]

OURS: dict[str, Make] = {
    "functional": functional,
    "variables": variables,
    "functional, packed state": packed_functional,
    "variables, packed state": packed_variables,
    "functional, sparse rows": sparse_rows,
    "variables, sparse rows": sparse_variables,
}
IN_BUCKETS = "by hand, buckets of 4 MB"
BY_HAND: dict[str, Make] = {
    "by hand, an all-reduce a leaf": by_hand(each_alone),
    "by hand, one buffer": by_hand(all_joined),
    IN_BUCKETS: by_hand(in_buckets),
    "by hand, state in one buffer": one_buffer_kept,
    "by hand, automatic sharding": automatic,
    "by hand, sparse rows": rows_by_hand,
}
NEED_A_TABLE = {name for name in (*OURS, *BY_HAND) if name.endswith("sparse rows")}


NEED_MANY_LEAVES = {"by hand, state in one buffer"} | {
    name for name in OURS if name.endswith("packed state")
}


def makers(workload: Workload) -> dict[str, Make]:
    """The contenders that a workload is for."""
    without = set() if workload.losses_by is not None else set(NEED_A_TABLE)
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(workload.state())]
    if sum(sizes) < BUCKET_BYTES:
        without.add(IN_BUCKETS)  # It is one buffer.
    if len(sizes) < MANY_LEAVES or max(sizes) > SMALL_BYTES:
        without |= NEED_MANY_LEAVES
    return {name: make for name, make in {**OURS, **BY_HAND}.items() if name not in without}
