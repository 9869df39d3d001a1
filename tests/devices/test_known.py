"""The devices that are there."""

from __future__ import annotations

import jax
import pytest

from replicax.devices import (
    DeviceSpec,
    default_devices,
    list_devices,
    local_accelerators,
    resolve,
    spec_of,
)
from replicax.errors import ArgumentTypeError


@pytest.mark.accelerator
def test_every_device_has_a_spec_that_leads_back():
    for device in jax.local_devices():
        spec = spec_of(device)
        assert spec.canonicalise() == spec
        assert resolve(spec) == device
        assert resolve(str(spec)) == device


def test_specs_of_cpu_devices():
    cpus = jax.local_devices(backend="cpu")
    assert [str(spec_of(cpu)) for cpu in cpus] == [
        f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(len(cpus))
    ]


@pytest.mark.accelerator
def test_list():
    everything = list_devices()
    assert len(set(everything)) == len(everything) >= jax.local_device_count()
    assert {type(spec) for spec in everything} == {DeviceSpec}
    cpus = list_devices("cpu")
    assert cpus == list_devices("CPU") == [s for s in everything if s.device_type == "CPU"]
    assert everything[-len(cpus) :] == cpus
    assert list_devices("abacus") == []


@pytest.mark.accelerator
def test_default_devices_are_accelerators_else_cpus():
    accelerators = local_accelerators()
    assert accelerators == [d for d in jax.local_devices() if d.platform != "cpu"]
    assert default_devices() == (accelerators or jax.local_devices(backend="cpu"))


@pytest.mark.parametrize("kind", [0, jax])
def test_list_takes_a_name(kind):
    with pytest.raises(ArgumentTypeError, match="list_devices got device_type="):
        list_devices(kind)


@pytest.mark.parametrize("device", ["cpu:0", None, DeviceSpec()])
def test_spec_of_takes_a_device(device):
    with pytest.raises(ArgumentTypeError, match=r"pass a jax\.Device"):
        spec_of(device)


def test_jax_that_cannot_start(run_python):
    done = run_python(
        """
        from replicax import devices, errors
        try:
            devices.list_devices()
        except errors.UnavailableError as error:
            print(error)
        """,
        JAX_PLATFORMS="abacus",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("jax cannot start its devices: ")
    assert "Why: JAX_PLATFORMS is 'abacus': jax starts no other platforms." in done.stdout
