"""`rx.Timeouts`: the fields, what is refused, the way through JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import replicax as rx
from replicax import errors

NAMES = [field.name for field in dataclasses.fields(rx.Timeouts)]
SECONDS = st.floats(min_value=0.5, max_value=1e6)


def test_the_table_of_the_docstring_has_each_field_and_its_default():
    rows = [line.split("|") for line in rx.Timeouts.__doc__.splitlines() if "| `" in line]
    found = {row[1].strip().strip("`"): row[-2].strip() for row in rows}

    assert list(found) == NAMES
    for name, text in found.items():
        default = getattr(rx.Timeouts(), name)
        assert text == ("None" if default is None else f"{default:g}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["5", True, [1.0]], ids=repr)
def test_what_is_no_number_is_refused(name, value):
    with pytest.raises(errors.ArgumentTypeError, match=name):
        rx.Timeouts(**{name: value})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan], ids=repr)
def test_what_is_no_time_is_refused(name, value):
    with pytest.raises(errors.InvalidArgumentError, match=name):
        rx.Timeouts(**{name: value})


@pytest.mark.parametrize("name", ["start", "collective", "beacon", "shutdown"])
def test_only_a_stall_may_last_for_ever(name):
    with pytest.raises(errors.ArgumentTypeError, match=name):
        rx.Timeouts(**{name: None})


def test_a_beacon_time_out_is_longer_than_the_time_between_beacons():
    with pytest.raises(errors.InvalidArgumentError, match=r"beacon=0\.3"):
        rx.Timeouts(beacon=0.3)


@given(SECONDS, SECONDS, SECONDS, st.none() | SECONDS, SECONDS)
def test_json_and_pickle_keep_all(start, collective, beacon, stall, shutdown):
    made = rx.Timeouts(
        start=start, collective=collective, beacon=beacon, stall=stall, shutdown=shutdown
    )

    assert rx.Timeouts.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - made above


def test_json_with_an_unknown_name_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="'begin'"):
        rx.Timeouts.from_json({"begin": 3})


def test_json_that_is_no_mapping_is_refused():
    with pytest.raises(errors.ArgumentTypeError, match="list"):
        rx.Timeouts.from_json([3])
