from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replicax as rx

# --- what it is -------------------------------------------------------------------------------


def test_holds_rows_and_their_numbers():
    slices = rx.IndexedSlices(np.ones((2, 3), np.float32), np.array([4, 0]), dense_shape=[5, 3])

    assert (slices.values.shape, slices.indices.tolist()) == ((2, 3), [4, 0])
    assert slices.dense_shape == (5, 3)
    assert "values=float32[2, 3]" in repr(slices)
    assert "dense_shape=(5, 3)" in repr(slices)


def test_takes_lists_variables_and_mirrored_values():
    slices = rx.IndexedSlices(rx.Variable([[1.0], [2.0]]), rx.Mirrored(jnp.array([1, 0])))

    assert isinstance(slices.values, jax.Array)
    np.testing.assert_array_equal(slices.to_dense(2), [[2.0], [1.0]])


def test_cannot_be_changed():
    slices = rx.IndexedSlices([1.0], [0])

    with pytest.raises(AttributeError):
        slices.values = jnp.zeros(1)


@pytest.mark.parametrize(
    ("values", "indices", "shape", "error", "message"),
    [
        ([1.0], [0.0], None, rx.errors.ArgumentTypeError, "no integers"),
        ([1.0], [True], None, rx.errors.ArgumentTypeError, "no integers"),
        ([1.0], "0", None, rx.errors.ArgumentTypeError, "no array"),
        (None, [0], None, rx.errors.ArgumentTypeError, "no array"),
        ([1.0], [[0]], None, rx.errors.InvalidArgumentError, "2 axes"),
        ([1.0], 0, None, rx.errors.InvalidArgumentError, "0 axes"),
        (1.0, [0], None, rx.errors.InvalidArgumentError, "same length"),
        ([1.0, 2.0], [0], None, rx.errors.InvalidArgumentError, "same length"),
        ([[1.0, 2.0]], [0], (5, 3), rx.errors.InvalidArgumentError, r"\(5, 2\)"),
        ([1.0], [0], (), rx.errors.InvalidArgumentError, "no shape"),
        ([1.0], [0], 5, rx.errors.InvalidArgumentError, "no shape"),
        ([1.0], [0], (-1,), rx.errors.InvalidArgumentError, "no shape"),
        ([1.0], [0], (2.0,), rx.errors.InvalidArgumentError, "no shape"),
    ],
)
def test_what_does_not_fit_is_refused(values, indices, shape, error, message):
    with pytest.raises(error, match=message):
        rx.IndexedSlices(values, indices, shape)


def test_keys_are_no_rows():
    with pytest.raises(rx.errors.ArgumentTypeError, match="random keys"):
        rx.IndexedSlices(jax.random.split(jax.random.key(0)), [0, 1])


# --- the whole array --------------------------------------------------------------------------


@given(st.data())
def test_the_whole_array_is_the_sum_of_the_rows(data):
    rows, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    indices = data.draw(st.lists(st.integers(-rows, rows - 1), max_size=8))
    values = np.arange(len(indices) * width, dtype=np.int32).reshape(len(indices), width)
    expected = np.zeros((rows, width), np.int32)
    np.add.at(expected, np.array(indices, np.int32), values)
    slices = rx.IndexedSlices(values, np.array(indices, np.int32))

    for shape in (rows, np.int64(rows), (rows, width)):
        dense = slices.to_dense(shape)
        np.testing.assert_array_equal(dense, expected)
        assert dense.dtype == jnp.int32


def test_the_shape_given_at_first_is_the_default():
    assert rx.IndexedSlices([1.0], [1], (3,)).to_dense().tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("shape", [None, (3, 2), True, 3.0, ()])
def test_a_shape_that_is_missing_or_does_not_fit_is_refused(shape):
    with pytest.raises(rx.errors.InvalidArgumentError):
        rx.IndexedSlices([1.0], [1]).to_dense(shape)


@pytest.mark.parametrize("index", [3, -4])
def test_a_row_beyond_the_array_is_not_lost_in_silence(index):
    with pytest.raises(rx.errors.InvalidArgumentError, match=f"names rows \\[{index}\\]"):
        rx.IndexedSlices([1.0], [index]).to_dense(3)


# --- as a tree --------------------------------------------------------------------------------


def test_is_a_pytree_node():
    slices = rx.IndexedSlices([1.0, 2.0], [1, 0], dense_shape=(3,))
    leaves, structure = jax.tree.flatten(slices)
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(slices)[0]]

    assert [leaf.tolist() for leaf in leaves] == [[1.0, 2.0], [1, 0]]
    assert structure.unflatten(leaves).dense_shape == (3,)
    assert paths == [".values", ".indices"]


@pytest.mark.parametrize("leaf", [None, 0, "x", object()])
def test_jax_may_put_anything_in_it(leaf):
    structure = jax.tree.structure(rx.IndexedSlices([1.0], [0]))

    assert structure.unflatten([leaf, leaf]).values is leaf
    assert repr(structure.unflatten([leaf, leaf]))


def test_goes_through_jit_grad_and_shapes():
    def loss(values, indices):
        return (rx.IndexedSlices(values, indices).to_dense(4) ** 2).sum()

    values, indices = jnp.array([1.0, 2.0, 3.0]), jnp.array([1, 3, 1])
    gradient = jax.jit(jax.grad(loss))(values, indices)
    doubled = jax.jit(lambda s: rx.IndexedSlices(2 * s.values, s.indices, s.dense_shape))
    slices = rx.IndexedSlices(values, indices, (4,))

    assert gradient.tolist() == [8.0, 4.0, 8.0]
    assert doubled(slices).to_dense().tolist() == [0.0, 8.0, 0.0, 4.0]
    assert jax.eval_shape(doubled, slices).dense_shape == (4,)
