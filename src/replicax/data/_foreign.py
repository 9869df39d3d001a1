"""Datasets of other libraries, seen through their public methods.

Elements are handed on as they are, but for tensors, which become NumPy arrays.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np

from replicax import errors
from replicax.data import _compat
from replicax.data._dataset import Dataset
from replicax.data._sources import IndexedDataset, IterableDataset

# --- Grain -----------------------------------------------------------------------------------


def grain_map_dataset(source: Any) -> Dataset:
    """A Grain `MapDataset`. Numbers beyond its length are its next epochs, shuffled anew."""
    size: int | None = len(source)
    if size == sys.maxsize:  # `.repeat()`
        size = None

    def get(index: int, epoch: int) -> Any:
        element = source[index + epoch * (size or 0)]
        if element is None:
            raise errors.UnimplementedError(
                errors.describe(
                    f"Element {index} of a Grain MapDataset was filtered out.",
                    why="A MapDataset has a hole there, so its elements cannot be counted.",
                    fix="Call `.to_iter_dataset()` on it, or filter before.",
                )
            )
        return element

    return IndexedDataset(
        get, size, _name(source, "Grain"), is_sharded=_compat.is_grain_shard(source)
    )


def grain_iter_dataset(source: Any) -> Dataset:
    """A Grain `IterDataset`."""
    return IterableDataset(
        source.__iter__, _name(source, "Grain"), is_sharded=_compat.is_grain_shard(source)
    )


def grain_loader(source: Any) -> Dataset:
    """A Grain `DataLoader`."""
    return IterableDataset(
        source.__iter__,
        _name(source, "Grain"),
        is_sharded=_compat.is_sharded_grain_loader(source),
        is_infinite=_compat.is_endless_grain_loader(source),
    )


# --- Hugging Face ------------------------------------------------------------------------------


def hugging_face_dataset(source: Any) -> Dataset:
    """A Hugging Face `Dataset`; in its own format, or as NumPy arrays where it has none."""
    source = _as_numpy(source)
    return IndexedDataset(
        lambda index, _: _on_host(source[index]), len(source), _name(source, "Hugging Face")
    )


def hugging_face_iterable(source: Any) -> Dataset:
    """A Hugging Face `IterableDataset`, shuffled anew for each epoch if it shuffles."""
    return IterableDataset(
        source.__iter__,
        _name(source, "Hugging Face"),
        is_sharded=_compat.is_hugging_face_shard(source),
        set_epoch=source.set_epoch,
        convert=_arrays_of_lists,
    )


def hugging_face_splits(source: Any) -> Dataset:
    """Refuse a dict of splits."""
    raise errors.ArgumentTypeError(
        errors.describe(
            f"A {type(source).__name__} is several datasets: {', '.join(map(repr, source))}.",
            fix=f"Pass one of them, such as `dataset[{next(iter(source), 'train')!r}]`.",
        )
    )


def _as_numpy(source: Any) -> Any:
    return source.with_format("numpy") if source.format["type"] is None else source


def _arrays_of_lists(row: Any) -> Any:
    if not isinstance(row, dict):
        return _on_host(row)
    return {
        name: np.asarray(value) if isinstance(value, list) else _on_host(value)
        for name, value in row.items()
    }


# --- torch -------------------------------------------------------------------------------------


def torch_dataset(source: Any) -> Dataset:
    """A torch `Dataset` with `__len__` and `__getitem__`."""
    return IndexedDataset(
        lambda index, _: _on_host(source[index]), len(source), _name(source, "torch")
    )


def torch_iterable(source: Any) -> Dataset:
    """A torch `IterableDataset`."""
    return IterableDataset(source.__iter__, _name(source, "torch"), convert=_on_host)


def torch_loader(source: Any) -> Dataset:
    """A torch `DataLoader`."""
    # With a `batch_sampler`, `sampler` is a default one that is not used.
    batches = getattr(source, "batch_sampler", None)
    samplers: list[Any] = [
        batches,
        getattr(batches, "sampler", None) if batches else source.sampler,
    ]
    is_random = any(type(sampler).__name__ == "RandomSampler" for sampler in samplers)
    set_epochs = [s.set_epoch for s in samplers if hasattr(s, "set_epoch")]
    return IterableDataset(
        source.__iter__,
        _name(source, "torch"),
        size=_length(source),
        batch_size=source.batch_size,
        is_sharded=any(getattr(sampler, "num_replicas", 1) > 1 for sampler in samplers),
        set_epoch=set_epochs[0] if set_epochs else None,
        convert=_on_host,
        unordered_why="The loader draws another order each time (`shuffle=True`)."
        if is_random
        else None,
    )


# --- TensorFlow, Keras -------------------------------------------------------------------------


def tensorflow_dataset(source: Any) -> Dataset:
    """A `tf.data.Dataset`."""
    size = int(source.cardinality())
    return IterableDataset(
        source.as_numpy_iterator,
        _name(source, "tf.data"),
        size=size if size >= 0 else None,
        is_infinite=size == -1,
        is_sharded=_compat.is_tensorflow_shard(source),
    )


def keras_py_dataset(source: Any) -> Dataset:
    """A Keras `PyDataset`: its batches, by number."""
    size = source.num_batches
    return IndexedDataset(
        lambda index, _: _on_host(source[index]),
        None if size is None else int(size),
        _name(source, "Keras"),
    )


# --- for all -----------------------------------------------------------------------------------


def _name(source: Any, library: str) -> str:
    return f"{library} {type(source).__name__}"


def _length(source: Any) -> int | None:
    try:
        return len(source)
    except TypeError:  # torch: the loader has a length, its dataset has none
        return None


def _on_host(element: Any) -> Any:
    """The element with tensors as NumPy arrays."""
    return jax.tree.map(_leaf_on_host, element)


def _leaf_on_host(leaf: Any) -> Any:
    return leaf.detach().cpu().numpy() if hasattr(leaf, "detach") else leaf
