"""Strategies: which devices train together, and by which rules.

Floor 6 of the design; each is a thin choice of the parts below.
"""

from replicax.strategies._base import Strategy as Strategy
from replicax.strategies._central_storage import CentralStorageStrategy as CentralStorageStrategy
from replicax.strategies._current import get_replica_context as get_replica_context
from replicax.strategies._current import get_strategy as get_strategy
from replicax.strategies._current import has_strategy as has_strategy
from replicax.strategies._current import in_cross_replica_context as in_cross_replica_context
from replicax.strategies._extended import StrategyExtended as StrategyExtended
from replicax.strategies._mirrored import MirroredStrategy as MirroredStrategy
from replicax.strategies._multi_worker import (
    MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
)
from replicax.strategies._one_device import OneDeviceStrategy as OneDeviceStrategy
from replicax.strategies._value_context import ValueContext as ValueContext

__all__ = [
    "CentralStorageStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "Strategy",
    "StrategyExtended",
    "ValueContext",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
