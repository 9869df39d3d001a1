"""Training programs of workers that end with a failure; `FAULT` names which.

A worker prints a line of JSON for what happens, with the time.
"""

from __future__ import annotations

import json
import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

FAULT_STEP = 3


def say(event, **fields):
    sys.stdout.write(json.dumps({"time": time.time(), "event": event, **fields}) + "\n")
    sys.stdout.flush()


def rank():
    return int(os.environ["RANK"])


def train(steps, before_step=lambda number: None, wait_on_host=None):
    """Adds the mean of the ranks to a variable, in each step."""
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w = rx.Variable(jnp.zeros(2000), name="w")

    @rx.function
    def step():
        def replica_fn():
            x = w.value + 1
            if wait_on_host is not None:
                x = jax.pure_callback(wait_on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            w.assign(rx.get_replica_context().all_reduce("mean", x))

        strategy.run(replica_fn)

    for number in range(steps):
        say("stepping", number=number)
        before_step(number)
        step()
    say("result", value=float(w.value[0]))


def stall():
    def before_step(number):
        if rank() == 1 and number == FAULT_STEP:
            say("fault")
            time.sleep(60)

    train(1_000_000, before_step)


def exception():
    def before_step(number):
        if rank() == 1 and number == FAULT_STEP:
            say("fault")
            raise KeyError("boom")

    train(1_000_000, before_step)


def slow_first_step():
    """After all that workers do together before a first step: in the program itself."""

    def wait_on_host(x):
        if rank() == 1 and not x[0] > 1:
            time.sleep(32)
        return np.asarray(x)

    train(2, wait_on_host=wait_on_host)


def bad_row():
    """Row 37 cannot be read on worker 1."""
    strategy = rx.MultiWorkerMirroredStrategy()

    def transform(row):
        if row == 37 and rank() == 1:  # whose copy of the data is broken
            raise ValueError("row 37 is broken")
        return np.float32(row)

    rows = rx.data.from_arrays(np.arange(40)).map(transform).batch(2)
    total = rx.function(
        lambda batch: strategy.run(lambda x: rx.get_replica_context().global_sum(x), args=(batch,))
    )
    for epoch in range(1000):
        for batch in strategy.distribute_dataset(rows):
            total(batch).block_until_ready()
        assert epoch < 999


def finishes_early():
    """After the last step worker 0 still has something to do."""
    train(2)
    if rank() == 0:
        time.sleep(2)
        say("done")


def devices_first():
    jax.devices()
    train(1)


def main():
    env = os.environ
    jax.config.update("jax_num_cpu_devices", int(env.get("DEVICES", "1")))
    if env.get("ENGINE"):
        jax.config.update("jax_cpu_collectives_implementation", env["ENGINE"])
    say("born")
    try:
        globals()[env["FAULT"]]()
    except rx.errors.ReplicaxError as error:
        say(
            "raised",
            classes=[cls.__name__ for cls in type(error).__mro__],
            kind=getattr(error, "kind", None),
            task=error.origin.task if error.origin else None,
            text=str(error),
        )
        raise
