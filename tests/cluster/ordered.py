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
    """A step with a collective, and one without."""

    @rx.function
    def step(rate):
        def replica_step():
            w.assign_add(rate * rx.get_replica_context().all_reduce("mean", w.value + 1))

        strategy.run(replica_step)

    @rx.function
    def local():
        return strategy.run(lambda: 2 * w.value)

    return step, local


def usual(step, local):
    step(0.5)
    local()


def other(fault, step, local):
    """What worker 1 does instead."""
    if fault == "swap":
        local()
        step(0.5)
    elif fault == "skip":
        local()
    elif fault == "more":
        usual(step, local)
        local()
    elif fault == "number":
        step(0.25)
        local()
    elif fault == "meet":
        cluster.gather("something", 0)
        usual(step, local)
    elif fault == "stall":
        time.sleep(20)


def work(runtime, say):
    fault = os.environ["FAULT"] if runtime.rank == 1 else ""
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w = rx.Variable(jnp.zeros(2), name="w")
    step, local = programs(strategy, w)
    for number in range(STEPS):
        runtime.progress(number)
        if number != APART or not fault:
            usual(step, local)
            continue
        say(event="fault")
        if fault == "leave":
            return
        other(fault, step, local)
    if "CHECKPOINT" in os.environ:
        rx.checkpoint.Checkpoint(w=w).save(os.environ["CHECKPOINT"])
    cluster.agree("the end", {})
    time.sleep(2)  # A worker that has nothing more to do raises, too.
