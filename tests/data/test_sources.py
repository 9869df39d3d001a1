"""What a dataset can be made from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


def plain(rows):
    return [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), row) for row in rows]


def test_rows_of_trees_of_arrays():
    data = rx.data.from_arrays({"x": jnp.arange(4.0).reshape(2, 2)}, np.array([7, 8]))
    assert plain(data) == [({"x": [0.0, 1.0]}, 7), ({"x": [2.0, 3.0]}, 8)]
    (batch,) = data.batch(2)
    assert isinstance(batch[0]["x"], np.ndarray)
    assert (data.num_elements, data.row_ids(1).tolist()) == (2, [1])


def test_no_rows():
    data = rx.data.from_arrays(np.zeros((0, 3)))
    assert (len(data), list(data), list(data.batch(2).shuffle())) == (0, [], [])


@pytest.mark.parametrize(
    ("arrays", "error", "words"),
    [
        ((np.zeros(2), np.zeros(3)), rx.errors.InvalidArgumentError, r"arrays\[1\] +\(3,\)"),
        ((np.zeros(()),), rx.errors.InvalidArgumentError, "one number of rows"),
        ((), rx.errors.InvalidArgumentError, "There are no arrays"),
        (([1, 2],), rx.errors.ArgumentTypeError, "takes arrays, not 1"),
        ((jax.random.key(0)[None],), rx.errors.ArgumentTypeError, "key_data"),
    ],
    ids=["lengths", "scalar", "nothing", "list", "keys"],
)
def test_what_are_no_rows_is_refused(arrays, error, words):
    with pytest.raises(error, match=words):
        rx.data.from_arrays(*arrays)


def test_traced_arrays_are_refused():
    with pytest.raises(rx.errors.ContextError, match="traced array"):
        jax.jit(lambda x: len(rx.data.from_arrays(x)))(np.zeros(3))


def test_a_generator_goes_on_and_is_then_used_up():
    data = rx.data.from_iterable(i for i in range(4))
    assert next(iter(data)) == 0
    assert list(data) == [1, 2, 3]
    with pytest.raises(rx.errors.OutOfRangeError, match="without calling it"):
        list(data)


def test_a_generator_opens_further_on_once():
    data = rx.data.from_iterable(i for i in range(9))
    assert next(data.open(start=3)) == 3
    with pytest.raises(rx.errors.OutOfRangeError, match="at element 6: it was read before"):
        next(data.open(start=6))


def test_an_iterator_that_starts_itself_anew_has_epochs():
    class Again:
        def __iter__(self):
            self.left = 3
            return self

        def __next__(self):
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return self.left

    data = rx.data.from_iterable(Again())
    assert [list(data), list(data)] == [[2, 1, 0], [2, 1, 0]]


def test_a_function_that_gives_one_iterator_twice_is_used_up():
    iterator = iter([1, 2])
    data = rx.data.from_iterable(lambda: iterator)
    assert list(data) == [1, 2]
    with pytest.raises(rx.errors.OutOfRangeError):
        list(data)


def test_a_generator_that_failed_is_not_at_its_end():
    def fails():
        yield 1
        raise OSError("disk")

    data = rx.data.from_iterable(fails()).cache()
    for error in (OSError, rx.errors.OutOfRangeError):
        with pytest.raises(error):
            list(data)


@pytest.mark.parametrize("source", [3, "abc", {"a": 1}, {1, 2}, None], ids=repr)
def test_what_is_no_iterable_is_refused(source):
    for make in (rx.data.from_iterable, rx.data.as_dataset):
        with pytest.raises(rx.errors.ArgumentTypeError):
            make(source)


def test_a_function_that_returns_no_iterable_is_refused():
    with pytest.raises(rx.errors.ArgumentTypeError, match="returned None"):
        list(rx.data.from_iterable(lambda: None))


class MapStyle:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index * 2


class Iterated:
    def __iter__(self):
        yield from (5, 6)


@pytest.mark.parametrize(
    ("source", "rows", "indexed"),
    [
        (np.arange(2), [0, 1], True),
        ((np.arange(2), np.arange(2)), [(0, 0), (1, 1)], True),
        ({"x": jnp.arange(1)}, [{"x": 0}], True),
        ([np.zeros(2), np.zeros(1)], [[0, 0], [0]], True),
        ((1, 2), [1, 2], True),
        (range(2), [0, 1], True),
        (MapStyle(), [0, 2, 4], True),
        (Iterated(), [5, 6], False),
        (iter([4]), [4], False),
    ],
    ids=["array", "arrays", "dict", "list", "tuple", "range", "map style", "iterated", "iterator"],
)
def test_whatever_the_user_has(source, rows, indexed):
    data = rx.data.as_dataset(source)
    assert plain(data) == rows
    assert data.has_indices is indexed
    assert rx.data.as_dataset(data) is data


def test_a_generator_function_starts_anew():
    def source():
        yield from (1, 2)

    data = rx.data.as_dataset(source)
    assert [list(data), list(data)] == [[1, 2], [1, 2]]


def test_what_is_no_dataset_is_refused(strategy):
    per_replica = next(iter(strategy.distribute_dataset([np.arange(2)])))
    for thing in (per_replica, len, object()):
        with pytest.raises(rx.errors.ArgumentTypeError, match="is no dataset"):
            rx.data.as_dataset(thing)


def test_an_import_of_data_loads_no_extra(run_python):
    done = run_python("""
        import sys
        import replicax as rx
        rx.data.as_dataset([1])
        others = {"grain", "datasets", "torch", "tensorflow", "keras", "pyarrow"}
        print(sorted(others & set(sys.modules)))
    """)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
