"""Input: global batches shared out over the replicas.

Floor 5 of the design.
"""

from replicax.input._distributed import DistributedDataset as DistributedDataset
from replicax.input._distributed import distribute as distribute
from replicax.input._from_function import InputContext as InputContext
from replicax.input._from_function import from_function as from_function
from replicax.input._options import InputOptions as InputOptions
from replicax.input._split import rows_per_replica as rows_per_replica

__all__ = [
    "DistributedDataset",
    "InputContext",
    "InputOptions",
    "distribute",
    "from_function",
    "rows_per_replica",
]
