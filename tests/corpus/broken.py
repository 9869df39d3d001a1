"""Broken training steps: each must be refused, naming what differs and where.

An entry is a function that makes a step and its arguments from a `World`. Lines marked with
`# fault` must stand in the message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import replicax as rx
from replicax import errors

MARK = "# fault"
REPLICAS = 4
LAYERS = [f"layer{i}" for i in range(10)]


class Table(NamedTuple):
    x: Any  # f32[B, 3]
    y: Any  # f32[B]


class World:
    """What the steps work with: four replicas, some variables, batches."""

    def __init__(self):
        self.strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(REPLICAS)])
        with self.strategy.scope():
            self.w = rx.Variable(jnp.linspace(-1, 1, 3), name="w")
            self.loss = rx.Variable(0.0, name="loss")
            self.layers = {name: rx.Variable(jnp.full(3, 0.1), name=name) for name in LAYERS}
            self.total = rx.Variable(0.0, name="total", aggregation="sum")
        rng = np.random.default_rng(5)
        x = rng.normal(size=(8, 3)).astype(np.float32)
        self.rows = Table(x, x.sum(-1))
        self.batch, self.padded = self.strategy.distribute_dataset(
            [self.rows, jax.tree.map(lambda leaf: leaf[:7], self.rows)]
        )

    def variables(self) -> list[rx.Variable]:
        return [self.w, self.loss, self.total, *self.layers.values()]

    def run(self, replica_step: Callable[..., Any]) -> Callable[..., Any]:
        """The step that runs a replica function."""

        def step(*args):
            return self.strategy.run(replica_step, args=args)

        return step

    def state(self) -> dict[str, jax.Array]:
        return {name: jnp.full(3, 0.1) for name in LAYERS}


def per_row(w, batch):
    return (batch.x @ w - batch.y) ** 2


def layered(params, batch):
    return per_row(sum(params.values()), batch)


def local_gradient(loss, params):
    """The gradient of this replica's share, not reduced."""
    ctx = rx.get_replica_context()
    return jax.grad(lambda p: ctx.global_mean(loss(p)))(params)


@dataclass(frozen=True)
class Entry:
    """One broken step.

    Attributes:
        name: Name of the function.
        make: `world -> (step, arguments)`.
        error: Class of the error.
        says: What the message says.
        silent: What the message must not say.
        eager: Whether the eager runner finds it too, with the same error.
        donate: For `rx.function`.
    """

    name: str
    make: Callable[[World], tuple[Callable[..., Any], tuple[Any, ...]]]
    error: type[Exception]
    says: tuple[str, ...]
    silent: tuple[str, ...]
    eager: bool
    donate: tuple[int, ...]

    def fault_lines(self) -> list[str]:
        """The marked lines as messages name them."""
        source, first = inspect.getsourcelines(self.make)
        return [f"broken.py:{first + i} in " for i, line in enumerate(source) if MARK in line]


ENTRIES: list[Entry] = []


def broken(
    error: type[Exception],
    *says: str,
    silent: tuple[str, ...] = (),
    eager: bool = False,
    donate: tuple[int, ...] = (),
) -> Callable[[Any], Any]:
    """Put a step on the list."""

    def note(make):
        ENTRIES.append(Entry(make.__name__, make, error, says, silent, eager, donate))
        return make

    return note


# --- gradients that were not all-reduced ---------------------------------------------------------


@broken(errors.VaryingWriteError, "variable `w`", "argument `batch.x`", eager=True)
def forgotten_all_reduce(world):
    def replica_step(batch):
        grad = local_gradient(lambda w: per_row(w, batch), world.w.value)
        world.w.assign_sub(0.1 * grad)  # fault

    return world.run(replica_step), (world.batch,)


@broken(
    errors.VaryingWriteError, "State `w`", "`step`", "result[0]", "argument `batch.x`", donate=(0,)
)
def forgotten_all_reduce_of_state(world):
    def replica_step(params, batch):
        grad = local_gradient(lambda w: per_row(w, batch), params["kernel"])
        return {"kernel": params["kernel"] - 0.1 * grad}, jnp.sum(batch.y)

    def step(w, batch):
        return world.strategy.run(replica_step, args=(w, batch))

    return step, ({"kernel": jnp.ones(3)}, world.batch)


