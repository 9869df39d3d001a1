from __future__ import annotations

import copy
import pickle

import jax
import pytest

import replicax as rx


def test_all_devices_by_default():
    assert rx.MirroredStrategy().num_replicas_in_sync == len(jax.devices())


def test_devices_may_be_strings_specs_or_jax_devices():
    given = ["cpu:1", rx.DeviceSpec.from_string("CPU:0"), jax.devices()[3]]
    strategy = rx.MirroredStrategy(given)
    task = "/job:localhost/replica:0/task:0/device:"
    assert strategy.extended.worker_devices == (f"{task}CPU:1", f"{task}CPU:0", f"{task}CPU:3")
    assert strategy.extended.parameter_devices == strategy.extended.worker_devices
    assert strategy.num_replicas_in_sync == 3
    assert strategy.cluster_resolver is None
    assert "CPU:3" in repr(strategy)


def test_one_device():
    assert rx.OneDeviceStrategy().num_replicas_in_sync == 1
    assert rx.OneDeviceStrategy("cpu:2").replica_mesh.devices == (jax.devices()[2],)


def test_no_device_is_refused():
    with pytest.raises(rx.errors.InvalidArgumentError, match="list of devices is empty"):
        rx.MirroredStrategy([])


def test_the_same_device_twice_is_refused():
    with pytest.raises(rx.errors.InvalidArgumentError, match="more than once") as caught:
        rx.MirroredStrategy(["cpu:0", "cpu:1", "/device:CPU:0"])
    assert "2  /device:CPU:0" in str(caught.value)


@pytest.mark.parametrize("make", [lambda d: rx.MirroredStrategy([d]), rx.OneDeviceStrategy])
def test_an_unknown_device_lists_the_known_ones(make):
    with pytest.raises(rx.errors.UnknownDeviceError, match="no device 'cpu:99'") as caught:
        make("cpu:99")
    assert "task:0/device:CPU:7" in str(caught.value)
    assert "rx.devices.logical(cpu=100)" in str(caught.value)


@pytest.mark.parametrize("devices", ["cpu:0", {"cpu:0", "cpu:1"}, 3])
def test_what_is_no_list_of_devices_is_refused(devices):
    with pytest.raises(rx.errors.ArgumentTypeError, match="list of devices was expected"):
        rx.MirroredStrategy(devices)


@pytest.mark.parametrize("device", [["cpu:0"], 3])
def test_what_is_no_device_is_refused(device):
    with pytest.raises(rx.errors.ArgumentTypeError, match="device was expected"):
        rx.OneDeviceStrategy(device)


def test_options_are_checked():
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"rx\.CommunicationOptions"):
        rx.MirroredStrategy(["cpu:0"], options={"bytes_per_pack": 1})


HIDDEN = """
    import replicax as rx
    try:
        rx.MirroredStrategy(["gpu:0"])
    except rx.errors.UnknownDeviceError as error:
        print(error)
"""


def test_the_error_says_that_jax_platforms_hides_devices(run_python):
    done = run_python(HIDDEN)
    assert done.returncode == 0, done.stderr
    assert "JAX_PLATFORMS is 'cpu'" in done.stdout
    assert "device:CPU:0" in done.stdout


def test_the_error_says_that_cuda_visible_devices_hides_devices(run_python):
    done = run_python(HIDDEN, CUDA_VISIBLE_DEVICES="7")
    assert "CUDA_VISIBLE_DEVICES is '7' and may hide some" in done.stdout, done.stderr


def test_a_strategy_is_not_copied():
    strategy = rx.MirroredStrategy(["cpu:0"])
    with pytest.raises(rx.errors.FailedPreconditionError, match="cannot be copied"):
        copy.copy(strategy)
    assert copy.deepcopy({"a": strategy})["a"] is strategy
    with pytest.raises(rx.errors.UnimplementedError, match="cannot be pickled"):
        pickle.dumps(strategy)


def test_strategies_have_names_of_their_own():
    assert rx.MirroredStrategy(["cpu:0"]).name != rx.MirroredStrategy(["cpu:0"]).name


@pytest.mark.parametrize("name", ["auto", "ring"])
def test_other_transports_are_left_to_xla(name):
    options = rx.CommunicationOptions(implementation=name)
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"], options=options)
    assert strategy.communication_options.implementation.name == name.upper()


def test_g11_nccl_between_cpus_is_refused_with_the_alternative():
    options = rx.CommunicationOptions(implementation="nccl")
    with pytest.raises(rx.errors.UnimplementedError, match="NCCL connects GPUs only") as caught:
        rx.MirroredStrategy(["cpu:0", "cpu:1"], options=options)
    assert "'AUTO'" in str(caught.value)
