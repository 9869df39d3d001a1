from __future__ import annotations

import numpy as np
import pytest

import replicax as rx


def test_defaults():
    assert rx.InputOptions() == rx.InputOptions(global_batch_size=None, remainder="mask")


@pytest.mark.parametrize("size", [1, 32, np.int64(8)])
def test_sizes(size):
    assert rx.InputOptions(global_batch_size=size).global_batch_size == size


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "8"])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(rx.errors.InvalidArgumentError, match="not a positive integer") as caught:
        rx.InputOptions(global_batch_size=size)
    assert repr(size) in str(caught.value)


@pytest.mark.parametrize("remainder", ["pad", None, ["mask"]])
def test_an_unknown_remainder_lists_the_known_ones(remainder):
    with pytest.raises(rx.errors.InvalidArgumentError, match="'mask', 'drop', 'error'"):
        rx.InputOptions(remainder=remainder)
