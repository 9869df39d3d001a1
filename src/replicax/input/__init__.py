"""Input: global batches shared out over the replicas.

Floor 5 of the design. A plan says which replica reads which rows at which step; an iterator places
them on the devices ahead of the step.
"""

from replicax.data import from_files as files
from replicax.input._distributed import INFINITE as INFINITE
from replicax.input._distributed import UNKNOWN as UNKNOWN
from replicax.input._distributed import DistributedDataset as DistributedDataset
from replicax.input._distributed import distribute as distribute
from replicax.input._distributed import register_dataset_class as register_dataset_class
from replicax.input._from_function import InputContext as InputContext
from replicax.input._from_function import from_function as from_function
from replicax.input._iterator import DistributedIterator as DistributedIterator
from replicax.input._optional import OptionalBatch as OptionalBatch
from replicax.input._options import InputOptions as InputOptions
from replicax.input._plan import InputPlan as InputPlan
from replicax.input._plan import plan_input as plan_input
from replicax.input._policies import AutoShardPolicy as AutoShardPolicy
from replicax.input._policies import InputReplicationMode as InputReplicationMode
from replicax.input._split import rows_per_replica as rows_per_replica

__all__ = [
    "INFINITE",
    "UNKNOWN",
    "AutoShardPolicy",
    "DistributedDataset",
    "DistributedIterator",
    "InputContext",
    "InputOptions",
    "InputPlan",
    "InputReplicationMode",
    "OptionalBatch",
    "distribute",
    "files",
    "from_function",
    "plan_input",
    "register_dataset_class",
    "rows_per_replica",
]
