"""Readers of files for `rx.data.from_files`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from replicax import errors


def read_lines(path: str) -> Iterator[str]:
    """The lines of a text file (UTF-8), without their ends."""
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n")


def read_npz(path: str) -> Iterator[dict[str, Any]]:
    """The rows of the arrays `[N, ...]` of an `.npz` file, as dicts.

    Raises:
        InvalidArgumentError: The arrays do not have one number of rows.
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    lengths = {array.shape[0] if array.ndim else None for array in arrays.values()}
    if len(lengths) != 1 or None in lengths:
        table = [(name, array.shape) for name, array in arrays.items()]
        raise errors.InvalidArgumentError(
            errors.describe(
                f"The arrays of {path!r} do not have one number of rows.",
                table=errors.Table(("array", "shape"), table),
                fix="Write arrays with one row an example on axis 0.",
            )
        )
    for row in range(len(next(iter(arrays.values())))):
        yield {name: array[row] for name, array in arrays.items()}


def read_parquet(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file, as dicts of NumPy values; needs pyarrow.

    Raises:
        FailedPreconditionError: pyarrow is not installed.
    """
    parquet = _imported("pyarrow.parquet", "pyarrow", "Parquet files")
    with parquet.ParquetFile(path) as file:
        for table in file.iter_batches():
            names = table.schema.names
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                yield {name: _value(value) for name, value in zip(names, row, strict=True)}


def _value(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, list) else value


def read_array_records(path: str) -> Iterator[bytes]:
    """The records of an ArrayRecord file, as bytes; needs Grain.

    Raises:
        FailedPreconditionError: Grain is not installed.
    """
    grain = _imported("grain", "grain", "array records")
    with grain.sources.ArrayRecordDataSource(path) as source:
        for index in range(len(source)):
            yield source[index]


def _imported(module: str, package: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise errors.FailedPreconditionError(
            errors.describe(
                f"Reading {what} needs {package}, which cannot be imported.",
                why=str(error),
                fix=f"Install it: `pip install {package}`.",
            )
        ) from error
