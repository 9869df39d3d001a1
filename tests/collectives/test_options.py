from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax.collectives import CommunicationImplementation, CommunicationOptions
from replicax.errors import ArgumentTypeError, InvalidArgumentError

OPTIONS = st.builds(
    CommunicationOptions,
    bytes_per_pack=st.integers(0, 5),
    timeout_seconds=st.sampled_from([None, 1.0, 2]),
    implementation=st.sampled_from(list(CommunicationImplementation)),
    wire_dtype=st.sampled_from([None, "bfloat16", "float32"]),
)


def test_defaults():
    options = CommunicationOptions()
    assert options.bytes_per_pack == 0
    assert options.timeout_seconds is None
    assert options.implementation is CommunicationImplementation.AUTO


@pytest.mark.parametrize("name", ["nccl", "NCCL", "Nccl"])
def test_implementation_is_accepted_by_name(name):
    assert CommunicationOptions(implementation=name).implementation.name == "NCCL"


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("bytes_per_pack", -1, InvalidArgumentError),
        ("bytes_per_pack", 1.0, ArgumentTypeError),
        ("bytes_per_pack", True, ArgumentTypeError),
        ("timeout_seconds", 0, InvalidArgumentError),
        ("timeout_seconds", -2.0, InvalidArgumentError),
        ("timeout_seconds", math.inf, InvalidArgumentError),
        ("timeout_seconds", math.nan, InvalidArgumentError),
        ("timeout_seconds", "1", ArgumentTypeError),
        ("implementation", "mpi", InvalidArgumentError),
        ("implementation", 1, ArgumentTypeError),
        ("wire_dtype", "int8", InvalidArgumentError),
        ("wire_dtype", "half of it", ArgumentTypeError),
    ],
)
def test_bad_fields_are_refused_and_echoed(field, value, error):
    with pytest.raises(error, match=f"`{field}=") as caught:
        CommunicationOptions(**{field: value})
    assert type(caught.value) is error
    assert repr(value) in str(caught.value)


def test_wire_dtype_is_the_name_of_a_dtype():
    assert CommunicationOptions().wire_dtype is None
    for dtype in ("float16", np.float16, jnp.float16, np.dtype("float16")):
        assert CommunicationOptions(wire_dtype=dtype).wire_dtype == "float16"


@given(OPTIONS, OPTIONS)
def test_merge_takes_what_is_not_default_from_the_other(base, other):
    merged = base.merge(other)
    default = CommunicationOptions()
    for field in dataclasses.fields(CommunicationOptions):
        wanted = getattr(other, field.name)
        if wanted == getattr(default, field.name):
            wanted = getattr(base, field.name)
        assert getattr(merged, field.name) == wanted


def test_merge_with_none_changes_nothing_and_with_others_is_refused():
    options = CommunicationOptions(bytes_per_pack=3)
    assert options.merge(None) is options
    with pytest.raises(ArgumentTypeError, match="`other="):
        options.merge({"bytes_per_pack": 1})
