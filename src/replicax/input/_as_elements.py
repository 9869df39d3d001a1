"""From what users call a dataset to elements that can be opened anywhere."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from replicax import errors
from replicax.data import Dataset, as_dataset
from replicax.input._options import InputOptions
from replicax.input._sources import (
    ArrayBatches,
    Elements,
    IterableBatches,
    OnceBatches,
    is_arrays,
    refuse_distributed,
)
from replicax.input._split import host_array
from replicax.values import PerReplica

# Libraries whose datasets `rx.data` knows how to open anywhere.
_LIBRARIES = frozenset({"datasets", "grain", "keras", "tensorflow", "torch"})


def as_elements(dataset: Any, options: InputOptions) -> Elements:
    """The batches of anything that can be distributed.

    Raises:
        ArgumentTypeError: It is no dataset.
        InvalidArgumentError: Its arrays do not fit together, or a batch size was given for a
            dataset that has its own; or it is distributed already.
    """
    refuse_distributed(dataset)
    if is_arrays(dataset):
        return _from_arrays(dataset, options)
    if is_from_library(dataset) or inspect.isgeneratorfunction(dataset):
        dataset = as_dataset(dataset)
    if isinstance(dataset, Dataset):
        if options.global_batch_size is None:
            return dataset
        if dataset.batch_size is None:
            return dataset.batch(options.global_batch_size)
    _refuse_batch_size(dataset, options)
    return from_batches(dataset)


def from_batches(batches: Any) -> Elements:
    """The elements of an iterable of batches.

    Raises:
        ArgumentTypeError: It is none.
        InvalidArgumentError: It is distributed already.
    """
    refuse_distributed(batches)
    if is_from_library(batches):
        batches = as_dataset(batches)
    if isinstance(batches, Dataset):
        return batches
    if isinstance(batches, (dict, str, bytes, PerReplica)) or not isinstance(batches, Iterable):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"A {type(batches).__name__} cannot be distributed as a dataset: {batches!r:.80}",
                fix="Pass an array, a dict or tuple of arrays with one row an example, an "
                "iterable of global batches, or a dataset of `rx.data`.",
            )
        )
    if isinstance(batches, Iterator):
        return OnceBatches(batches)
    return IterableBatches(batches)


def is_from_library(dataset: Any) -> bool:
    """Whether a class of the dataset comes from a library of datasets, which is not imported."""
    return any(base.__module__.partition(".")[0] in _LIBRARIES for base in type(dataset).__mro__)


def _refuse_batch_size(dataset: Any, options: InputOptions) -> None:
    if options.global_batch_size is None:
        return
    raise errors.InvalidArgumentError(
        errors.describe(
            f"`global_batch_size` = {options.global_batch_size} was given for a dataset that "
            f"yields its own batches, a {type(dataset).__name__}.",
            fix="Leave it out, or pass arrays or a dataset of rows.",
        )
    )


def _from_arrays(arrays: Any, options: InputOptions) -> ArrayBatches:
    arrays = jax.tree.map(host_array, arrays)
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    lengths = {leaf.shape[0] if leaf.ndim else None for _, leaf in leaves}
    if len(lengths) > 1 or None in lengths:
        shapes = [(f"dataset{jax.tree_util.keystr(path)}", leaf.shape) for path, leaf in leaves]
        raise errors.InvalidArgumentError(
            errors.describe(
                "The arrays of a dataset do not have one number of rows.",
                table=errors.Table(("array", "shape"), shapes),
                fix="Pass arrays with one row an example on axis 0.",
            )
        )
    rows = lengths.pop() or 0
    return ArrayBatches(arrays, rows, int(options.global_batch_size or max(rows, 1)))
