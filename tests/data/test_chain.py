"""Any chain against the same chain in plain Python lists."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import replicax as rx

# --- the model ---------------------------------------------------------------------------------


@dataclass
class Model:
    """A chain as a list for each epoch: pairs of a value and of the ids of its rows."""

    epochs: list[list[tuple[Any, list[int]]]]
    has_ids: bool

    def each(self, change: Any) -> Model:
        return self.of([change(elements) for elements in self.epochs])

    def of(self, epochs: list[Any]) -> Model:
        return Model(epochs, self.has_ids)


def batched(elements: list[Any], size: int, drop: Any) -> list[Any]:
    batches = [elements[at : at + size] for at in range(0, len(elements), size)]
    if drop and batches and len(batches[-1]) < size:
        batches.pop()
    return [
        ([value for value, _ in batch], [i for _, ids in batch for i in ids]) for batch in batches
    ]


def grouped(epochs: list[Any], count: int) -> list[Any]:
    return [flat(epochs[at : at + count]) for at in range(0, len(epochs) - count + 1, count)]


def flat(lists: Any) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def add(value: Any) -> Any:
    return [add(one) for one in value] if isinstance(value, list) else value + 100


def map_(draw: Any, data: Any, model: Model) -> tuple[Any, Model]:
    data = data.map(lambda value: value + 100, num_parallel=draw(st.sampled_from([None, 2])))
    return data, model.each(lambda elements: [(add(value), ids) for value, ids in elements])


def batch(draw: Any, data: Any, model: Model) -> tuple[Any, Model]:
    if data.batch_size is not None:
        return data, model
    size, drop = draw(st.integers(1, 5)), draw(st.booleans())
    return data.batch(size, drop), model.each(lambda elements: batched(elements, size, drop))


def take(draw: Any, data: Any, model: Model) -> tuple[Any, Model]:
    count = draw(st.integers(0, 30))
    return data.take(count), model.each(lambda elements: elements[:count])


def skip(draw: Any, data: Any, model: Model) -> tuple[Any, Model]:
    count = draw(st.integers(0, 5))
    return data.skip(count), model.each(lambda elements: elements[count:])


def shard(draw: Any, data: Any, model: Model) -> tuple[Any, Model]:
    count = draw(st.integers(1, 5))
    index = draw(st.integers(0, count - 1))
    return data.shard(count, index), model.each(lambda elements: elements[index::count])


def hint(draw: Any, data: Any, model: Model) -> tuple[Any, Model]:
    return data.shard(rx.data.HINT), model


def repeat(draw: Any, data: Any, model: Model) -> tuple[Any, Model]:
    if len(model.epochs) < 4:
        return data, model
    return data.repeat(2), model.of(grouped(model.epochs, 2))


def cache(draw: Any, data: Any, model: Model) -> tuple[Any, Model]:
    return data.cache(), model.of([model.epochs[0]] * len(model.epochs))


def prefetch(draw: Any, data: Any, model: Model) -> tuple[Any, Model]:
    return data.prefetch(draw(st.integers(1, 5))), model


def shuffle(draw: Any, data: Any, model: Model) -> tuple[Any, Model]:
    """A shuffle can only be modelled by what it may give: take its order from the dataset."""
    buffer = draw(st.sampled_from([None, 1, 3, 50])) if data.has_indices else 3
    data = data.shuffle(seed=draw(st.integers(0, 3)), buffer=buffer)
    shuffled = []
    for epoch, elements in enumerate(model.epochs):
        got = [plain(value) for value in data.open(epoch=epoch)]
        left = list(elements)
        order = []
        for value in got:
            at = next(i for i, (other, _) in enumerate(left) if other == value)
            order.append(left.pop(at))
        assert left == []
        shuffled.append(order)
    return data, model.of(shuffled)


STAGES = [map_, batch, take, skip, shard, hint, repeat, cache, prefetch, shuffle, shuffle]


@st.composite
def chains(draw: Any) -> tuple[Any, Model]:
    rows = draw(st.integers(0, 23))
    kind = draw(st.sampled_from(["arrays", "list", "iterable"]))
    values = np.arange(rows)
    data = {
        "arrays": lambda: rx.data.from_arrays(values),
        "list": lambda: rx.data.from_iterable(list(range(rows))),
        "iterable": lambda: rx.data.from_iterable(lambda: iter(range(rows))),
    }[kind]()
    model = Model([[(i, [i]) for i in range(rows)]] * 6, has_ids=kind != "iterable")
    for _ in range(draw(st.integers(0, 5))):
        data, model = draw(st.sampled_from(STAGES))(draw, data, model)
    return data, model


@hypothesis.given(chains())
@hypothesis.settings(max_examples=150)
def test_a_chain_is_the_chain_of_lists(chain):
    data, model = chain
    for epoch, expected in enumerate(model.epochs):
        values = [value for value, _ in expected]
        assert [plain(value) for value in data.open(epoch=epoch)] == values, data
        for start in range(len(values) + 2):
            tail = [plain(value) for value in data.open(epoch=epoch, start=start)]
            assert tail == values[start:], (data, epoch, start)
        if data.num_elements is not None:
            assert len(data) == len(values), data
        if model.has_ids:
            ids = [data.row_ids(i, epoch=epoch).tolist() for i in range(len(values))]
            assert ids == [ids for _, ids in expected], data
        else:
            assert values == [] or data.row_ids(0) is None


@hypothesis.given(chains(), st.integers(1, 4))
@hypothesis.settings(max_examples=50)
def test_shards_by_rows_are_the_whole(chain, num_shards):
    data, model = chain
    hypothesis.assume(not data.is_sharded)
    shards = [data.sharded(num_shards, i, by="rows") for i in range(num_shards)]
    values = [value for value, _ in model.epochs[1]]
    if data.batch_size is None:
        assert [[plain(v) for v in s.open(epoch=1)] for s in shards] == [
            values[i::num_shards] for i in range(num_shards)
        ]
        return
    pieces = [[plain(value) for value in shard.open(epoch=1)] for shard in shards]
    assert [flat(parts) for parts in zip(*pieces, strict=True)] == values
    if model.has_ids:
        together = [
            [i for shard in shards for i in shard.row_ids(step, epoch=1).tolist()]
            for step in range(len(values))
        ]
        assert together == [ids for _, ids in model.epochs[1]]


# --- what the model leaves open ----------------------------------------------------------------


def test_iterating_again_is_the_next_epoch():
    data = rx.data.from_arrays(np.arange(30)).shuffle(seed=1)
    epochs = [[int(row) for row in data] for _ in range(3)]
    assert epochs == [[int(row) for row in data.open(epoch=epoch)] for epoch in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert all(sorted(epoch) == list(range(30)) for epoch in epochs)


def test_orders_stay_what_they_are():
    # A run that is resumed with another release must see the rows that remain.
    data = rx.data.from_arrays(np.arange(8))
    assert [int(row) for row in data.shuffle(seed=7).open(epoch=2)] == ORDER
    assert [int(row) for row in data.shuffle(seed=7, buffer=3).open(epoch=2)] == BUFFER_ORDER


ORDER = [6, 7, 4, 0, 1, 5, 3, 2]
BUFFER_ORDER = [0, 2, 3, 1, 4, 6, 7, 5]


def test_orders_differ_by_seed():
    data = rx.data.from_arrays(np.arange(40))
    assert len({tuple(map(int, data.shuffle(seed).open())) for seed in range(5)}) == 5


def test_a_permutation_puts_any_element_anywhere():
    places = np.zeros((6, 6), int)
    for seed in range(600):
        order = [int(row) for row in rx.data.from_arrays(np.arange(6)).shuffle(seed)]
        places[np.arange(6), order] += 1
    assert (places > 60).all(), places  # 100 expected
    assert (places < 145).all(), places


def test_a_buffer_as_large_as_the_data_mixes_all_of_it():
    firsts = {
        next(rx.data.from_iterable(lambda: iter(range(5))).shuffle(s, 5).open()) for s in range(60)
    }
    assert firsts == set(range(5))


@pytest.mark.parametrize("indexed", [True, False])
def test_repeat_without_end(indexed):
    source = [0, 1, 2] if indexed else (lambda: iter([0, 1, 2]))
    data = rx.data.from_iterable(source).repeat()
    elements = data.open(start=4)
    assert [next(elements) for _ in range(4)] == [1, 2, 0, 1]
    assert (data.num_elements, data.is_infinite) == (None, True)
    assert list(data.take(2)) == [0, 1]
    assert len(data.take(2)) == 2


def test_a_batch_over_two_epochs_of_a_repeat():
    data = rx.data.from_arrays(np.arange(5)).shuffle(seed=0).repeat(2).batch(4)
    inner = rx.data.from_arrays(np.arange(5)).shuffle(seed=0)
    rows = [int(row) for epoch in (2, 3) for row in inner.open(epoch=epoch)]
    assert [row for batch in data.open(epoch=1) for row in batch.tolist()] == rows
    assert data.row_ids(1, epoch=1).tolist() == rows[4:8]


def test_repeating_nothing_ends():
    assert list(rx.data.from_iterable([]).repeat()) == []
    assert list(rx.data.from_iterable(lambda: iter([])).repeat()) == []


def test_an_infinite_repeat_of_shuffled_rows_has_an_order_an_epoch():
    data = rx.data.from_arrays(np.arange(20)).shuffle().repeat()
    elements = data.open()
    first, second = ([int(next(elements)) for _ in range(20)] for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(20))


def test_take_does_not_read_on():
    read = []
    data = rx.data.from_iterable(lambda: (read.append(i) or i for i in range(9)))
    assert list(data.take(2)) == [0, 1]
    assert read == [0, 1]


def test_nothing_before_the_start_is_read_where_there_are_indices():
    read = []
    data = rx.data.from_iterable(range(100)).map(lambda i: read.append(i) or i).batch(10)
    assert next(data.open(start=7)).tolist() == list(range(70, 80))
    assert read == list(range(70, 80))


def test_a_cache_reads_each_element_once():
    read = []
    data = rx.data.from_iterable(range(7)).map(lambda i: read.append(i) or i).cache().shuffle()
    assert [sorted(data) for _ in range(3)] == [list(range(7))] * 3
    assert sorted(read) == list(range(7))


def test_a_cache_gives_indices_to_an_iterator():
    data = rx.data.from_iterable(iter(range(5))).cache()
    assert data.has_indices
    assert (len(data), list(data), list(data.open(start=3))) == (5, list(range(5)), [3, 4])
    assert sorted(data.shuffle()) == list(range(5))


def test_two_iterators_of_one_cache():
    data = rx.data.from_iterable(range(6)).map(lambda i: i).cache()
    first, second = data.open(), data.open(start=2)
    assert [next(first), next(second), next(first), next(second)] == [0, 2, 1, 3]
    assert (list(first), list(second)) == ([2, 3, 4, 5], [4, 5])


def test_trees_become_batches_of_trees():
    rows = [{"x": np.full(2, i, np.float32), "y": (i, i > 1)} for i in range(3)]
    first, last = rx.data.from_iterable(rows).batch(2)
    assert first["x"].tolist() == [[0, 0], [1, 1]]
    assert first["x"].dtype == np.float32
    assert [leaf.tolist() for leaf in last["y"]] == [[2], [True]]


def test_a_batch_of_arrays_may_be_written():
    x = np.arange(4)
    for data in (rx.data.from_arrays(x), rx.data.from_arrays(x).shuffle()):
        for batch in data.batch(2):
            batch[:] = 0
    assert x.tolist() == [0, 1, 2, 3]


def test_stages_leave_the_dataset_below_as_it_is():
    data = rx.data.from_arrays(np.arange(4))
    data.shuffle(seed=3).batch(2)
    assert [int(row) for row in data] == [0, 1, 2, 3]


def test_the_batch_size_of_a_chain():
    data = rx.data.from_arrays(np.arange(4))
    assert data.batch_size is None
    assert data.batch(3).map(lambda b: b).prefetch().batch_size == 3
    assert data.batch(3).sharded(2, 0, by="rows").batch_size == 2


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda d: d.batch(0), rx.errors.InvalidArgumentError, "`size` = 0"),
        (lambda d: d.batch(2.0), rx.errors.ArgumentTypeError, "`size` = 2.0"),
        (lambda d: d.take(-1), rx.errors.InvalidArgumentError, "`count` = -1"),
        (lambda d: d.skip(True), rx.errors.ArgumentTypeError, "`count` = True"),
        (lambda d: d.shard(2, 2), rx.errors.InvalidArgumentError, "`index` = 2"),
        (lambda d: d.shard(2), rx.errors.ArgumentTypeError, "`index` = None"),
        (lambda d: d.map(3), rx.errors.ArgumentTypeError, "`fn` = 3"),
        (lambda d: d.map(str, 0), rx.errors.InvalidArgumentError, "`num_parallel` = 0"),
        (lambda d: d.prefetch(0), rx.errors.InvalidArgumentError, "`n` = 0"),
        (lambda d: d.shuffle(-1), rx.errors.InvalidArgumentError, "`seed` = -1"),
        (lambda d: d.shuffle(buffer=0), rx.errors.InvalidArgumentError, "`buffer` = 0"),
        (lambda d: d.repeat().shuffle(), rx.errors.InvalidArgumentError, "before `.repeat"),
        (lambda d: d.repeat().cache(), rx.errors.InvalidArgumentError, "before `.repeat"),
        (lambda d: len(d.repeat()), rx.errors.ArgumentTypeError, "infinite"),
        (lambda d: d.open(start=-1), rx.errors.InvalidArgumentError, "`start` = -1"),
        (lambda d: d.row_ids(5), rx.errors.OutOfRangeError, "no element 5"),
        (lambda d: d.sharded(2, 0, by="x"), rx.errors.InvalidArgumentError, "`by` = 'x'"),
        (lambda d: d.sharded(2, 0, by="hint"), rx.errors.InvalidArgumentError, "HINT"),
        (lambda d: d.sharded(2, 0, by="files"), rx.errors.InvalidArgumentError, "no files"),
        (
            lambda d: d.shard(2, 0).batch(1).sharded(2, 0, by="rows"),
            rx.errors.FailedPreconditionError,
            "sharded already",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make(rx.data.from_arrays(np.arange(5)))


def test_what_can_only_be_read_in_order_needs_a_buffer():
    data = rx.data.from_iterable(lambda: iter(range(4)))
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"Pass `buffer=`"):
        data.shuffle()
    with pytest.raises(rx.errors.ArgumentTypeError, match="not known"):
        len(data)
    assert data


def test_rows_that_do_not_fit_together_are_refused():
    ragged = rx.data.from_iterable([{"x": np.zeros(2)}, {"x": np.zeros(3)}]).batch(2)
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"row\['x'\] +float64 +\(3,\)"):
        list(ragged)
    other = rx.data.from_iterable([{"x": 1}, {"y": 1}]).batch(2)
    with pytest.raises(rx.errors.StructureMismatchError, match="'y'"):
        list(other)


def test_batches_without_rows_cannot_be_cut():
    data = rx.data.from_iterable([(np.zeros(2), np.zeros(3))]).batch(1).map(lambda b: (b[0], 1))
    with pytest.raises(rx.errors.InvalidArgumentError, match="one number of rows"):
        list(data.sharded(2, 0, by="rows"))


def test_the_hint_is_where_it_stands():
    data = rx.data.from_arrays(np.arange(7)).shard(rx.data.HINT).batch(2)
    assert data.shards_by_hint
    assert not data.is_sharded
    shard = data.sharded(3, 1, by="hint")
    assert [batch.tolist() for batch in shard] == [[1, 4]]
    assert shard.row_ids(0).tolist() == [1, 4]
    assert (shard.is_sharded, shard.shards_by_hint) == (True, False)
