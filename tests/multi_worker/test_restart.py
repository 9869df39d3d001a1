"""A job that is killed, and told to leave, ends as if nothing had been."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

TRAINING = Path(__file__).with_name("training.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(115)]


@pytest.fixture
def check(training, one_device, tmp_path):
    """`check(resumed)`: the starts of both workers, and an end like an undisturbed one."""

    def checked(resumed):
        lines, other = (training.told(tmp_path, rank) for rank in range(2))
        starts = training.starts(lines)
        for each in (starts, training.starts(other)):
            assert [start["resumed"] for start in each] == resumed
        steps, weights = training.steps(lines), training.weights(lines)
        assert (steps, weights) == (training.steps(other), training.weights(other))
        undisturbed = training.told(tmp_path / "undisturbed", 0)
        assert len(training.starts(undisturbed)) == 1
        assert weights == training.weights(undisturbed)
        assert steps == training.steps(undisturbed)
        trained, seen = one_device
        assert rows(steps) == rows(seen)
        np.testing.assert_allclose(list(map(float.fromhex, weights)), trained, atol=1e-6)
        return starts

    return checked


def rows(steps):
    return {step: rows for step, (rows, _) in steps.items()}


def test_h6_i8_a_killed_job_ends_bitwise_as_an_undisturbed_one(launched, check, tmp_path):
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]
    killed = launched(*words, TRAINING, tmp_path, "kill-in-step", "kill-in-save")
    output = killed.communicate()[0]
    assert killed.returncode == 0, output
    assert output.count("signal: It was killed by SIGKILL") == 2, output

    starts = check([0, 4, 4])
    # The second kill has hit the middle of a save.
    assert [any("tmp" in name for name in start["left"]) for start in starts] == [
        False,
        False,
        True,
    ]
    assert all(len(start["left"]) <= 2 + 1 for start in starts)


def test_h3_a_preempted_job_ends_bitwise_as_an_undisturbed_one(launched, check, tmp_path):
    words = ["--standalone", "--nproc-per-node", "2"]
    first = launched(*words, TRAINING, tmp_path, "term-in-evaluation")
    output = first.communicate()[0]
    assert first.returncode == 42, output
    assert "told to leave: the workers have saved after 6 calls, and left with 42" in output
    assert "first failure" not in output
    words += ["--on-preemption", "restart"]
    second = launched(*words, TRAINING, tmp_path, "term-in-compile")
    output = second.communicate()[0]
    assert second.returncode == 0, output
    assert "starting again after a preemption, which is not counted" in output

    check([0, 6, 7])