@broken(
    errors.VaryingWriteError, "variable `layer7`", silent=("layer6", "layer8", "layer0"), eager=True
)
def half_reduced_tree(world):
    """One of ten leaves was left out."""

    def replica_step(batch):
        ctx = rx.get_replica_context()
        params = {name: variable.value for name, variable in world.layers.items()}
        grads = local_gradient(lambda p: layered(p, batch), params)
        reduced = ctx.all_reduce("mean", {k: g for k, g in grads.items() if k != "layer7"})
        for name, grad in {**grads, **reduced}.items():
            world.layers[name].assign_sub(0.1 * grad)  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "params['layer7']", silent=("layer6", "layer8"), donate=(0,))
def half_reduced_tree_of_state(world):
    def replica_step(params, batch):
        ctx = rx.get_replica_context()
        grads = local_gradient(lambda p: layered(p, batch), params)
        reduced = ctx.all_reduce("mean", {k: g for k, g in grads.items() if k != "layer7"})
        grads = {**grads, **reduced}
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), None

    def step(params, batch):
        return world.strategy.run(replica_step, args=(params, batch))

    return step, (world.state(), world.batch)


@broken(
    errors.VaryingWriteError, "state[1][0].mu['layer3']", "state[1][0].nu", silent=("state[0]",)
)
def optimizer_state_forgotten(world):
    """Weights get reduced updates, but the moments are updated with local gradients."""
    tx = optax.adam(0.1)

    def replica_step(state, batch):
        params, slots = state
        grads = local_gradient(lambda p: layered(p, batch), params)
        updates, _ = tx.update(rx.get_replica_context().all_reduce("mean", grads), slots)
        _, slots = tx.update(grads, slots)
        return (optax.apply_updates(params, updates), slots), 0.0

    def step(state, batch):
        return world.strategy.run(replica_step, args=(state, batch))

    return step, ((world.state(), tx.init(world.state())), world.batch)


@broken(errors.VaryingWriteError, "State `state`", "result[1]", "state['w']", donate=(0,))
def donated_state_in_another_place(world):
    def replica_step(state, batch):
        return jnp.sum(batch.y), {"w": state["w"] - batch.x.mean(0)}

    def step(state, batch):
        return world.strategy.run(replica_step, args=(state, batch))

    return step, ({"w": jnp.ones(3)}, world.batch)


@broken(errors.VaryingWriteError, "State `state`", "result[0]", "state[1]", silent=("state[0]",))
def state_told_by_its_place(world):
    """Nothing is donated: a tuple of the form of the first argument comes back first."""

    def replica_step(state, batch):
        w, loss = state
        grad = local_gradient(lambda w: per_row(w, batch), w)
        w = w - 0.1 * rx.get_replica_context().all_reduce("mean", grad)
        return (w, loss + jnp.mean(per_row(w, batch))), None

    def step(state, batch):
        return world.strategy.run(replica_step, args=(state, batch))

    return step, ((jnp.ones(3), jnp.zeros(())), world.batch)


# --- other varying values in mirrored variables --------------------------------------------------


@broken(errors.VaryingWriteError, "variable `w`", "argument `batch.x`", eager=True)
def local_statistics(world):
    def replica_step(batch):
        world.w.assign(0.9 * world.w.value + 0.1 * batch.x.mean(0))  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "variable `w`", "argument `batch.x`", eager=True)
def value_out_of_a_scan(world):
    """The carry starts mirrored and varies from its second round on."""

    def replica_step(batch):
        def body(carry, row):
            _, second = carry
            return (second, second + row), None

        (value, _), _ = lax.scan(body, (world.w.value, world.w.value), batch.x)
        world.w.assign(value)  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "variable `w`", "argument `batch.x`", eager=True)
def value_out_of_a_branch(world):
    """The condition is mirrored; one of the branches is not."""

    def replica_step(batch):
        now = world.w.value
        value = lax.cond(now[2] > 0, lambda: now + batch.x[0], lambda: now)
        world.w.assign(value)  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "variable `w`", "the replica id", eager=True)
