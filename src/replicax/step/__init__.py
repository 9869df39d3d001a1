"""How a step runs: contexts, `rx.function`, the proof, and the two runners.

Floor 4 of the design. The compiled runner traces a replica function once, proves it and makes one
program over all devices; the eager runner runs it once a replica, in turns.
"""

from replicax.step._access import surrounding_trace as surrounding_trace
from replicax.step._accumulate import accumulate as accumulate
from replicax.step._bound_objects import ObjectKind as ObjectKind
from replicax.step._bound_objects import peek as peek
from replicax.step._bound_objects import register_objects as register_objects
from replicax.step._clipping import clip_by_global_norm as clip_by_global_norm
from replicax.step._compiled_context import CompiledReplicaContext as CompiledReplicaContext
from replicax.step._context import ReplicaContext as ReplicaContext
from replicax.step._function import Function as Function
from replicax.step._function import function as function
from replicax.step._gradients import value_and_grad as value_and_grad
from replicax.step._lookup import embedding_lookup as embedding_lookup
from replicax.step._losses import compute_average_loss as compute_average_loss
from replicax.step._optimizers import Optimizer as Optimizer
from replicax.step._optimizers import apply_gradients as apply_gradients
from replicax.step._optimizers import register_optimizer as register_optimizer
from replicax.step._packed_optimizer import pack_optimizer as pack_optimizer
from replicax.step._proof import register_primitive as register_primitive
from replicax.step._random import RandomStream as RandomStream
from replicax.step._require_mirrored import require_mirrored as require_mirrored
from replicax.step._results import is_counted as is_counted
from replicax.step._results import is_per_row as is_per_row
from replicax.step._run import mixed as mixed
from replicax.step._run import require_cross_replica as require_cross_replica
from replicax.step._run import run as run
from replicax.step._run import run_update as run_update
from replicax.step._sharded_optimizer import ShardedTransformation as ShardedTransformation
from replicax.step._sharded_optimizer import shard_optimizer as shard_optimizer
from replicax.step._single_context import SingleReplicaContext as SingleReplicaContext
from replicax.step._single_context import current_replica_context as current_replica_context
from replicax.step._sources import BatchRun as BatchRun
from replicax.step._sources import BatchSource as BatchSource
from replicax.step._sources import take_in_step as take_in_step
from replicax.step._sparse_transformation import sparse_rows as sparse_rows

__all__ = [
    "BatchRun",
    "BatchSource",
    "CompiledReplicaContext",
    "Function",
    "ObjectKind",
    "Optimizer",
    "RandomStream",
    "ReplicaContext",
    "ShardedTransformation",
    "SingleReplicaContext",
    "accumulate",
    "apply_gradients",
    "clip_by_global_norm",
    "compute_average_loss",
    "current_replica_context",
    "embedding_lookup",
    "function",
    "is_counted",
    "is_per_row",
    "mixed",
    "pack_optimizer",
    "peek",
    "register_objects",
    "register_optimizer",
    "register_primitive",
    "require_cross_replica",
    "require_mirrored",
    "run",
    "run_update",
    "shard_optimizer",
    "sparse_rows",
    "surrounding_trace",
    "take_in_step",
    "value_and_grad",
]
