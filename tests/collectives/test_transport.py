from __future__ import annotations

from types import SimpleNamespace

import jax
import pytest

from replicax.collectives import Transport


def test_devices_of_one_process_share_its_memory():
    assert Transport.between(jax.devices("cpu")[:2]) is Transport.MEMORY
    assert Transport.between(()) is Transport.MEMORY


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("cpu", Transport.GLOO), ("gpu", Transport.NCCL), ("tpu", Transport.NCCL)],
)
def test_devices_of_several_processes(platform, expected):
    devices = [SimpleNamespace(platform=platform, process_index=i) for i in range(2)]
    assert Transport.between(devices) is expected
