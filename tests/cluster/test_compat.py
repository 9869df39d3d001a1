"""The private parts of jax that the cluster floor uses are there, and behave."""

from __future__ import annotations

import inspect

import jax
import pytest
from jax.errors import JaxRuntimeError
from jaxlib import _jax

from replicax.cluster import _compat, _engine


def test_the_service_and_the_client_take_what_they_are_given():
    service = _jax.get_distributed_runtime_service.__doc__
    client = _jax.get_distributed_runtime_client.__doc__

    for name in ("address", "num_nodes", "heartbeat_timeout", "shutdown_timeout", "recoverable"):
        assert f"{name}:" in service
    for name in ("address", "node_id", "init_timeout", "heartbeat_timeout", "use_compression"):
        assert f"{name}:" in client
    assert "shutdown_on_destruction:" in client


def test_the_state_of_jax_has_the_fields_that_are_set():
    from jax._src import distributed

    state = distributed.global_state
    before = (state.client, state.process_id, state.num_processes, state.coordinator_address)

    assert before == (None, 0, 1, None)
    assert not _compat.is_initialized()


def test_whether_devices_have_started():
    jax.devices()

    assert _compat.devices_started()


ADDRESS = b"\x02\x00\xb6\xd3\x7f\x00\x00\x01"


@pytest.mark.parametrize(
    ("value", "port"),
    [
        ((2).to_bytes(8, "little") + b"vm" + (136).to_bytes(8, "little") + ADDRESS, 0xB6D3),
        ((0).to_bytes(8, "little") + (136).to_bytes(8, "little") + ADDRESS, 0xB6D3),
        (b"x", None),
        (b"", None),
        (b"\xff" * 100, None),
    ],
    ids=["named", "no name", "spoilt", "empty", "nonsense"],
)
def test_the_port_of_a_listener(value, port):
    assert _compat.listener_port(value) == port


def test_who_has_not_joined_a_group_of_devices():
    keys = {"cpu:gloo/0,2048,4096/0", "cpu:gloo/0,2048,4096/2", "cpu:gloo/0,2048/0"}

    missing = {"cpu:gloo/0,2048,4096/1", "cpu:gloo/0,2048/1"}
    assert set(_engine.missing_entries(keys)) == missing
    assert _engine.missing_entries(keys, among={4096}) == ["cpu:gloo/0,2048,4096/1"]


@pytest.mark.parametrize(
    ("error", "is_trouble"),
    [
        (JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer"), True),
        (ValueError("UNKNOWN: Gloo all-reduce failed: Read error: Connection reset"), True),
        (RuntimeError("INTERNAL: NCCL operation failed"), True),
        (JaxRuntimeError("UNAVAILABLE: coordination service"), True),
        (RuntimeError("the database said: connection closed"), False),
        (RuntimeError("RESOURCE_EXHAUSTED: out of memory"), False),
        (ValueError("shapes do not match"), False),
        (KeyError("gloo"), False),
    ],
    ids=["closed", "synchronous", "nccl", "service", "database", "memory", "value", "key"],
)
def test_which_errors_say_that_a_peer_is_lost(error, is_trouble):
    assert _engine.is_trouble(error) is is_trouble


def test_the_program_of_the_service_imports_nothing_of_ours():
    # It runs by its path, so that it starts fast and holds little.
    from replicax.cluster import _service

    source = inspect.getsource(_service) + inspect.getsource(_compat)

    assert "from replicax" not in source
    assert "\nimport jax" not in source
