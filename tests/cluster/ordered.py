"""A training whose workers go apart: `FAULT` says what worker 1 does in another way at step 5."""

from __future__ import annotations

import os
import time

import jax.numpy as jnp

import replicax as rx
from replicax import cluster

STEPS = 8
APART = 5


def programs(strategy, w):
    """Two steps that reduce arrays of different shapes: swapped, they would abort Gloo."""

    @rx.function
    def step(rate):
        def replica_step():
            w.assign_add(rate * rx.get_replica_context().all_reduce("mean", w.value + 1))

        strategy.run(replica_step)

    @rx.function
    def large():
        return strategy.run(
            lambda: rx.get_replica_context().all_reduce("sum", jnp.broadcast_to(w.value, (400, 2)))
        )

    return step, large


def usual(step, large):
    step(0.5)
    large()


def other(fault, step, large):
    """What worker 1 does instead."""
    if fault == "swap":
        large()
        step(0.5)
    elif fault == "skip":
        large()
    elif fault == "more":
        usual(step, large)
        large()
    elif fault == "number":
        step(0.25)
        large()
    elif fault == "meet":
        cluster.gather("something", 0)
        usual(step, large)
    elif fault == "stall":
        time.sleep(20)


def work(runtime, say):
    fault = os.environ["FAULT"] if runtime.rank == 1 else ""
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w = rx.Variable(jnp.zeros(2), name="w")
    step, large = programs(strategy, w)
    for number in range(STEPS):
        runtime.progress(number)
        if number != APART or not fault:
            usual(step, large)
            continue
        say(event="fault")
        if fault == "leave":
            return
        other(fault, step, large)
    if "CHECKPOINT" in os.environ:
        rx.checkpoint.Checkpoint(w=w).save(os.environ["CHECKPOINT"])
    cluster.agree("the end", {})
    time.sleep(2)  # A worker that has nothing more to do raises, too.