def value_of_a_varying_branch(world):
    """Both branches are mirrored; the condition is not."""

    def replica_step(_batch):
        now = world.w.value
        is_first = rx.get_replica_context().replica_id_in_sync_group == 0  # fault
        world.w.assign(lax.cond(is_first, lambda: now + 1, lambda: now))  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "variable `loss`", "argument `batch.y`", eager=True)
def rounds_of_a_while_loop(world):
    """What goes round is mirrored, but replicas stop at different rounds."""

    def replica_step(batch):
        limit = jnp.abs(batch.y[0])
        rounds = lax.while_loop(lambda n: n < 10 * limit, lambda n: n + 1, jnp.float32(0))
        world.loss.assign(rounds)  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "variable `loss`", eager=True)
def result_of_remat_and_jit(world):
    def replica_step(batch):
        @jax.jit
        def mean(w):
            return jax.checkpoint(lambda w: jnp.mean(per_row(w, batch)))(w)

        world.loss.assign(mean(world.w.value))  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "`w.assign`", "PerReplica", "cross-replica context", eager=True)
def assigned_inside_a_merge_call(world):
    def replica_step(batch):
        def update(_strategy, value):
            world.w.assign(value)

        rx.get_replica_context().merge_call(update, args=(batch.x[0],))

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "variable `w`", "argument `batch.x`", eager=True)
def brought_back_by_a_merge_call(world):
    def replica_step(batch):
        ctx = rx.get_replica_context()
        value = ctx.merge_call(lambda _strategy, value: value, args=(batch.x[0],))
        world.w.assign(value)  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "`w.assign_add`", "PerReplica", "strategy.reduce", eager=True)
def assigned_across_replicas(world):
    def step(batch):
        world.w.assign_add(world.strategy.run(lambda batch: batch.x[0], args=(batch,)))

    return step, (world.batch,)


@broken(errors.VaryingWriteError, "variable `loss`", "argument `batch.x`", eager=True)
def written_in_the_loss(world):
    """`rx.value_and_grad` carries the write out, with its line."""

    def replica_step(batch):
        ctx = rx.get_replica_context()

        def loss():
            values = per_row(world.w.value, batch)
            world.loss.assign(values.mean())  # fault
            return ctx.global_mean(values)

        _, (grad,) = rx.value_and_grad(loss, [world.w])()
        world.w.assign_sub(0.1 * ctx.all_reduce("mean", grad))

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "variable `w`", "the replica id", eager=True)
def weights_from_a_key_of_each_replica(world):
    def replica_step(_batch):
        replica = rx.get_replica_context().replica_id_in_sync_group  # fault
        key = jax.random.fold_in(jax.random.key(0), replica)
        world.w.assign(jax.random.normal(key, (3,)))  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "State `state`", "state['w']", "the replica id", donate=(0,))
def state_with_noise_of_each_replica(world):
    def replica_step(state, _batch):
        key, now = jax.random.split(state["key"])
        replica = rx.get_replica_context().replica_id_in_sync_group  # fault
        noise = jax.random.normal(jax.random.fold_in(now, replica), (3,))
        return {"w": state["w"] + noise, "key": key}, None

    def step(state, batch):
        return world.strategy.run(replica_step, args=(state, batch))

    return step, ({"w": jnp.ones(3), "key": jax.random.key(0)}, world.batch)


@broken(errors.VaryingWriteError, "variable `loss`", "host callback", eager=True)
def answer_of_a_host_callback(world):
    answers = iter(range(100))

    def replica_step(_batch):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        answer = jax.experimental.io_callback(lambda: np.float32(next(answers)), shape)  # fault
        world.loss.assign(answer)  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "variable `w`", "argument `center`", eager=True)
def mirrored_argument_passed_as_per_replica(world):
    def replica_step(center, batch):
        grad = local_gradient(lambda w: per_row(w, batch), center)
        new = center - 0.1 * rx.get_replica_context().all_reduce("mean", grad)
        world.w.assign(new)  # fault

    center = world.strategy.distribute_values_from_function(
        lambda ctx: jnp.ones(3) + 1e-6 * ctx.replica_id_in_sync_group
    )
    return world.run(replica_step), (center, world.batch)


@broken(errors.VaryingWriteError, "variable `loss`", "reduce_scatter", eager=True)
def part_that_was_not_gathered(world):
    def replica_step(batch):
        ctx = rx.get_replica_context()
        part = ctx.reduce_scatter("sum", jnp.arange(4.0) * batch.y.sum())  # fault
        world.loss.assign(part[0])  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingWriteError, "variable `loss`", "ppermute")
