"""What a step costs beside the same step written by hand in jax.

    make bench-parts                  # or: python benchmarks/overhead.py --json figures

The contenders of a table take turns in one process, on two logical CPU devices, with the same
arithmetic (their losses are compared first), the same placement and the same waiting. A ratio is
taken within each round, so that a busy machine slows both sides of it.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from measuring import (
    REPLICAS,
    Comparison,
    Report,
    Step,
    check_losses,
    compare,
    cpu_strategy,
    take_turns,
)

import replicax as rx
from replicax.recording import RECORDER
from replicax.step._one_at_a_time import ONE_AT_A_TIME

# -- the ways to write a step ---------------------------------------------------------------------


def jitted(strategy: rx.MirroredStrategy, step: Callable[..., Any]) -> Callable[..., Any]:
    """A donated `jit(shard_map)` of `state, loss = step(state, batch)`."""
    split, whole = PartitionSpec("replica"), PartitionSpec()
    mapped = jax.shard_map(
        step,
        mesh=strategy.replica_mesh.mesh,
        in_specs=(whole, split),
        out_specs=(whole, whole),
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=0)


def by_hand(
    strategy: rx.MirroredStrategy, step: Callable[..., Any], state: Any, batch: Any
) -> Step:
    """A step of `jitted` on one batch."""
    mesh = strategy.replica_mesh
    run = jitted(strategy, step)
    state = jax.device_put(state, mesh.mirrored)
    batch = jax.device_put(batch, NamedSharding(mesh.mesh, PartitionSpec("replica")))

    def next_step() -> jax.Array:
        nonlocal state
        state, loss = run(state, batch)
        return loss

    return next_step


def functional(
    strategy: rx.MirroredStrategy, step: Callable[..., Any], state: Any, batch: Any
) -> Step:
    """The same as an `rx.function`."""

    @rx.function(donate="state")
    def run(state: Any, batch: Any) -> Any:
        return strategy.run(step, args=(state, batch))

    state = jax.device_put(state, strategy.replica_mesh.mirrored)
    batch = distributed(strategy, batch)

    def next_step() -> jax.Array:
        nonlocal state
        state, loss = run(state, batch)
        return loss

    return next_step


def in_place(strategy: rx.MirroredStrategy, step: Callable[..., Any], batch: Any) -> Step:
    """An `rx.function` of `loss = step(batch)`, whose state is in variables."""
    run = in_place_function(strategy, step)
    batch = distributed(strategy, batch)
    return lambda: run(batch)


def in_place_function(strategy: rx.MirroredStrategy, step: Callable[..., Any]) -> Any:
    """The `rx.function` of such a step."""

    @rx.function
    def run(batch: Any) -> Any:
        return strategy.run(step, args=(batch,))

    return run


def distributed(strategy: rx.MirroredStrategy, batch: Any) -> Any:
    """One global batch, shared out over the replicas."""
    return next(iter(strategy.distribute_dataset([batch])))


def all_reduce_mean(tree: Any) -> Any:
    """What a replica function of replicax calls."""
    return rx.get_replica_context().all_reduce("mean", tree)


def psum_each(tree: Any) -> Any:
    """The mean over the replicas by hand, one collective a leaf."""
    return jax.tree.map(lambda x: jax.lax.psum(x, "replica") / REPLICAS, tree)


# -- many leaves, little arithmetic: what Python costs --------------------------------------------


BATCH = np.linspace(0, 1, 32, dtype=np.float32).reshape(8, 4)


def many_leaves(strategy: rx.MirroredStrategy, count: int) -> dict[str, Step]:
    """Contenders that shift `count` leaves f32[4] by the mean of a batch f32[8, 4]."""
    leaves = {f"leaf{i:03d}": np.ones(4, np.float32) for i in range(count)}
    return {
        "by hand, list": by_hand(strategy, shifted(psum_each), list(leaves.values()), BATCH),
        "by hand, dict": by_hand(strategy, shifted(psum_each), leaves, BATCH),
        "variables": in_place(strategy, shifted_in_place(strategy, count), BATCH),
        "functional": functional(strategy, shifted(all_reduce_mean), leaves, BATCH),
    }


def shifted(mean: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """`state, loss = step(state, batch)`, which shifts all leaves by the mean of the batch."""

    def step(state: Any, batch: Any) -> Any:
        shift = 0.01 * mean(batch.mean(0))
        state = jax.tree.map(lambda leaf: leaf - shift, state)
        return state, jax.tree.leaves(state)[0].sum()

    return step


def shifted_in_place(strategy: rx.MirroredStrategy, count: int) -> Callable[[Any], Any]:
    """`loss = step(batch)`, which does the same to `count` new variables f32[4]."""
    with strategy.scope():
        variables = [rx.Variable(np.ones(4, np.float32), name=f"leaf{i:03d}") for i in range(count)]

    def step(batch: Any) -> Any:
        shift = 0.01 * all_reduce_mean(batch.mean(0))
        for variable in variables:
            variable.assign_sub(shift)
        return variables[0].value.sum()

    return step


def python_cost(strategy: rx.MirroredStrategy, count: int, rounds: int) -> list[Comparison]:
    """CPU time of the calling thread a step, without the wait for the devices."""
    steps = many_leaves(strategy, count)
    check_losses(steps)
    bursts = max(12, 600 // count)  # Long enough for moments without other work on the machine.
    seconds = take_turns(steps, rounds=rounds, bursts=bursts, clock=time.thread_time, wait=False)
    limit: dict[str, Any] = {10: {"max_more": 15.0}, 400: {"max_ratio": 1.15}}.get(count, {})
    return [
        compare(seconds, "variables", "by hand, list", "us", **limit),
        compare(seconds, "functional", "by hand, dict", "us", **limit),
        compare(seconds, "by hand, dict", "by hand, list", "us"),
    ]


def recorded(step: Step) -> Step:
    """A step with the lines around it that enter a step into the flight recorder."""
    keep, clock = RECORDER.keep, time.monotonic_ns
    subject = RECORDER.subject("step", "a step", "here", is_awaited=False)

    def next_step() -> jax.Array:
        entry = [subject, clock(), 0, None, None]
        keep(entry)
        loss = step()
        entry[3] = number = subject.runs
        subject.runs = number + 1
        entry[2] = clock()
        return loss

    return next_step


def locked(step: Step) -> Step:
    """A step under the lock of those that start programs."""

    def next_step() -> jax.Array:
        with ONE_AT_A_TIME:
            return step()

    return next_step


def called(step: Step) -> Step:
    """A step with as many Python calls as one of the others."""
    return lambda: step()  # noqa: PLW0108 - the call is what this is for


def step_in_parts(strategy: rx.MirroredStrategy, rounds: int, count: int = 10) -> list[Comparison]:
    """CPU time of the calling thread a step: each contender has one part more than the last.

    What costs more when it stands between other parts is in the part that follows.
    """
    leaves = [np.ones(4, np.float32)] * count
    hands = [by_hand(strategy, shifted(psum_each), leaves, BATCH) for _ in range(3)]
    batch = distributed(strategy, BATCH)
    programs = []
    for _ in range(3):
        run = in_place_function(strategy, shifted_in_place(strategy, count))
        run(batch)
        programs.append(run._latest)  # What the steps after the first go to.
    start, cell = programs[0]._call, programs[0]._cell
    path, whole = programs[1], programs[2].function

    def compiled() -> jax.Array:
        cell.arrays, loss, _ = start(cell.arrays, batch)
        return loss

    steps: dict[str, Step] = {
        "by hand, array": hands[0],
        "its program": compiled,
        "its path": lambda: path.step((batch,), {}),
        "rx.function": lambda: whole(batch),
        "a call": called(hands[0]),
        "recorded": recorded(hands[1]),
        "locked": locked(hands[2]),
    }
    check_losses({name: steps[name] for name in ("a call", "recorded", "locked")})
    for name in ("its program", "its path", "rx.function"):
        steps[name]().block_until_ready()
    seconds = take_turns(steps, rounds=rounds, bursts=60, clock=time.thread_time, wait=False)
    return [
        compare(seconds, "rx.function", "by hand, array", "us", max_more=15.0),
        compare(seconds, "its program", "by hand, array", "us"),
        compare(seconds, "its path", "its program", "us"),
        compare(seconds, "rx.function", "its path", "us"),
        compare(seconds, "recorded", "a call", "us", max_more=2.0),
        compare(seconds, "locked", "a call", "us"),
    ]


# -- a small network: what a step takes -----------------------------------------------------------


def dense_layers(sizes: list[int]) -> dict[str, np.ndarray[Any, Any]]:
    """Weights f32[n, m] and biases f32[m] of dense layers."""
    rng = np.random.default_rng(0)
    layers = {}
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        layers[f"w{i:03d}"] = (rng.normal(size=(n, m)) / np.sqrt(n)).astype(np.float32)
        layers[f"b{i:03d}"] = np.zeros(m, np.float32)
    return layers


def row_losses(layers: dict[str, Any], batch: Any) -> jax.Array:
    """Cross-entropy of each row, f32[B]."""
    hidden, labels = batch
    last = len(layers) // 2 - 1
    for i in range(last + 1):
        hidden = hidden @ layers[f"w{i:03d}"] + layers[f"b{i:03d}"]
        hidden = jax.nn.relu(hidden) if i < last else hidden
    return -jnp.take_along_axis(jax.nn.log_softmax(hidden), labels[:, None], axis=1)[:, 0]


def sgd(layers: dict[str, Any], gradients: dict[str, Any]) -> dict[str, Any]:
    """One step of gradient descent."""
    return jax.tree.map(lambda w, g: w - 0.05 * g, layers, gradients)


def packed_mean(tree: Any) -> Any:
    """The mean over the replicas by hand, leaves up to 16 KiB in one collective."""
    leaves, structure = jax.tree.flatten(tree)
    small = [i for i, leaf in enumerate(leaves) if leaf.nbytes <= 16 * 1024]
    members = jax.lax.optimization_barrier([leaves[i] for i in small])
    joined = jnp.concatenate([leaf.ravel() for leaf in members])
    ends = np.cumsum([leaf.size for leaf in members])[:-1]
    parts = jnp.split(psum_each(joined), ends)
    totals = [leaf if i in small else psum_each(leaf) for i, leaf in enumerate(leaves)]
    for i, part in zip(small, parts, strict=True):
        totals[i] = part.reshape(leaves[i].shape)
    return structure.unflatten(totals)


def network(strategy: rx.MirroredStrategy, sizes: list[int], rows: int) -> dict[str, Step]:
    """Contenders that train dense layers on one batch of `rows` rows."""
    rng = np.random.default_rng(1)
    batch = (
        rng.normal(size=(rows, sizes[0])).astype(np.float32),
        rng.integers(sizes[-1], size=rows).astype(np.int32),
    )
    layers = dense_layers(sizes)
    with strategy.scope():
        variables = {name: rx.Variable(value, name=name) for name, value in layers.items()}

    def written(mean: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        def step(layers: Any, batch: Any) -> Any:
            def loss_fn(layers: Any) -> Any:
                return row_losses(layers, batch).mean()

            loss, gradients = jax.value_and_grad(loss_fn)(layers)
            return sgd(layers, mean(gradients)), psum_each(loss)

        return step

    def global_loss(layers: Any, batch: Any) -> Any:
        return rx.get_replica_context().global_mean(row_losses(layers, batch))

    def with_state(layers: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(global_loss)(layers, batch)
        return sgd(layers, all_reduce_mean(gradients)), loss

    def in_variables(batch: Any) -> Any:
        layers = {name: variable.value for name, variable in variables.items()}
        loss, gradients = jax.value_and_grad(global_loss)(layers, batch)
        for name, value in sgd(layers, all_reduce_mean(gradients)).items():
            variables[name].assign(value)
        return loss

    return {
        "by hand, a psum a leaf": by_hand(strategy, written(psum_each), layers, batch),
        "by hand, small packed": by_hand(strategy, written(packed_mean), layers, batch),
        "variables": in_place(strategy, in_variables, batch),
        "functional": functional(strategy, with_state, layers, batch),
    }


def step_time(strategy: rx.MirroredStrategy, rounds: int) -> list[Comparison]:
    """Wall time of a step of an MLP 784-512-512-10 with batch 256, the wait included."""
    steps = network(strategy, [784, 512, 512, 10], 256)
    check_losses(steps)
    seconds = take_turns(steps, rounds=rounds, bursts=3, clock=time.perf_counter, wait=True)
    hands = [name for name in steps if name.startswith("by hand")]
    best = min(hands, key=lambda name: statistics.median(seconds[name]))
    return [
        compare(seconds, what, hand, "ms", max_ratio=1.03 if hand == best else None)
        for what in ("variables", "functional")
        for hand in hands
    ]


# -- before the first step ------------------------------------------------------------------------


def import_time(rounds: int) -> list[Comparison]:
    """CPU seconds of an import in a fresh interpreter, with compiled bytecode at hand."""
    names = {"import replicax": "replicax", "import jax": "jax"}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as bytecode:
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        for number in range(rounds + 1):
            for name, module in names.items():
                code = f"import time; t = time.process_time(); import {module}; "
                code += "print(time.process_time() - t)"
                child = [sys.executable, "-c", code]
                out = subprocess.run(child, env=environment, capture_output=True, check=True)  # noqa: S603 - the code stands above
                if number:
                    seconds[name].append(float(out.stdout))
    return [compare(seconds, "import replicax", "import jax", "s", max_more=0.3)]


def trace_time(strategy: rx.MirroredStrategy, rounds: int) -> list[Comparison]:
    """Seconds to trace and prove 200 dense layers 32x32, beside the trace by jax."""
    sizes = [32] * 201
    layers = dense_layers(sizes)
    batch = (np.ones((64, 32), np.float32), np.zeros(64, np.int32))
    mesh = strategy.replica_mesh
    rows = distributed(strategy, batch)

    def written(mean: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        def step(layers: Any, batch: Any) -> Any:
            gradients = jax.grad(lambda layers: row_losses(layers, batch).mean())(layers)
            return sgd(layers, mean(gradients))

        return step

    def trace_plain() -> None:
        mapped = jax.shard_map(
            written(psum_each),
            mesh=mesh.mesh,
            in_specs=(PartitionSpec(), PartitionSpec("replica")),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        jax.jit(mapped).trace(layers, batch)

    def trace_proved() -> None:
        replica_step = written(all_reduce_mean)
        step = rx.function(lambda layers, batch: strategy.run(replica_step, args=(layers, batch)))
        step.requested_collectives(layers, rows)

    traces = {"trace and proof": trace_proved, "trace by jax": trace_plain}
    seconds: dict[str, list[float]] = {name: [] for name in traces}
    for number in range(rounds + 1):
        for name, trace in traces.items():
            start = time.thread_time()
            trace()
            if number:
                seconds[name].append(time.thread_time() - start)
    return [compare(seconds, "trace and proof", "trace by jax", "s")]


# -- the report -----------------------------------------------------------------------------------


def main() -> None:
    """Measure everything, print the tables, and write them where asked."""
    report = Report("overhead", __doc__.splitlines()[0])
    strategy = cpu_strategy()
    for count in (10, 100, 400):
        title = f"CPU time of the calling thread a step, {count} leaves"
        report.add(title, python_cost(strategy, count, report.rounds))
    title = "CPU time of the calling thread a step, 10 leaves: the parts"
    report.add(title, step_in_parts(strategy, report.rounds))
    title = "Wall time a step, MLP 784-512-512-10, batch 256"
    report.add(title, step_time(strategy, report.rounds))
    title = "CPU time of a trace, 200 dense layers with gradients (400 leaves)"
    report.add(title, trace_time(strategy, 3))
    report.add("CPU time of the import in a fresh interpreter", import_time(5))
    report.write()


if __name__ == "__main__":
    main()
