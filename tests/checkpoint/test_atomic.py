"""Whenever a process ends, a complete checkpoint is there: the old or the new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import replicax
from replicax import errors
from replicax.checkpoint import Checkpoint

SAVE_FOREVER = """
import itertools, sys
import numpy as np
from replicax.checkpoint import Checkpoint

first = int(sys.argv[2])
print("ready", flush=True)
for number in itertools.count(first):
    arrays = [np.full(20_000, number + i) for i in range(8)]
    Checkpoint(number=number, arrays=arrays).save(sys.argv[1])
    print(number, flush=True)
"""


def killed_while_saving(path, first, after_s):
    """Kill a process that saves `first`, `first + 1`, ...; the last number that it committed."""
    source = str(Path(replicax.__file__).parent.parent)
    child = subprocess.Popen(
        [sys.executable, "-c", SAVE_FOREVER, str(path), str(first)],
        env={**os.environ, "PYTHONPATH": source, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout.readline() == "ready\n"
        time.sleep(after_s)
        child.send_signal(signal.SIGKILL)
        done = child.stdout.read().split()
    assert child.returncode == -signal.SIGKILL
    return int(done[-1]) if done else None


def restored(path):
    checkpoint = Checkpoint(number=-1, arrays=[np.zeros(20_000, int) for _ in range(8)])
    checkpoint.restore(path).assert_consumed()
    for i, array in enumerate(checkpoint.arrays):
        assert (array == checkpoint.number + i).all()
    return checkpoint.number


def test_killed_in_the_first_save(path):
    done = killed_while_saving(path, 0, after_s=0.05)

    if done is None:
        with pytest.raises(errors.NotFoundError):
            Checkpoint(number=0).restore(path)
    Checkpoint(number=5).save(path)
    assert len(list(path.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_at_any_moment(path):
    number = 0
    Checkpoint(number=0, arrays=[np.full(20_000, i) for i in range(8)]).save(path)
    for after_s in np.linspace(0.1, 1.0, 4):
        done = killed_while_saving(path, number + 1, after_s)
        last = number if done is None else done
        number = restored(path)

        assert number in {last, last + 1}  # the old one, or one that it had no time to speak of


def test_readers_always_find_a_checkpoint(path):
    Checkpoint(number=0, arrays=[np.full(20_000, i) for i in range(8)]).save(path)
    stop = threading.Event()
    failures = []

    def read():
        while not stop.is_set():
            try:
                restored(path)
            except Exception as error:  # noqa: BLE001 # whatever it is, it fails the test
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 6):
        Checkpoint(number=number, arrays=[np.full(20_000, number + i) for i in range(8)]).save(path)
    stop.set()
    reader.join()

    assert failures == []
    assert restored(path) == 5


def test_a_dtype_that_cannot_be_stored_leaves_the_old_one(path):
    Checkpoint(x=1).save(path)

    with pytest.raises(errors.ReplicaxError) as caught:
        Checkpoint(x=np.ones(2, np.longdouble)).save(path)
    assert "while saving a checkpoint" in "".join(caught.value.__notes__)
    checkpoint = Checkpoint(x=0)
    checkpoint.restore(path)
    assert checkpoint.x == 1
