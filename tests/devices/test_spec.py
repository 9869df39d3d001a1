"""Device specs."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax.devices import DeviceSpec
from replicax.errors import ArgumentTypeError, InvalidArgumentError

READ = {
    "": DeviceSpec(),
    "/": DeviceSpec(),
    "cpu:1": DeviceSpec(device_type="CPU", device_index=1),
    "/cpu:1": DeviceSpec(device_type="CPU", device_index=1),
    "GPU:0": DeviceSpec(device_type="GPU", device_index=0),
    "tpu": DeviceSpec(device_type="TPU"),
    "gpu:*": DeviceSpec(device_type="GPU"),
    "/device:gpu:2": DeviceSpec(device_type="GPU", device_index=2),
    "/device:METAL:*": DeviceSpec(device_type="METAL"),
    "/job:worker/replica:0/task:1/device:GPU:0": DeviceSpec("worker", 0, 1, "GPU", 0),
    "device:GPU:0/task:1/job:worker": DeviceSpec("worker", None, 1, "GPU", 0),
    "/job:a/job:b": DeviceSpec(job="b"),
    "/task:1/task:2/replica:3/replica:0": DeviceSpec(replica=0, task=2),
    "/task:1/task:*": DeviceSpec(),
    "/job:*/task:*/replica:*": DeviceSpec(),
    "/job:worker/cpu:0": DeviceSpec(job="worker", device_type="CPU", device_index=0),
}

REFUSED = {
    "/stage:1": "unknown part: 'stage:1'",
    "cuda:0": "unknown part: 'cuda:0'",
    "/job": "unknown part: 'job'",
    "/job:a:b": "unknown part: 'job:a:b'",
    "/device:GPU:0:1": "unknown part: 'device:GPU:0:1'",
    "cpu:0/gpu:1": "two device types: CPU and GPU",
    "/device:GPU:0/device:GPU:0": "two device types",
    "/device:CPU": "type without an index: 'device:CPU'",
    "cpu:x": "'x' in 'cpu:x' where a number",
    "cpu:": "'' in 'cpu:' where a number",
    "cpu:-1": "'-1' in 'cpu:-1' where a number",
    "cpu:1.0": "'1.0' in 'cpu:1.0' where a number",
    "cpu: 1": "' 1' in 'cpu: 1' where a number",
    "cpu:1_0": "'1_0' in 'cpu:1_0' where a number",
    "cpu:²": "'²' in 'cpu:²' where a number",
    "/task:a": "'a' in 'task:a' where a number",
    "/job:": "job of a device spec cannot be ''",
    "/device::0": "device_type of a device spec cannot be ''",
}


@pytest.mark.parametrize("text", READ)
def test_read(text):
    assert DeviceSpec.from_string(text) == READ[text]


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    with pytest.raises(InvalidArgumentError) as caught:
        DeviceSpec.from_string(text)
    assert REFUSED[text] in caught.value.message


@pytest.mark.parametrize("text", [None, 1, b"cpu:0", DeviceSpec()])
def test_only_strings_are_read(text):
    with pytest.raises(ArgumentTypeError, match="A device string was expected"):
        DeviceSpec.from_string(text)


names = st.text(st.characters(categories=["L", "Nd"], include_characters="_-."), min_size=1)
numbers = st.none() | st.integers(0, 10**6)


@st.composite
def specs(draw):
    kind = draw(st.none() | names)
    return DeviceSpec(
        job=draw(st.none() | names),
        replica=draw(numbers),
        task=draw(numbers),
        device_type=kind,
        device_index=draw(numbers) if kind is not None else None,
    )


@given(specs())
def test_written_specs_read_the_same(spec):
    assert DeviceSpec.from_string(spec.to_string()) == spec
    assert str(spec) == spec.to_string()


@given(specs())
def test_specs_are_values(spec):
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301
    assert hash(copy.copy(spec)) == hash(spec)


@given(specs(), specs(), specs())
def test_merging(one, two, three):
    merged = one.make_merged_spec(two)
    for field in dataclasses.fields(DeviceSpec):
        over, under = getattr(two, field.name), getattr(one, field.name)
        assert getattr(merged, field.name) == (under if over is None else over)
    left = merged.make_merged_spec(three)
    assert left == one.make_merged_spec(two.make_merged_spec(three))
    assert one.make_merged_spec(DeviceSpec()) == one == DeviceSpec().make_merged_spec(one)


@given(specs(), specs())
def test_canonical_specs_are_full(spec, default):
    full = spec.canonicalise(default)
    assert None not in vars(full).values()
    assert full.make_merged_spec(spec) == full
    assert full.canonicalise() == full


def test_canonical_without_default():
    assert str(DeviceSpec().canonicalise()) == "/job:localhost/replica:0/task:0/device:CPU:0"


def test_replace():
    spec = DeviceSpec.from_string("/task:1/gpu:2")
    assert str(spec.replace(task=None, device_type="cpu")) == "/device:CPU:2"
    with pytest.raises(ArgumentTypeError, match="no part 'index'"):
        spec.replace(index=1)
    with pytest.raises(InvalidArgumentError, match="device_index=2 but no device_type"):
        spec.replace(device_type=None)


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"job": ""}, InvalidArgumentError),
        ({"job": "a/b"}, InvalidArgumentError),
        ({"job": "a:b"}, InvalidArgumentError),
        ({"job": "a b"}, InvalidArgumentError),
        ({"job": 1}, ArgumentTypeError),
        ({"device_type": "*"}, InvalidArgumentError),
        ({"device_index": 0}, InvalidArgumentError),
        ({"task": -1}, InvalidArgumentError),
        ({"task": "0"}, ArgumentTypeError),
        ({"task": True}, ArgumentTypeError),
        ({"replica": 0.0}, ArgumentTypeError),
    ],
)
def test_bad_parts(parts, error):
    with pytest.raises(InvalidArgumentError) as caught:
        DeviceSpec(**parts)
    assert type(caught.value) is error
    assert next(iter(parts)) in caught.value.message


def test_integers_of_numpy_become_plain():
    spec = DeviceSpec(task=np.int64(3))
    assert type(spec.task) is int
    assert spec == DeviceSpec(task=3)


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DeviceSpec().job = "a"
