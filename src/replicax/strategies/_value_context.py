"""What a function that makes per-replica values is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ValueContext:
    """What a value function is told about the replica it makes a value for.

    Attributes:
        replica_id_in_sync_group: Number of the replica, from 0.
        num_replicas_in_sync: Number of replicas.
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1