def value_of_the_neighbour(world):
    def replica_step(batch):
        ring = [(i, (i + 1) % REPLICAS) for i in range(REPLICAS)]
        value = lax.ppermute(batch.y.sum(), "replica", ring)  # fault
        world.loss.assign(value)  # fault

    return world.run(replica_step), (world.batch,)


# --- collectives under control flow that varies --------------------------------------------------


@broken(errors.VaryingControlFlowError, "`psum`", "`cond`", "the replica id")
def collective_in_a_branch_on_the_replica_id(world):
    def replica_step(batch):
        ctx = rx.get_replica_context()
        is_first = ctx.replica_id_in_sync_group == 0  # fault
        return lax.cond(  # fault
            is_first,
            lambda: ctx.all_reduce("sum", batch.y.sum()),  # fault
            batch.y.sum,
        )

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingControlFlowError, "`all_gather`", "`cond`", "argument `batch.y`")
def collective_in_a_switch_on_the_data(world):
    def replica_step(batch):
        ctx = rx.get_replica_context()

        def gathered():
            return ctx.all_gather(batch.y, axis=0).sum()  # fault

        which = (batch.y[0] > 0).astype(jnp.int32) + (batch.y[1] > 0)
        return lax.switch(which, [jnp.zeros_like(batch.y).sum, gathered, gathered])  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingControlFlowError, "`psum`", "`while`", "argument `batch.y`")
def collective_in_a_loop_until_the_own_data_converge(world):
    def replica_step(batch):
        ctx = rx.get_replica_context()

        def body(y):
            return y / 2 + 0 * ctx.all_reduce("mean", y)  # fault

        return lax.while_loop(lambda y: jnp.abs(y).max() > 0.1, body, batch.y)  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingControlFlowError, "`psum`", "`while`", "the replica id")
def collective_in_the_condition_of_a_loop(world):
    def replica_step(_batch):
        ctx = rx.get_replica_context()
        start = jnp.float32(ctx.replica_id_in_sync_group)  # fault

        def unfinished(n):
            return n + ctx.all_reduce("sum", n) * 0 < 3  # fault

        # The condition reads the own number, so replicas ask it different numbers of times.
        return lax.while_loop(unfinished, lambda n: n + 1, start)  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingControlFlowError, "`psum`", "`cond`", "argument `batch.y`")
def collective_in_a_scan_in_a_branch(world):
    def replica_step(batch):
        ctx = rx.get_replica_context()

        def body(total, y):
            return total + ctx.all_reduce("sum", y), None  # fault

        def looped():
            return lax.scan(body, jnp.float32(0), batch.y)[0]

        return lax.cond(batch.y[0] > 0, looped, lambda: jnp.float32(0))  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingControlFlowError, "`psum`", "`cond`")
def gradient_reduced_in_a_branch_in_a_scan(world):
    """The condition becomes varying only in the second round."""

    def replica_step(batch):
        ctx = rx.get_replica_context()

        def body(carry, row):
            w, skip = carry

            def reduced():
                return ctx.all_reduce("mean", row)  # fault

            step = lax.cond(skip, lambda: jnp.zeros(3), reduced)  # fault
            return (w - 0.1 * step, row[0] > 0), None

        start = (world.w.value, jnp.bool_(False))
        (w, _), _ = lax.scan(body, start, batch.x)
        return ctx.all_reduce("mean", w)

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingControlFlowError, "`psum`", "`cond`", "argument `batch.y`")
def merge_call_in_a_branch(world):
    def replica_step(batch):
        ctx = rx.get_replica_context()

        def merged():
            return ctx.merge_call(
                lambda strategy, y: strategy.reduce("sum", y, axis=None),  # fault
                args=(batch.y.sum(),),
            )

        return lax.cond(batch.y[0] > 0, merged, lambda: jnp.float32(0))  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingControlFlowError, "Python branched", "`replica_step`", "lax.cond")
