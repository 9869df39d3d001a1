from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicax as rx
from replicax.input import rows_per_replica


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_every_row_goes_to_one_replica_in_order(rows, replicas):
    counts = rows_per_replica(rows, replicas)
    assert len(counts) == replicas
    assert sum(counts) == rows
    assert counts == sorted(counts, reverse=True)
    assert max(counts) == -(-rows // replicas)
    full = [count for count in counts if count == counts[0]]
    assert len([count for count in counts if 0 < count < counts[0]]) <= 1
    assert rows % replicas or len(full) == replicas


@settings(max_examples=8)  # each shape is a program for `gather`
@given(rows=st.integers(1, 40), replicas=st.integers(1, 8), width=st.integers(0, 3))
def test_no_row_is_lost_repeated_or_moved(rows, replicas, width):
    strategy = rx.MirroredStrategy(jax.devices()[:replicas])
    batch = {
        "x": np.arange(rows * width, dtype=np.float32).reshape(rows, width),
        "y": (np.arange(rows),),
    }
    (split,) = strategy.distribute_dataset([batch])
    for component, count in zip(
        strategy.local_results(split), rows_per_replica(rows, replicas), strict=True
    ):
        assert component["x"].shape == (count, width)
        assert component["y"][0].shape == (count,)
    joined = strategy.gather(split, axis=0)
    np.testing.assert_array_equal(joined["x"], batch["x"])
    np.testing.assert_array_equal(joined["y"][0], batch["y"][0])


def test_each_share_lies_on_its_replicas_device(strategy):
    (batch,) = strategy.distribute_dataset([np.arange(4)])
    devices = [next(iter(x.devices())) for x in strategy.local_results(batch)]
    assert devices == list(strategy.replica_mesh.devices)


def test_full_batches_have_no_mask_and_padded_ones_know_their_rows(strategy):
    full, padded = strategy.distribute_dataset([np.arange(4), np.arange(3)])
    assert full.rows is None
    assert padded.rows.tolist() == [2, 1]
    assert padded.stacked.shape == (2, 2)


def test_padding_repeats_a_real_row(strategy):
    (batch,) = strategy.distribute_dataset([np.array([7.0, 8.0, 9.0])])
    assert np.asarray(batch.stacked).tolist() == [[7.0, 8.0], [9.0, 7.0]]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float64, "float32"),
        (np.int64, "int32"),
        (np.uint8, "uint8"),
        (np.bool_, "bool"),
        (np.float16, "float16"),
        (jnp.bfloat16, "bfloat16"),
        (np.complex128, "complex64"),
    ],
)
def test_dtypes_become_those_of_jax(strategy, given, kept):
    (batch,) = strategy.distribute_dataset([np.zeros(2, given)])
    assert batch.stacked.dtype == kept


@pytest.mark.parametrize("distribute", ["dataset", "function"])
@pytest.mark.parametrize(
    ("given", "dtype"),
    [(2**31, np.int64), (-(2**31) - 1, np.int64), (2**32, np.uint64)],
    ids=["large", "small", "unsigned"],
)
def test_integers_that_would_become_others_are_refused(strategy, distribute, given, dtype):
    batches = [np.array([given, 0], dtype)] * 2
    dataset = (
        strategy.distribute_dataset(batches)
        if distribute == "dataset"
        else strategy.distribute_datasets_from_function(lambda context: batches)
    )
    with pytest.raises(rx.errors.InvalidArgumentError, match=f"{given}.*32 cannot hold"):
        next(iter(dataset))


def test_float64_stays_with_x64(strategy):
    with jax.enable_x64(True):
        (batch,) = strategy.distribute_dataset([np.zeros(2)])
        assert batch.stacked.dtype == "float64"


BAD_BATCHES = {
    "0-d": np.float32(1.0),
    "a number": 3.0,
    "nothing": None,
    "an empty dict": {},
    "lists of numbers": ([1, 2], [3, 4]),
    "a 0-d leaf": {"a": np.zeros(2), "b": np.float32(1.0)},
    "unequal leaves": {"a": np.zeros(2), "b": np.zeros(3)},
}


@pytest.mark.parametrize("batch", BAD_BATCHES)
def test_what_is_no_global_batch_is_refused(strategy, batch):
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"Element 1.*not a global batch"):
        list(strategy.distribute_dataset([np.zeros(2), BAD_BATCHES[batch]]))


def test_leaves_that_differ_are_shown(strategy):
    with pytest.raises(rx.errors.InvalidArgumentError) as caught:
        list(strategy.distribute_dataset([BAD_BATCHES["unequal leaves"]]))
    assert "batch['a']  (2,)" in str(caught.value)
    assert "batch['b']  (3,)" in str(caught.value)


@pytest.mark.parametrize(
    "batch",
    [np.array(["a", "b"]), np.array([object(), None]), jax.random.split(jax.random.key(0), 2)],
    ids=["strings", "objects", "keys"],
)
@pytest.mark.parametrize("form", ["element", "arrays"])
def test_what_devices_cannot_hold_is_refused(strategy, batch, form):
    with pytest.raises(rx.errors.ArgumentTypeError, match="no array of numbers"):
        list(strategy.distribute_dataset([batch] if form == "element" else batch))


@pytest.mark.parametrize("form", ["element", "arrays"])
def test_a_traced_array_is_refused(strategy, form):
    @jax.jit
    def step(x):
        return list(strategy.distribute_dataset([x] if form == "element" else x))

    with pytest.raises(rx.errors.ContextError, match="outside"):
        step(jnp.zeros(2))
