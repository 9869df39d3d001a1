"""From names to devices."""

from __future__ import annotations

import logging

import jax
import numpy as np
import pytest

from replicax.devices import (
    DeviceSpec,
    default_devices,
    resolve,
    resolve_all,
    set_soft_placement,
    soft_placement,
    spec_of,
)
from replicax.errors import ArgumentTypeError, InvalidArgumentError, UnknownDeviceError

CPUS = pytest.fixture(lambda: jax.local_devices(backend="cpu"), name="cpus")
NO_SUCH_TYPE = "/device:ABACUS:0"


@pytest.fixture
def soft():
    set_soft_placement(True)
    yield
    set_soft_placement(False)


def test_names_of_one_device(cpus):
    names = ["cpu:1", "/CPU:1", "/device:CPU:1", "/job:localhost/replica:0/task:0/device:CPU:1"]
    assert {resolve(name) for name in names} == {cpus[1]}
    assert resolve(DeviceSpec(device_type="cpu", device_index=1)) == cpus[1]
    assert resolve(cpus[1]) is cpus[1]


def test_open_parts(cpus):
    assert resolve("cpu:*") == resolve("cpu") == cpus[0]
    assert resolve("") == resolve("/task:0") == default_devices()[0]


def test_an_unknown_index_lists_the_known(cpus):
    count = len(cpus)
    with pytest.raises(UnknownDeviceError) as caught:
        resolve(f"cpu:{count}")
    message = caught.value.message
    assert f"There is no device 'cpu:{count}'" in message
    assert all(str(spec_of(cpu)) in message for cpu in cpus)
    assert f"rx.devices.logical(cpu={count + 1})" in message
    assert "Why:" not in message


@pytest.mark.parametrize(
    "name", [NO_SUCH_TYPE, "/task:1", "/task:1/cpu:0", "/job:worker/cpu:0", "/replica:1/cpu:0"]
)
def test_unknown_places(name):
    with pytest.raises(UnknownDeviceError, match="known devices are") as caught:
        resolve(name)
    assert repr(name) in caught.value.message
    assert "What to do:" in caught.value.message


@pytest.mark.parametrize(
    ("variable", "value", "kind"),
    [
        ("CUDA_VISIBLE_DEVICES", "1", "GPU"),
        ("CUDA_VISIBLE_DEVICES", "", "GPU"),
        ("ROCR_VISIBLE_DEVICES", "0", "GPU"),
        ("HIP_VISIBLE_DEVICES", "0", "GPU"),
        ("JAX_CUDA_VISIBLE_DEVICES", "0", "GPU"),
        ("TPU_VISIBLE_CHIPS", "0", "TPU"),
    ],
)
def test_what_hides_devices_is_named(monkeypatch, variable, value, kind):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnknownDeviceError, match=f"Why: .*{variable} is '{value}'"):
        resolve(f"{kind}:500")
    with pytest.raises(UnknownDeviceError) as caught:
        resolve("CPU:500")
    assert variable not in caught.value.message


