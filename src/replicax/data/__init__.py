"""Data: sources and the chain of stages from them to global batches.

A dataset can be opened at any element of any epoch. Where its source has indices, a stage is
arithmetic on element numbers, so the start of an epoch costs nothing and every row is known by its
place in the source.
"""

from replicax.data._adapters import as_dataset as as_dataset
from replicax.data._arrays import from_arrays as from_arrays
from replicax.data._dataset import HINT as HINT
from replicax.data._dataset import Dataset as Dataset
from replicax.data._files import FilesDataset as FilesDataset
from replicax.data._files import from_files as from_files
from replicax.data._readers import read_array_records as read_array_records
from replicax.data._readers import read_lines as read_lines
from replicax.data._readers import read_npz as read_npz
from replicax.data._readers import read_parquet as read_parquet
from replicax.data._sources import from_iterable as from_iterable

__all__ = [
    "HINT",
    "Dataset",
    "FilesDataset",
    "as_dataset",
    "from_arrays",
    "from_files",
    "from_iterable",
    "read_array_records",
    "read_lines",
    "read_npz",
    "read_parquet",
]