def python_branch_on_the_replica_id(world):
    def replica_step(batch):
        ctx = rx.get_replica_context()
        if ctx.replica_id_in_sync_group == 0:  # fault
            return ctx.all_reduce("sum", batch.y.sum())
        return batch.y.sum()

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingControlFlowError, "Python branched", "`replica_step`", "jnp.where")
def python_branch_on_the_data(world):
    def replica_step(batch):
        ctx = rx.get_replica_context()

        def loss(w):
            values = per_row(w, batch)
            return ctx.global_mean(values if values.max() < 1 else jnp.sqrt(values))  # fault

        world.w.assign_sub(ctx.all_reduce("mean", jax.grad(loss)(world.w.value)))

    return world.run(replica_step), (world.batch,)


@broken(errors.VaryingControlFlowError, "Python branched", "`replica_step`")
def python_loop_until_the_data_converge(world):
    def replica_step(batch):
        y = batch.y
        while jnp.abs(y).max() > 0.1:  # fault
            y = y / 2
        return y

    return world.run(replica_step), (world.batch,)


# --- writes inside transformed functions ---------------------------------------------------------


@broken(errors.ContextError, "Variable `w`", "lax.scan", "assign it outside")
def written_inside_a_scan(world):
    def replica_step(batch):
        def body(carry, row):
            world.w.assign_add(row)  # fault
            return carry, None

        lax.scan(body, 0.0, batch.x)

    return world.run(replica_step), (world.batch,)


@broken(errors.ContextError, "Variable `loss`", "jax.grad", "rx.value_and_grad")
def written_inside_a_gradient(world):
    def replica_step(batch):
        ctx = rx.get_replica_context()

        def loss(w):
            value = ctx.global_mean(per_row(w, batch))
            world.loss.assign(value)  # fault
            return value

        jax.grad(loss)(world.w.value)

    return world.run(replica_step), (world.batch,)


@broken(errors.ContextError, "Variable `w`", "jax.jit")
def written_inside_jit(world):
    def replica_step(batch):
        jax.jit(world.w.assign)(rx.get_replica_context().global_mean(batch.x))  # fault

    return world.run(replica_step), (world.batch,)


@broken(errors.ContextError, "Variable `w`", "lax.cond")
def written_inside_a_branch(world):
    def replica_step(batch):
        mean = rx.get_replica_context().global_mean(batch.x)

        def update():
            world.w.assign(mean)  # fault

        lax.cond(mean[0] > 0, update, lambda: None)

    return world.run(replica_step), (world.batch,)


@broken(errors.ContextError, "Variable `total`", "jax.vmap")
def added_to_an_aggregate_inside_vmap(world):
    def replica_step(batch):
        def one_row(y):
            world.total.assign_add(y)  # fault
            return y

        jax.vmap(one_row)(batch.y)

    return world.run(replica_step), (world.batch,)


# --- what cannot be proved -----------------------------------------------------------------------


@broken(errors.UnprovenError, "leaked tracer", "return the value")
def leaked_tracer(world):
    def replica_step(batch):
        kept = []

        def body(total, y):
            kept.append(total + y)
            return total + y, None

        lax.scan(body, 0.0, batch.y)
        return rx.get_replica_context().all_reduce("sum", kept[0] * 2)  # fault

    return world.run(replica_step), (world.batch,)


# --- rows ----------------------------------------------------------------------------------------


@broken(errors.InvalidArgumentError, "`global_mean`", "scalar", "per-row", eager=True)
def scalar_loss_for_global_mean(world):
    def replica_step(batch):
        return rx.get_replica_context().global_mean(jnp.mean(per_row(world.w.value, batch)))

    return world.run(replica_step), (world.batch,)


@broken(errors.UnusedMaskError, "argument `batch.x`", "variable `w`", "ctx.global_mean")
def padding_in_a_gradient(world):
    def replica_step(batch):
        grad = jax.grad(lambda w: jnp.mean(per_row(w, batch)))(world.w.value)
        world.w.assign_sub(0.1 * rx.get_replica_context().all_reduce("mean", grad))

    return world.run(replica_step), (world.padded,)


@broken(errors.UnusedMaskError, "argument `batch.x`", "result", "remainder='drop'")
def padding_in_a_returned_mean(world):
    def replica_step(batch):
        return jnp.mean(per_row(world.w.value, batch))

    return world.run(replica_step), (world.padded,)