@pytest.mark.parametrize(
    ("platforms", "named"), [("cpu", True), ("CPU", True), ("", False), (None, False)]
)
def test_platforms_that_hide_devices(run_python, platforms, named):
    done = run_python(
        """
        from replicax import devices, errors
        for name in ("CPU:500", "TPU:500"):
            try:
                devices.resolve(name)
            except errors.UnknownDeviceError as error:
                print("JAX_PLATFORMS" in error.message)
        """,
        JAX_PLATFORMS=platforms.lower() if platforms else platforms,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", str(named)]


def test_platforms_set_by_the_program(run_python):
    done = run_python(
        """
        import jax
        jax.config.update("jax_platforms", "cpu")
        from replicax import devices
        devices.resolve("GPU:0")
        """,
        JAX_PLATFORMS=None,
    )
    assert "JAX_PLATFORMS is 'cpu': jax starts no other platforms." in done.stderr


@pytest.mark.parametrize("device", [None, 0, ["cpu:0"], b"cpu:0"])
def test_something_else_than_a_device(device):
    with pytest.raises(ArgumentTypeError, match="A device was expected, got"):
        resolve(device)


def test_a_bad_string():
    with pytest.raises(InvalidArgumentError, match="unknown part"):
        resolve("abacus:0")


# --- soft placement ---


@pytest.mark.usefixtures("soft")
def test_soft_placement_logs_once_a_device(cpus, caplog):
    assert soft_placement()
    with caplog.at_level(logging.WARNING, logger="replicax"):
        assert [resolve("/device:ONCE:0"), resolve("/device:ONCE:0")] == [cpus[0]] * 2
        assert resolve("/device:ONCE:1") == cpus[0]
    assert [record.getMessage() for record in caplog.records] == [
        f"Device /device:ONCE:{i} is not there. Soft placement uses {spec_of(cpus[0])}."
        for i in range(2)
    ]


@pytest.mark.usefixtures("soft")
def test_soft_placement_keeps_devices_that_are_there(cpus, caplog):
    assert resolve("cpu:1") == cpus[1]
    assert caplog.records == []


@pytest.mark.usefixtures("soft")
@pytest.mark.parametrize("name", ["/task:1/gpu:0", "/job:worker/gpu:0"])
def test_soft_placement_refuses_unknown_tasks(name):
    with pytest.raises(UnknownDeviceError):
        resolve(name)


def test_soft_placement_is_off_at_first():
    assert not soft_placement()
    with pytest.raises(ArgumentTypeError, match="set_soft_placement got 1"):
        set_soft_placement(1)


# --- lists of devices ---


def test_lists_keep_their_order(cpus):
    given = ["cpu:2", cpus[0], DeviceSpec.from_string("cpu:1")]
    assert resolve_all(given) == [cpus[2], cpus[0], cpus[1]]
    assert resolve_all(iter(given)) == resolve_all(tuple(given)) == resolve_all(given)
    assert resolve_all(np.array(cpus)) == cpus


def test_none_is_the_default():
    assert resolve_all(None) == default_devices()


def test_an_empty_list_says_what_to_pass():
    with pytest.raises(InvalidArgumentError, match="list of devices is empty") as caught:
        resolve_all([])
    assert "pass None for all local accelerators" in caught.value.message


def test_the_same_device_twice():
    with pytest.raises(InvalidArgumentError) as caught:
        resolve_all(["cpu:0", "cpu:1", "/device:CPU:1"])
    lines = caught.value.message.splitlines()
    assert lines[0] == (
        "The list of devices has /job:localhost/replica:0/task:0/device:CPU:1 more than once."
    )
    assert [line.split()[:2] for line in lines[2:4]] == [["1", "cpu:1"], ["2", "/device:CPU:1"]]
    assert "Soft placement" not in caught.value.message


@pytest.mark.usefixtures("soft")
def test_the_same_device_twice_by_soft_placement():
    with pytest.raises(InvalidArgumentError, match="Soft placement is on"):
        resolve_all(["/device:TWICE:0", "/device:TWICE:1"])


@pytest.mark.parametrize("devices", ["cpu:0", DeviceSpec(), 2, {"cpu:0", "cpu:1"}])
def test_no_list_of_devices(devices):
    with pytest.raises(ArgumentTypeError, match="A list of devices was expected"):
        resolve_all(devices)


def test_a_single_device_is_no_list(cpus):
    with pytest.raises(ArgumentTypeError, match="A list of devices was expected"):
        resolve_all(cpus[0])


def test_a_list_with_an_unknown_device():
    with pytest.raises(UnknownDeviceError, match="no device '/device:ABACUS:0'"):
        resolve_all(["cpu:0", NO_SUCH_TYPE])


@pytest.mark.accelerator
def test_types_do_not_mix(cpus):
    others = [device for device in jax.local_devices() if device.platform != "cpu"]
    if not others:
        pytest.skip("needs an accelerator")
    with pytest.raises(InvalidArgumentError, match="mixes types"):
        resolve_all([cpus[0], others[0]])
