"""`ClusterSpec`: what it takes, what it answers, what it refuses."""

from __future__ import annotations

import pickle

import pytest

from replicax import errors
from replicax.cluster import ClusterSpec

FULL = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:1"], "evaluator": ["e:1"]}


def test_it_answers_as_in_tf_train():
    spec = ClusterSpec(FULL)

    assert spec.jobs == ["chief", "evaluator", "ps", "worker"]
    assert spec.num_tasks("worker") == 2
    assert spec.task_indices("worker") == [0, 1]
    assert spec.task_address("worker", 1) == "b:1"
    assert spec.job_tasks("worker") == ["a:1", "b:1"]
    assert ClusterSpec(spec.as_dict()) == spec == pickle.loads(pickle.dumps(spec))  # noqa: S301
    assert hash(ClusterSpec(spec)) == hash(spec)
    assert "ps" in spec
    assert spec
    assert not ClusterSpec({})


def test_the_chief_is_rank_0_and_the_evaluator_is_alone():
    spec = ClusterSpec(FULL)

    assert spec.rank_of("chief", 0) == 0
    assert [spec.rank_of("worker", index) for index in range(2)] == [1, 2]
    assert spec.world_size() == 3
    assert (spec.rank_of("evaluator", 0), spec.world_size("evaluator")) == (0, 1)
    assert spec.training_addresses() == ["c:1", "a:1", "b:1"]


def test_tasks_may_be_left_out():
    spec = ClusterSpec({"worker": {"3": "d:1", 1: "b:1"}})

    assert spec.as_dict() == {"worker": {1: "b:1", 3: "d:1"}}
    assert [spec.rank_of("worker", index) for index in (1, 3)] == [0, 1]


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        pytest.param({"worker": ["a:1", "a:1"]}, "Two tasks", id="one address twice"),
        pytest.param({"worker": {0: "a:1", "0": "b:1"}}, "task 0 twice", id="one index twice"),
        pytest.param({"chief": ["a:1", "b:1"]}, "at most one chief", id="two chiefs"),
        pytest.param({"evaluator": ["a:1", "b:1"]}, "at most one evaluator", id="two evaluators"),
        pytest.param({"worker": ["a"]}, "no address", id="no port"),
        pytest.param({"worker": ["a:99999"]}, "no address", id="no such port"),
        pytest.param({"worker": {-1: "a:1"}}, "whole number", id="a negative index"),
    ],
)
def test_a_wrong_cluster_is_refused(jobs, says):
    with pytest.raises(errors.InvalidArgumentError, match=says):
        ClusterSpec(jobs)


@pytest.mark.parametrize(
    "jobs",
    [["a:1"], {"worker": 3}, {"worker": [3]}, {3: ["a:1"]}],
    ids=["no mapping", "no list", "no text", "no name"],
)
def test_another_form_is_refused(jobs):
    with pytest.raises(errors.ArgumentTypeError, match="worker"):
        ClusterSpec(jobs)


def test_what_is_not_there_is_named():
    spec = ClusterSpec(FULL)

    with pytest.raises(errors.NotFoundError, match="'queue'"):
        spec.num_tasks("queue")
    with pytest.raises(errors.NotFoundError, match="no task 7"):
        spec.task_address("worker", 7)
    with pytest.raises(errors.InvalidArgumentError, match="no rank"):
        spec.rank_of("ps", 0)
