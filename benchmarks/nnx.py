"""What a step on Flax NNX modules costs in Python, beside the same step written by hand.

    python benchmarks/nnx.py          # needs: pip install 'replicax[flax,examples]'

One contender uses the module and its optimizer in place, as a program with `rx.nnx.adopt` does.
The other is the fastest that we know by hand: the leaves of both as one donated list, merged into
a module inside `jit(shard_map)`, and never put back into the modules. Both take turns in one
process, on two logical CPU devices.
"""

from __future__ import annotations

import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from measuring import REPLICAS, Report, Step, compare, cpu_strategy, take_turns

import replicax as rx

SIZES = (4, 12, 50)
"""Parameters of the module; each has a slot in the optimizer."""


class Gains(nnx.Module):
    """Many small parameters: little arithmetic, much bookkeeping."""

    def __init__(self, count: int) -> None:
        """Start from ones."""
        self.gains = nnx.List([nnx.Param(jnp.ones(8)) for _ in range(count)])

    def __call__(self, x: jax.Array) -> jax.Array:
        """f32[B, 8] to f32[B]."""
        return jnp.mean(x * sum(gain[...] for gain in self.gains) / len(self.gains), axis=-1)


def made(count: int) -> tuple[Gains, nnx.Optimizer[Gains]]:
    """A module and its optimizer."""
    module = Gains(count)
    return module, nnx.Optimizer(module, optax.sgd(1e-3, momentum=0.9), wrt=nnx.Param)


def loss_of(module: Gains, x: jax.Array) -> jax.Array:
    """f32[], of one replica's rows."""
    return jnp.mean((module(x) - 2.0) ** 2)


def in_place(strategy: rx.MirroredStrategy, count: int, x: np.ndarray) -> Step:
    """The module and its optimizer used from outside of the step."""
    with strategy.scope():
        module, optimizer = rx.nnx.adopt(*made(count))

    def replica_step(x: jax.Array) -> jax.Array:
        ctx = rx.get_replica_context()
        loss, gradients = nnx.value_and_grad(loss_of)(module, x)
        optimizer.update(module, ctx.all_reduce("mean", gradients))
        return ctx.all_reduce("mean", loss)

    @rx.function
    def step(batch: Any) -> Any:
        return strategy.run(replica_step, args=(batch,))

    batch = next(iter(strategy.distribute_dataset([x])))
    return lambda: step(batch)


def by_hand(strategy: rx.MirroredStrategy, count: int, x: np.ndarray) -> tuple[Step, int]:
    """The leaves as one donated list, and how many there are."""
    mesh = strategy.replica_mesh
    structure, state = nnx.split(made(count))
    leaves, form = jax.tree.flatten(state)
    leaves = jax.device_put(leaves, mesh.mirrored)

    def replica_step(leaves: list[jax.Array], x: jax.Array) -> Any:
        module, optimizer = nnx.merge(structure, form.unflatten(leaves))
        loss, gradients = nnx.value_and_grad(loss_of)(module, x)
        flat, kind = jax.tree.flatten(gradients)
        total = jax.lax.psum(jnp.concatenate([g.ravel() for g in flat]), "replica") / REPLICAS
        parts = [p.reshape(g.shape) for p, g in zip(jnp.split(total, len(flat)), flat, strict=True)]
        optimizer.update(module, kind.unflatten(parts))
        return jax.tree.leaves(nnx.state((module, optimizer))), jax.lax.pmean(loss, "replica")

    split, whole = PartitionSpec("replica"), PartitionSpec()
    mapped = jax.shard_map(
        replica_step,
        mesh=mesh.mesh,
        in_specs=(whole, split),
        out_specs=(whole, whole),
        check_vma=False,
    )
    run = jax.jit(mapped, donate_argnums=0)
    batch = jax.device_put(x, NamedSharding(mesh.mesh, split))
    count = len(leaves)

    def next_step() -> jax.Array:
        nonlocal leaves
        leaves, loss = run(leaves, batch)
        return loss

    return next_step, count


def main() -> None:
    """Measure, print, and write figures where that was asked for."""
    report = Report("nnx", main.__doc__ or "")
    strategy = cpu_strategy()
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    rows = []
    for count in SIZES:
        hand, leaves = by_hand(strategy, count, x)
        steps = {"rx.nnx": in_place(strategy, count, x), "by hand": hand}
        losses = {name: [float(step()) for _ in range(20)][-1] for name, step in steps.items()}
        if max(losses.values()) - min(losses.values()) > 1e-5:
            raise SystemExit(f"The losses after 20 steps differ: {losses}")
        seconds = take_turns(
            steps, rounds=report.rounds, bursts=8, clock=time.thread_time, wait=False
        )
        names = {name: f"{name}, {leaves} leaves" for name in steps}
        seconds = {names[name]: values for name, values in seconds.items()}
        limit = 1.5 if leaves >= 100 else None
        rows.append(compare(seconds, *names.values(), "us", max_ratio=limit))
    report.add("CPU time of the calling thread", rows)
    load = os.getloadavg()[0]
    report.console.print(f"Load average {load:.1f} on {os.cpu_count()} cores.")
    report.write()


if __name__ == "__main__":
    main()
