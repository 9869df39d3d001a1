"""The part of a strategy that libraries use rather than training loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replicax import devices

if TYPE_CHECKING:
    from replicax.values import StrategyLike


@dataclass(frozen=True)
class ValueContext:
    """What a value function is told about the replica it makes a value for.

    Attributes:
        replica_id_in_sync_group: Number of the replica, from 0.
        num_replicas_in_sync: Number of replicas.
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1


class StrategyExtended:
    """Facts about a strategy, under tf.distribute's names.

    Args:
        strategy: The strategy.
    """

    def __init__(self, strategy: StrategyLike) -> None:
        self._strategy = strategy

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Device specs of the replicas, in replica order.

        Examples:
            >>> import replicax as rx
            >>> rx.MirroredStrategy(["cpu:0"]).extended.worker_devices
            ('/job:localhost/replica:0/task:0/device:CPU:0',)
        """
        mesh = self._strategy.replica_mesh
        return tuple(str(devices.spec_of(device)) for device in mesh.devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Device specs that hold the variables: the replicas' devices."""
        return self.worker_devices
