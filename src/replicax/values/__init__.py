"""Values: what replicas hold, and variables.

Floor 3 of the design. `PerReplica` holds what may differ between replicas, `Mirrored` what is
equal on all, and variables are state with rules for reading and writing in each context.
"""

from replicax.values._aggregating import AggregatingVariable as AggregatingVariable
from replicax.values._distributed import UNKNOWN as UNKNOWN
from replicax.values._distributed import DistributedValues as DistributedValues
from replicax.values._distributed import Mirrored as Mirrored
from replicax.values._distributed import PerReplica as PerReplica
from replicax.values._distributed import Provenance as Provenance
from replicax.values._distributed import regroup as regroup
from replicax.values._distributed import same_bits as same_bits
from replicax.values._distributed import spread as spread
from replicax.values._foreign import as_variable as as_variable
from replicax.values._foreign import register_foreign as register_foreign
from replicax.values._frames import Frame as Frame
from replicax.values._frames import StrategyLike as StrategyLike
from replicax.values._frames import VariableAccess as VariableAccess
from replicax.values._frames import current_frame as current_frame
from replicax.values._frames import depth as depth
from replicax.values._frames import entered as entered
from replicax.values._frames import register_frame_hook as register_frame_hook
from replicax.values._indexed_slices import IndexedSlices as IndexedSlices
from replicax.values._kinds import VariableAggregation as VariableAggregation
from replicax.values._kinds import VariableSynchronization as VariableSynchronization
from replicax.values._mesh import AXIS as AXIS
from replicax.values._mesh import ReplicaMesh as ReplicaMesh
from replicax.values._packed import Packed as Packed
from replicax.values._packing import pack as pack
from replicax.values._sync_on_read import SyncOnReadVariable as SyncOnReadVariable
from replicax.values._variable import MirroredVariable as MirroredVariable
from replicax.values._variable import Variable as Variable
from replicax.values._variable import live_variables as live_variables

__all__ = [
    "AXIS",
    "UNKNOWN",
    "AggregatingVariable",
    "DistributedValues",
    "Frame",
    "IndexedSlices",
    "Mirrored",
    "MirroredVariable",
    "Packed",
    "PerReplica",
    "Provenance",
    "ReplicaMesh",
    "StrategyLike",
    "SyncOnReadVariable",
    "Variable",
    "VariableAccess",
    "VariableAggregation",
    "VariableSynchronization",
    "as_variable",
    "current_frame",
    "depth",
    "entered",
    "live_variables",
    "pack",
    "register_foreign",
    "register_frame_hook",
    "regroup",
    "same_bits",
    "spread",
]
