"""`join_cluster`: from the environment to a place in the job."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys

import pytest

import replicax as rx
from replicax import errors
from replicax.cluster import SimpleResolver, join_cluster
from replicax.cluster._joining import secret_of, timeouts_of
from replicax.testing import run_workers

WORKERS = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "REPLICAX_CONTROL")


@pytest.fixture
def both():
    """The function of both workers, in a module that a fresh process can import."""
    path = pathlib.Path(__file__).with_name("joins.py")
    spec = importlib.util.spec_from_file_location("joins", path)
    module = sys.modules["joins"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.both
    del sys.modules["joins"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [{}, dict.fromkeys((*LAUNCHER, "REPLICAX_COORDINATOR", "REPLICAX_SECRET_FILE"))],
    ids=["launched", "TF_CONFIG alone"],
)
def test_two_workers_join_the_job_that_their_environment_describes(both, environment):
    if environment:
        environment |= {"REPLICAX_SECRET": "a secret of ours"}
    results = run_workers(2, both, environment=environment, timeouts=rx.Timeouts(start=45))

    for rank, result in enumerate(results):
        found = result.unwrap()
        assert found == {"rank": rank, "start": 45.0, "ranks": [0, 1], "devices": 2, "again": True}


@pytest.fixture
def alone(monkeypatch):
    for name in (*LAUNCHER, "TF_CONFIG", "REPLICAX_SECRET", "REPLICAX_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_process_on_its_own_joins_nothing(alone):
    assert join_cluster() is None
    assert join_cluster(SimpleResolver({"worker": ["a:1"]}, "worker", 0)) is None
    assert join_cluster(SimpleResolver({**WORKERS, "evaluator": ["e:1"]}, "evaluator", 0)) is None


def test_workers_without_a_secret_are_refused(alone):
    with pytest.raises(errors.FailedPreconditionError, match="have no secret"):
        join_cluster(SimpleResolver(WORKERS, "worker", 1))


def test_g1_a_cluster_that_is_described_after_devices_were_used_is_an_error(alone):
    import jax

    jax.devices()
    config = {"cluster": WORKERS, "task": {"type": "worker", "index": 1}}
    alone.setenv("TF_CONFIG", json.dumps(config))
    alone.setenv("REPLICAX_SECRET", "a secret of ours")

    with pytest.raises(errors.DevicesStartedError):
        join_cluster()


def test_a_resolver_that_contradicts_the_launcher_is_refused(alone):
    given = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (given | {"REPLICAX_CONTROL": "127.0.0.1:1"}).items():
        alone.setenv(name, value)
    alone.setenv("REPLICAX_SECRET", "a secret of ours")

    with pytest.raises(errors.InvalidArgumentError, match="another job than replicax run"):
        join_cluster(SimpleResolver(WORKERS, "worker", 1))


def test_the_secret_is_in_a_file_or_in_a_variable(tmp_path):
    (tmp_path / "secret").write_text("from a file\n")
    named = {"REPLICAX_SECRET_FILE": str(tmp_path / "secret")}

    assert secret_of(named | {"REPLICAX_SECRET": "x"}) == b"from a file"
    assert secret_of({"REPLICAX_SECRET": " given \n"}) == b"given"
    with pytest.raises(errors.NotFoundError, match="cannot be read"):
        secret_of({"REPLICAX_SECRET_FILE": str(tmp_path / "none")})


def test_the_time_outs_come_from_the_launcher():
    assert timeouts_of({}) == rx.Timeouts()
    assert timeouts_of({"REPLICAX_TIMEOUTS": '{"start": 7}'}) == rx.Timeouts(start=7)


@pytest.mark.parametrize("text", ["{", '{"end": 3}', '{"start": -1}'])
def test_time_outs_that_are_none_are_refused(text):
    with pytest.raises(errors.InvalidArgumentError):
        timeouts_of({"REPLICAX_TIMEOUTS": text})
