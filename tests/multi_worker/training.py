"""A training of 12 steps that saves now and then, and goes wrong as it is told.

    training.py FOLDER [FAULT ...]

The n-th fault belongs to the n-th start; see `FAULTS`. Each worker writes what it did to files in
FOLDER: a line a step with the rows of the global batch and the loss, and at the end the weights.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import replicax as rx

ROWS, BATCH, EPOCHS = 22, 6, 3
STEPS = EPOCHS * 4
PID = os.getpid()
RANK, START = int(os.environ.get("RANK", "0")), int(os.environ.get("REPLICAX_RESTART", "0"))


def dataset():
    """22 rows in batches of 6, so that the fourth of an epoch is smaller."""
    numbers = np.random.default_rng(0)
    rows = {
        "x": numbers.normal(size=(ROWS, 4)).astype(np.float32),
        "y": numbers.normal(size=ROWS).astype(np.float32),
        "bit": (2.0 ** np.arange(ROWS)).astype(np.float32),  # their sum says which rows it were
    }
    return rx.data.from_arrays(rows).shuffle(seed=3).batch(BATCH).repeat(EPOCHS)


class Training:
    """The state of the training, and its step."""

    def __init__(self, strategy, on_trace=lambda: None):
        self.strategy, self.on_trace = strategy, on_trace
        with strategy.scope():
            self.w = rx.Variable(jnp.zeros(4), name="w")
            self.momentum = rx.Variable(jnp.zeros(4), name="momentum")
        self.batches = iter(strategy.distribute_dataset(dataset()))
        self.step = rx.function(self._step)
        self.evaluate = rx.function(self._evaluate)

    def _step(self, batch):
        self.on_trace()

        def replica_step(batch):
            ctx = rx.get_replica_context()
            error = batch["x"] @ self.w.value - batch["y"]
            gradient = ctx.global_mean(error[:, None] * batch["x"])
            self.momentum.assign(0.9 * self.momentum.value + gradient)
            self.w.assign_sub(0.1 * self.momentum.value)
            return ctx.global_mean(error**2), ctx.global_sum(batch["bit"])

        return self.strategy.run(replica_step, args=(batch,))

    def _evaluate(self):
        def replica_fn():
            return rx.get_replica_context().all_reduce("sum", jnp.sum(self.w.value**2))

        return self.strategy.run(replica_fn)

    def objects(self):
        """What is saved."""
        return {"w": self.w, "momentum": self.momentum, "batches": self.batches}


def signalled(at):
    """SIGTERM to this worker alone."""
    del at
    os.kill(os.getpid(), signal.SIGTERM)


def killed(at):
    """kill -9."""
    del at
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in_save(at):
    """kill -9 in the middle of the next save: as soon as there is a part of it."""
    folder = Path(at) / "checkpoint"
    before = set(folder.iterdir())

    def watch():
        while not [path for path in set(folder.iterdir()) - before if any(path.iterdir())]:
            pass
        killed(at)

    threading.Thread(target=watch, daemon=True).start()


def held(at):
    """Waits for the test, or for a failure elsewhere."""
    Path(at, f"held-{START}").touch()
    while not Path(at, f"go-{START}").exists():
        rx.cluster.runtime().check()
        time.sleep(0.02)


FAULTS = {
    # name: the worker, where, and what it does there
    "kill-in-step": (1, "step 4", killed),
    "kill-in-save": (0, "save 6", killed_in_save),
    "term-in-evaluation": (0, "evaluation", signalled),
    "term-in-compile": (1, "trace", signalled),
    "hold-at-4": (0, "step 4", held),
    "hold-at-7": (0, "step 7", held),
    "none": (-1, "", signalled),
}


def train(strategy, folder, faults=()):
    """The whole training, or what is left of it."""
    fault = FAULTS[faults[START] if len(faults) > START else "none"]

    def go_wrong(where):
        if (RANK, where) == fault[:2]:
            fault[2](folder)

    def note(**fields):
        with Path(folder, f"worker-{RANK}.txt").open("a") as file:
            file.write(json.dumps({"start": START, **fields}) + "\n")

    path = Path(folder, "checkpoint")
    left = sorted(each.name for each in path.iterdir()) if path.exists() else []
    training = Training(strategy, lambda: go_wrong("trace"))
    ballast = np.zeros(1 << 21) if "kill-in-save" in faults else np.zeros(1)
    checkpoint = rx.checkpoint.Checkpoint(**training.objects(), ballast=ballast)
    with rx.PreemptionHandler(checkpoint, path, keep=2) as handler:
        note(left=left, resumed=handler.total_run_calls, workers=strategy.worker_count, pid=PID)
        for batch in training.batches:
            number = handler.total_run_calls
            go_wrong(f"step {number}")
            loss, bits = handler.run(training.step, batch)
            note(step=number, rows=int(bits), loss=float(loss).hex())
            if number == 5:
                go_wrong("evaluation")
                float(training.evaluate())
            if number % 3 == 0:
                go_wrong(f"save {number}")
                handler.save()
    note(weights=[float(x).hex() for x in np.asarray(training.w)])
    training.batches.close()
    return np.asarray(training.w)


def main(folder, faults):
    """The training, and once one that was disturbed has ended, the same without a fault."""
    strategy = rx.MultiWorkerMirroredStrategy()
    train(strategy, folder, faults)
    if any(fault.startswith("hold") for fault in faults):
        return
    other = Path(folder, "undisturbed")
    other.mkdir(exist_ok=True)
    train(strategy, other)


# --- what the tests read -------------------------------------------------------------------------


def told(folder, rank):
    """What a worker has written, line by line."""
    text = Path(folder, f"worker-{rank}.txt").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def starts(lines):
    """What it found at each start."""
    return [line for line in lines if "resumed" in line]


def steps(lines):
    """The rows and the loss of each step; the same however often it was made."""
    found = collections.defaultdict(set)
    for line in lines:
        if "step" in line:
            found[line["step"]].add((line["rows"], line["loss"]))
    assert all(len(each) == 1 for each in found.values())
    return {step: each.pop() for step, each in found.items()}


def weights(lines):
    """The weights at the end."""
    (found,) = [line["weights"] for line in lines if "weights" in line]
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
