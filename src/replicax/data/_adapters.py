"""Datasets from whatever the user has.

What an object is, is told from the modules of its classes. So no package is imported that the
user has not imported, and one that is not installed is never asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from replicax import errors
from replicax.data import _foreign
from replicax.data._arrays import ArrayDataset
from replicax.data._dataset import Dataset
from replicax.data._sources import (
    IndexedDataset,
    from_iterable,
    from_sequence,
)
from replicax.values import PerReplica

# (module or its beginning, class): the most special class first.
_KNOWN: tuple[tuple[str, str, Callable[[Any], Dataset]], ...] = (
    ("grain", "DataLoader", _foreign.grain_loader),
    ("grain", "MapDataset", _foreign.grain_map_dataset),
    ("grain", "IterDataset", _foreign.grain_iter_dataset),
    ("datasets.arrow_dataset", "Dataset", _foreign.hugging_face_dataset),
    ("datasets.iterable_dataset", "IterableDataset", _foreign.hugging_face_iterable),
    ("datasets.dataset_dict", "DatasetDict", _foreign.hugging_face_splits),
    ("datasets.dataset_dict", "IterableDatasetDict", _foreign.hugging_face_splits),
    ("torch.utils.data", "DataLoader", _foreign.torch_loader),
    ("torch.utils.data", "IterableDataset", _foreign.torch_iterable),
    ("torch.utils.data", "Dataset", _foreign.torch_dataset),
    ("tensorflow", "DatasetV2", _foreign.tensorflow_dataset),
    ("keras", "PyDataset", _foreign.keras_py_dataset),
)


def as_dataset(source: Any) -> Dataset:
    """A dataset from arrays, iterables, or the dataset of another library.

    Accepted are:

    - an `rx.data.Dataset`, as it is;
    - an array, or a dict or tuple of arrays: elements are rows;
    - a list or another sequence, an iterable, a generator function: elements are its items;
    - an object with `__len__` and `__getitem__`;
    - Grain `MapDataset`, `IterDataset`, `DataLoader`; Hugging Face `datasets`; torch `Dataset`,
      `IterableDataset`, `DataLoader`; `tf.data.Dataset`; Keras `PyDataset`.

    What is a shard already `is_sharded`, and is not shared out again. This is seen of `.shard` of
    `rx.data`; of Grain slices `dataset[i::n]` and shard options; of a torch sampler with
    `num_replicas`, such as `DistributedSampler`; of `tf.data`'s `shard`, outside of functions given
    to `interleave`; of a Hugging Face `IterableDataset` from `split_dataset_by_node`. It cannot be
    seen of a Hugging Face `Dataset` (its shards are datasets like any other), of `.shard` of a
    Hugging Face `IterableDataset`, of `grain` sources and generators that leave rows out
    themselves, and of a torch `IterableDataset` that does.

    Raises:
        ArgumentTypeError: It is none of these.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> [row.item() for row in rx.data.as_dataset(np.arange(3))]
        [0, 1, 2]
        >>> len(rx.data.as_dataset([np.zeros(2), np.zeros(1)]))
        2
    """
    if isinstance(source, Dataset):
        return source
    for module, name, adapt in _KNOWN:
        if _is_a(source, module, name):
            return adapt(source)
    if _is_arrays(source):
        return ArrayDataset(source)
    if not isinstance(source, (str, bytes, dict, set, frozenset, PerReplica)):
        if isinstance(source, Sequence):
            return from_sequence(source)
        if isinstance(source, Iterable) or inspect.isgeneratorfunction(source):
            return from_iterable(source)
        if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
            name = type(source).__name__
            return IndexedDataset(lambda index, _: source[index], len(source), name)
    raise errors.ArgumentTypeError(
        errors.describe(
            f"A {type(source).__name__} is no dataset: {source!r:.80}",
            fix="Pass an array, a dict or tuple of arrays with one row an example, a list, an "
            "iterable, a generator function, an object with `__len__` and `__getitem__`, or a "
            "dataset of Grain, Hugging Face, torch, tf.data or Keras.",
        )
    )


def _is_a(source: Any, module: str, name: str) -> bool:
    return any(
        cls.__name__ == name and f"{cls.__module__}.".startswith(f"{module}.")
        for cls in type(source).__mro__
    )


def _is_arrays(source: Any) -> bool:
    if isinstance(source, (np.ndarray, jax.Array)):
        return True
    if not isinstance(source, (dict, tuple)) or not source:
        return False
    leaves = jax.tree.leaves(source)
    return bool(leaves) and all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves)
