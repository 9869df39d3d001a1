"""A training whose workers go apart: `FAULT` says what worker 1 does in another way at step 5."""

from __future__ import annotations

import os
import time

import jax.numpy as jnp

import replicax as rx
from replicax import cluster

STEPS = 8
APART = 5


def work(runtime, say):
    fault = os.environ["FAULT"] if runtime.rank == 1 else ""
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w = rx.Variable(jnp.zeros(int(os.environ.get("SIZE", "2"))), name="w")

    @rx.function
    def step(rate):
        def replica_step():
            w.assign_add(rate * rx.get_replica_context().all_reduce("mean", w.value + 1))

        strategy.run(replica_step)

    @rx.function
    def local():
        return strategy.run(lambda: 2 * w.value)

    step(0.5)
    local()
    for number in range(1, STEPS):
        runtime.progress(number)
        is_apart = number == APART and fault
        if is_apart:
            say(event="fault")
        if is_apart and fault == "swap":
            local()
            step(0.5)
            continue
        if is_apart and fault == "stall":
            time.sleep(20)
        if is_apart and fault == "leave":
            return
        if is_apart and fault == "meet":
            cluster.gather("something", number)
        if not (is_apart and fault == "skip"):
            step(0.25 if is_apart and fault == "number" else 0.5)
        local()
        if is_apart and fault == "more":
            local()
        time.sleep(0.01)
    cluster.agree("the end", {})
    time.sleep(2)  # A worker that has nothing more to do raises, too.
