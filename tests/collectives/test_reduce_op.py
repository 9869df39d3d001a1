from __future__ import annotations

import pickle

import pytest

from replicax.collectives import ReduceOp
from replicax.errors import ArgumentTypeError, InvalidArgumentError


@pytest.mark.parametrize("op", list(ReduceOp))
def test_members_parse_to_themselves(op):
    assert ReduceOp.parse(op) is op
    assert pickle.loads(pickle.dumps(op)) is op  # noqa: S301


@pytest.mark.parametrize("text", ["sum", "SUM", "Sum"])
def test_two_strings_parse_in_any_case(text):
    assert ReduceOp.parse(text) is ReduceOp.SUM
    assert ReduceOp.parse("mEaN") is ReduceOp.MEAN


@pytest.mark.parametrize("text", ["max", "MIN"])
def test_max_and_min_as_strings_point_to_the_member(text):
    with pytest.raises(InvalidArgumentError, match=rf"pass `rx\.ReduceOp\.{text.upper()}`"):
        ReduceOp.parse(text)


def test_unknown_string_lists_what_is_accepted():
    with pytest.raises(InvalidArgumentError, match="'avg'") as caught:
        ReduceOp.parse("avg")
    assert "SUM, MEAN, MAX, MIN" in str(caught.value)


@pytest.mark.parametrize("value", [None, 0, sum])
def test_other_types_are_refused(value):
    with pytest.raises(ArgumentTypeError, match=r"`reduce_op="):
        ReduceOp.parse(value)
