"""`rx.trace`: what ran inside of the block, and nothing else."""

from __future__ import annotations

import itertools
import json

import jax.numpy as jnp
import pytest

import replicax as rx
from replicax import errors
from replicax.inspection._timeline import FIRST_REPLICA
from replicax.recording import RECORDER


@pytest.fixture(scope="module")
def step():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = rx.Variable(jnp.zeros((64, 64)), name="w")

    @rx.function
    def step(x):
        def replica_step(x):
            mean = rx.get_replica_context().all_reduce("mean", x @ x)
            w.assign_add(mean)
            return mean

        return strategy.run(replica_step, args=(x,))

    step(jnp.ones((64, 64)))
    return step


def slices(path, row):
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event["ph"] == "X" and event["tid"] == row]


@pytest.mark.parametrize("wait", [False, True], ids=["started", "ended"])
def test_each_step_inside_is_a_slice_on_each_replica(step, wait, tmp_path):
    path = tmp_path / "trace.json"
    for _ in range(3):
        step(jnp.ones((64, 64)))  # It is on its short path when the trace begins.
    with rx.trace(path, wait=wait):
        for _ in range(3):
            step(jnp.ones((64, 64)))
    step(jnp.ones((64, 64)))

    starts, first, second = (slices(path, row) for row in (0, FIRST_REPLICA, FIRST_REPLICA + 1))
    runs = [event["args"]["run"] for event in starts]
    assert [event["args"]["run"] for event in first] == runs == list(range(runs[0], runs[0] + 3))
    assert len(second) == 3
    (collective,) = first[0]["args"]["collectives"]
    assert collective.startswith("all_reduce MEAN: 16 KiB in 1 array(s), key 1:")
    durations = [[event["dur"] for event in row] for row in (starts, first, second)]
    if wait:
        assert all(start < end for start, end in zip(*durations[:2], strict=True))
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in itertools.pairwise(second))
    else:
        assert durations[0] == durations[1] == durations[2]


def test_a_trace_is_written_and_ends_where_the_block_raises(step, tmp_path):
    usual = RECORDER.append

    def train():
        with rx.trace(tmp_path / "trace.json", wait=True):
            step(jnp.ones((64, 64)))
            raise KeyError("a fault")

    with pytest.raises(KeyError):
        train()

    assert len(slices(tmp_path / "trace.json", 0)) == 1
    assert (RECORDER.append, RECORDER.wait) == (usual, None)


def test_traces_do_not_nest(tmp_path):
    with (
        rx.trace(tmp_path / "outer.json"),
        pytest.raises(errors.FailedPreconditionError, match="Another trace"),
        rx.trace(tmp_path / "inner.json"),
    ):
        pass

    assert not (tmp_path / "inner.json").exists()
