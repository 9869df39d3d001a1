"""Pains of two workers that leave them at work: groups C, E, F and I of the known pains.

Each test is named after its report. The workers have two replicas each; `workers.py` is their
program.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from parity_one_device import models

import replicax as rx

# A test waits until the workers have come to its row.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(115)]
LATE_S = 0.5


def test_c8_both_workers_hold_the_weights_of_worker_0(each):
    (first, _), (second, _) = each("c8")
    assert first == second
    assert all(is_that_of_worker_0 for _, is_that_of_worker_0 in each("c8"))


def test_c9_workers_that_build_other_models_are_refused(both):
    text = both("c9")
    assert "`dense/kernel`" in text
    assert "(4, 2)" in text
    assert "(4, 3)" in text


def test_e3_a_condition_that_differs_between_workers(both):
    compiled, eager, value = both("e3")
    assert "varies between replicas" in compiled
    assert "different numbers of collectives" in eager
    assert value == 1


def test_e7_gather_of_unequal_lengths(both):
    assert both("e7") == [[0, 1, 2, 3, 4]] * 2


def test_e9_gather_has_the_rank_of_one_process(both):
    assert both("e9") == [4, 10]


def test_f5_a_lone_caller_is_told_at_once_and_so_are_the_others(both):
    text = both("f5")
    assert "distribute_dataset" in text
    assert "workers.py" in text
    assert "if is_chief:" in text


def test_f7_each_operation_has_a_time_out(each):
    for results in each("f7"):
        assert set(results) == {"gather", "broadcast", "reduce"}
        assert all("worker 1 did not come" in text for text, _ in results.values())
    assert all(LATE_S * 0.9 < seconds < 30 for _, seconds in each("f7")[0].values())


def test_f9_a_gradient_of_one_replica_alone(both):
    assert both("f9") == [1.0, 4.0 / 4]


def test_f14_a_barrier_names_who_did_not_come(both):
    text, after = both("f14")
    assert "worker 1 did not come" in text
    assert "'a barrier'" in text
    assert after == [0, 1]


def test_i1_all_save_to_one_path(both, job, strategy):
    assert both("i1") == [0, 1, 2, 3]
    with strategy.scope():
        w = rx.Variable(np.zeros(4, np.float32))
    rx.checkpoint.Checkpoint(w=w).restore(job.folder / "i1").assert_consumed()
    np.testing.assert_array_equal(w.value, [0, 1, 2, 3])


def test_i2_the_chief_alone_cannot_save(both):
    text, is_there = both("i2")
    assert "different calls" in text
    assert "Checkpoint.save" in text
    assert "strategy.reduce" in text
    assert not is_there


def test_i4_slots_of_the_optimizer_go_on_in_a_fresh_process(both, job, strategy):
    expected = both("i4")
    trainer = models.InPlace("adam", strategy, compiled=True)
    weights, slots = trainer.variables
    saved = rx.checkpoint.Checkpoint(weights=weights, slots=slots)
    saved.restore(job.folder / "i4").assert_consumed()
    (batch,) = strategy.distribute_dataset(models.cut_sizes([8, 5, 8, 5])[3:])
    trainer.step(batch)

    for name, value in expected.items():
        np.testing.assert_allclose(weights[name].value, np.float32(value), atol=1e-6)


@pytest.mark.parametrize("replicas", [1, 2])
def test_i5_weights_of_4_replicas_are_restored_on_fewer(both, job, replicas):
    saved = both("i5")
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])
    with strategy.scope():
        w = rx.Variable(np.zeros(3, np.float32))
    rx.checkpoint.Checkpoint(w=w).restore(job.folder / "i5").assert_consumed()
    assert jax.device_get(w.value).view(np.int32).tolist() == saved


def test_the_workers_end_well(job):
    job.results("no row: until all have ended")
    assert job.returncode() == 0, job.output()
