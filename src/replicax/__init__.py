"""Replicax: distributed training in the manner of tf.distribute, on JAX.

A step that runs under a strategy gives the numbers that one device gives on the same global batch,
or it raises an error that names what differs.
"""

import importlib as _importlib
import typing as _typing

from replicax import _compilation_cache, _log
from replicax import cluster as cluster
from replicax import data as data
from replicax import devices as devices
from replicax import errors as errors
from replicax import metrics as metrics
from replicax import precision as precision
from replicax import recording as recording
from replicax._compilation_cache import set_compilation_cache as set_compilation_cache
from replicax.cluster import Timeouts as Timeouts
from replicax.collectives import CommunicationImplementation as CommunicationImplementation
from replicax.collectives import CommunicationOptions as CommunicationOptions
from replicax.collectives import ReduceOp as ReduceOp
from replicax.devices import DeviceSpec as DeviceSpec
from replicax.input import AutoShardPolicy as AutoShardPolicy
from replicax.input import DistributedDataset as DistributedDataset
from replicax.input import DistributedIterator as DistributedIterator
from replicax.input import InputContext as InputContext
from replicax.input import InputOptions as InputOptions
from replicax.input import InputPlan as InputPlan
from replicax.input import InputReplicationMode as InputReplicationMode
from replicax.step import Function as Function
from replicax.step import Optimizer as Optimizer
from replicax.step import ReplicaContext as ReplicaContext
from replicax.step import accumulate as accumulate
from replicax.step import apply_gradients as apply_gradients
from replicax.step import clip_by_global_norm as clip_by_global_norm
from replicax.step import compute_average_loss as compute_average_loss
from replicax.step import embedding_lookup as embedding_lookup
from replicax.step import function as function
from replicax.step import pack_optimizer as pack_optimizer
from replicax.step import register_optimizer as register_optimizer
from replicax.step import register_primitive as register_primitive
from replicax.step import shard_optimizer as shard_optimizer
from replicax.step import sparse_rows as sparse_rows
from replicax.step import value_and_grad as value_and_grad
from replicax.strategies import CentralStorageStrategy as CentralStorageStrategy
from replicax.strategies import MirroredStrategy as MirroredStrategy
from replicax.strategies import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from replicax.strategies import OneDeviceStrategy as OneDeviceStrategy
from replicax.strategies import Strategy as Strategy
from replicax.strategies import ValueContext as ValueContext
from replicax.strategies import get_replica_context as get_replica_context
from replicax.strategies import get_strategy as get_strategy
from replicax.strategies import has_strategy as has_strategy
from replicax.strategies import in_cross_replica_context as in_cross_replica_context
from replicax.values import AggregatingVariable as AggregatingVariable
from replicax.values import DistributedValues as DistributedValues
from replicax.values import IndexedSlices as IndexedSlices
from replicax.values import Mirrored as Mirrored
from replicax.values import MirroredVariable as MirroredVariable
from replicax.values import Packed as Packed
from replicax.values import PerReplica as PerReplica
from replicax.values import SyncOnReadVariable as SyncOnReadVariable
from replicax.values import Variable as Variable
from replicax.values import VariableAggregation as VariableAggregation
from replicax.values import VariableSynchronization as VariableSynchronization
from replicax.values import pack as pack

if _typing.TYPE_CHECKING:
    from replicax import checkpoint as checkpoint
    from replicax import doctor as doctor
    from replicax import keras as keras
    from replicax import nnx as nnx
    from replicax import testing as testing
    from replicax.checkpoint import PreemptionHandler as PreemptionHandler
    from replicax.checkpoint import TerminationConfig as TerminationConfig
    from replicax.inspection import Explanation as Explanation
    from replicax.inspection import Fabric as Fabric
    from replicax.inspection import explain as explain
    from replicax.inspection import trace as trace
    from replicax.verification import Report as Report
    from replicax.verification import check_replicas_equal as check_replicas_equal
    from replicax.verification import check_replicas_work as check_replicas_work
    from replicax.verification import verify as verify
else:
    _PACKAGES = ("checkpoint", "doctor", "inspection", "keras", "nnx", "testing", "verification")
    _HOMES = {
        "checkpoint": ("PreemptionHandler", "TerminationConfig"),
        "inspection": ("Explanation", "Fabric", "explain", "trace"),
        "verification": ("Report", "check_replicas_equal", "check_replicas_work", "verify"),
    }

    def __getattr__(name: str) -> _typing.Any:
        """Import what is not always needed at its first use: `checkpoint` loads Orbax, a second."""
        if name in _PACKAGES:
            return _importlib.import_module(f"replicax.{name}")
        for home, names in _HOMES.items():
            if name in names:
                return getattr(_importlib.import_module(f"replicax.{home}"), name)
        raise AttributeError(f"module 'replicax' has no attribute {name!r}")


__version__ = "0.1.0.dev0"

__all__ = [
    "AggregatingVariable",
    "AutoShardPolicy",
    "CentralStorageStrategy",
    "CommunicationImplementation",
    "CommunicationOptions",
    "DeviceSpec",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "Explanation",
    "Fabric",
    "Function",
    "IndexedSlices",
    "InputContext",
    "InputOptions",
    "InputPlan",
    "InputReplicationMode",
    "Mirrored",
    "MirroredStrategy",
    "MirroredVariable",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "Optimizer",
    "Packed",
    "PerReplica",
    "PreemptionHandler",
    "ReduceOp",
    "ReplicaContext",
    "Report",
    "Strategy",
    "SyncOnReadVariable",
    "TerminationConfig",
    "Timeouts",
    "ValueContext",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "accumulate",
    "apply_gradients",
    "check_replicas_equal",
    "check_replicas_work",
    "checkpoint",
    "clip_by_global_norm",
    "cluster",
    "compute_average_loss",
    "data",
    "devices",
    "doctor",
    "embedding_lookup",
    "errors",
    "explain",
    "function",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "metrics",
    "pack",
    "pack_optimizer",
    "precision",
    "recording",
    "register_optimizer",
    "register_primitive",
    "set_compilation_cache",
    "shard_optimizer",
    "sparse_rows",
    "testing",
    "trace",
    "value_and_grad",
    "verify",
]

_log.apply_environment()
_compilation_cache.apply_environment()
devices.apply_environment()
