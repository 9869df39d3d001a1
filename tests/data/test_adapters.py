"""Datasets of other libraries, where they are installed."""

from __future__ import annotations

import importlib
import itertools
import os
import unittest.mock

import jax
import numpy as np
import pytest

import replicax as rx


def plain(rows):
    return [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), row) for row in rows]


class Numbers:
    """A source with random access."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return np.int64(index)


# --- Grain -------------------------------------------------------------------------------------


@pytest.fixture
def grain():
    return pytest.importorskip("grain", reason="Grain is not installed")


def test_grain_map_dataset(grain):
    source = grain.MapDataset.source(Numbers(10)).shuffle(seed=3).batch(4)
    data = rx.data.as_dataset(source)
    epochs = [plain(data) for _ in range(3)]
    assert plain(source) == epochs[0]
    assert [sorted(itertools.chain.from_iterable(epoch)) for epoch in epochs] == [
        list(range(10))
    ] * 3
    assert len({str(epoch) for epoch in epochs}) == 3
    assert plain(data.open(epoch=2, start=1)) == epochs[2][1:]
    assert (len(data), data.has_indices, data.is_sharded) == (3, True, False)


def test_grain_map_dataset_without_end(grain):
    data = rx.data.as_dataset(grain.MapDataset.range(3).repeat())
    assert (data.num_elements, data.is_infinite) == (None, True)
    assert plain(data.take(5)) == [0, 1, 2, 0, 1]


def test_grain_slices_are_shards(grain):
    source = grain.MapDataset.range(10)[1::2].map(lambda x: x).batch(2)
    for one in (source, source.to_iter_dataset()):
        data = rx.data.as_dataset(one)
        assert plain(data) == [[1, 3], [5, 7], [9]]
        assert data.is_sharded
        with pytest.raises(rx.errors.FailedPreconditionError, match="Grain"):
            data.sharded(2, 0, by="rows")
    for whole in (slice(2, 8), slice(None, None, -1)):
        assert not rx.data.as_dataset(grain.MapDataset.range(10)[whole]).is_sharded


def test_grain_filters_make_holes(grain):
    source = grain.MapDataset.range(4).filter(lambda x: x % 2 == 1)
    with pytest.raises(rx.errors.UnimplementedError, match="to_iter_dataset"):
        list(rx.data.as_dataset(source))
    assert plain(rx.data.as_dataset(source.to_iter_dataset())) == [1, 3]


def test_grain_iter_dataset(grain):
    data = rx.data.as_dataset(grain.MapDataset.range(6).to_iter_dataset().batch(4))
    assert [plain(data), plain(data)] == [[[0, 1, 2, 3], [4, 5]]] * 2
    assert plain(data.open(start=1)) == [[4, 5]]
    assert (data.num_elements, data.has_indices) == (None, False)


@pytest.mark.parametrize("shards", [1, 2])
def test_grain_loader(grain, shards):
    sampler = grain.samplers.IndexSampler(
        10, shard_options=grain.sharding.ShardOptions(0, shards), shuffle=True, seed=1, num_epochs=1
    )
    loader = grain.DataLoader(data_source=Numbers(10), sampler=sampler, worker_count=0)
    data = rx.data.as_dataset(loader)
    rows = plain(data)
    assert rows == plain(loader)
    assert len(rows) == 10 // shards
    assert plain(data.open(start=3)) == rows[3:]
    assert (data.is_sharded, data.is_infinite) == (shards == 2, False)


def test_grain_loader_without_end(grain):
    sampler = grain.samplers.IndexSampler(
        3, shard_options=grain.sharding.NoSharding(), shuffle=False
    )
    loader = grain.DataLoader(data_source=Numbers(3), sampler=sampler, worker_count=0)
    assert rx.data.as_dataset(loader).is_infinite


# --- Hugging Face ------------------------------------------------------------------------------


@pytest.fixture
def hugging_face(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    # The bars of its progress, also those that are not shown, would keep a thread.
    monkeypatch.setattr(importlib.import_module("tqdm").tqdm, "monitor_interval", 0)
    return datasets


@pytest.fixture
def rows_of(hugging_face):
    columns = {"x": [[float(i), float(-i)] for i in range(6)], "y": list(range(6))}
    return hugging_face.Dataset.from_dict(columns)


def test_hugging_face_dataset(rows_of):
    data = rx.data.as_dataset(rows_of).batch(4)
    assert [(b["x"].tolist(), b["y"].tolist()) for b in data.open(start=1)] == [
        ([[4.0, -4.0], [5.0, -5.0]], [4, 5])
    ]
    assert (len(data), data.row_ids(1).tolist()) == (2, [4, 5])


def test_hugging_face_iterable(rows_of):
    source = rows_of.to_iterable_dataset().shuffle(seed=1, buffer_size=6)
    data = rx.data.as_dataset(source)
    epochs = [[int(row["y"]) for row in data.open(epoch=epoch)] for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(6))] * 3
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert [int(row["y"]) for row in data.open(epoch=2, start=2)] == epochs[2][2:]
    (batch,) = data.batch(6)
    assert batch["x"].shape == (6, 2)


def test_hugging_face_shards(rows_of):
    from datasets.distributed import split_dataset_by_node

    source = rows_of.to_iterable_dataset(num_shards=2)
    assert not rx.data.as_dataset(source).is_sharded
    assert rx.data.as_dataset(split_dataset_by_node(source, rank=0, world_size=2)).is_sharded


def test_hugging_face_splits(hugging_face, rows_of):
    splits = hugging_face.DatasetDict({"train": rows_of, "test": rows_of})
    with pytest.raises(rx.errors.ArgumentTypeError, match=r"dataset\['train'\]"):
        rx.data.as_dataset(splits)


# --- torch -------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def torch_numbers(torch):
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return torch.tensor([index, -index]), index

    return Rows()


def test_torch_dataset(torch):
    data = rx.data.as_dataset(torch_numbers(torch)).batch(3)
    assert plain(data.open(start=1)) == [([[3, -3], [4, -4]], [3, 4])]
    assert isinstance(next(iter(data))[0], np.ndarray)


def test_torch_iterable(torch):
    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from (torch.tensor(i) for i in range(3))

    data = rx.data.as_dataset(Rows())
    assert (plain(data), data.has_indices) == ([0, 1, 2], False)


def test_torch_loader(torch):
    loader = torch.utils.data.DataLoader(torch_numbers(torch), batch_size=2)
    data = rx.data.as_dataset(loader)
    assert plain(data) == plain([t.numpy() for t in batch] for batch in loader)
    assert (len(data), data.batch_size, data.is_sharded) == (3, 2, False)
    assert len(plain(data.open(start=2))) == 1


def test_torch_loader_that_shuffles_cannot_be_opened_further_on(torch):
    loader = torch.utils.data.DataLoader(torch_numbers(torch), batch_size=2, shuffle=True)
    data = rx.data.as_dataset(loader)
    assert len(list(data)) == 3
    with pytest.raises(rx.errors.FailedPreconditionError, match="shuffle=True"):
        next(data.open(start=1))


def test_torch_distributed_sampler_is_a_shard(torch):
    source = torch_numbers(torch)
    sampler = torch.utils.data.DistributedSampler(source, num_replicas=2, rank=0)
    loader = torch.utils.data.DataLoader
    assert rx.data.as_dataset(loader(source, sampler=sampler)).is_sharded
    batches = torch.utils.data.BatchSampler(sampler, 2, drop_last=False)
    assert rx.data.as_dataset(loader(source, batch_sampler=batches)).is_sharded


def test_torch_loader_whose_batches_are_shuffled_cannot_be_opened_further_on(torch):
    source = torch_numbers(torch)
    shuffled = torch.utils.data.RandomSampler(source)
    batches = torch.utils.data.BatchSampler(shuffled, 2, drop_last=False)
    loader = torch.utils.data.DataLoader(source, batch_sampler=batches)
    with pytest.raises(rx.errors.FailedPreconditionError, match="shuffle=True"):
        next(rx.data.as_dataset(loader).open(start=1))


# --- TensorFlow, Keras -------------------------------------------------------------------------


@pytest.fixture
def environment():
    """Both set variables when they are imported."""
    with unittest.mock.patch.dict(os.environ):
        os.environ.setdefault("KERAS_BACKEND", "jax")
        yield


@pytest.fixture
def tf(environment):
    return pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


@pytest.fixture
def keras(environment):
    return pytest.importorskip("keras", reason="Keras is not installed")


def test_tensorflow_dataset(tf):
    data = rx.data.as_dataset(tf.data.Dataset.range(5).batch(2))
    assert plain(data) == [[0, 1], [2, 3], [4]]
    assert plain(data.open(start=2)) == [[4]]
    assert len(data) == 3
    assert rx.data.as_dataset(tf.data.Dataset.range(2).repeat()).is_infinite
    unknown = rx.data.as_dataset(tf.data.Dataset.range(4).filter(lambda i: i > 1))
    assert (unknown.num_elements, plain(unknown)) == (None, [2, 3])


def test_tensorflow_shards(tf):
    numbers = tf.data.Dataset.range(10)
    pairs = tf.data.Dataset.zip((numbers, numbers.shard(2, 0).batch(2).prefetch(1)))
    assert rx.data.as_dataset(pairs).is_sharded
    assert not rx.data.as_dataset(numbers.shard(1, 0).batch(2)).is_sharded


def test_keras_py_dataset(keras):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.full((2, 1), index), np.zeros(2)

    data = rx.data.as_dataset(Batches())
    assert [int(x[0, 0]) for x, _ in data] == [0, 1, 2]
    assert [int(x[0, 0]) for x, _ in data.open(start=2)] == [2]
    assert len(data) == 3
