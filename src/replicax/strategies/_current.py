"""Which strategy and context the current thread is in."""

from __future__ import annotations

import functools
from typing import Any

from replicax.step import ReplicaContext, current_replica_context
from replicax.strategies._base import Strategy
from replicax.strategies._one_device import DefaultStrategy
from replicax.values import current_frame


@functools.cache
def _default_strategy() -> DefaultStrategy:
    return DefaultStrategy()


def get_strategy() -> Strategy:
    """Return the strategy in force; outside of every scope, a default one of one replica.

    Context: any.

    Examples:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     rx.get_strategy() is strategy
        True
    """
    frame = current_frame()
    strategy: Any = frame.strategy if frame is not None else None
    return strategy if strategy is not None else _default_strategy()


def has_strategy() -> bool:
    """Return whether a strategy other than the default one is in force.

    Context: any. A new thread starts without.

    Examples:
        >>> import replicax as rx
        >>> rx.has_strategy()
        False
    """
    frame = current_frame()
    return frame is not None and frame.strategy is not None


def get_replica_context() -> ReplicaContext | None:
    """Return the replica context, or None in cross-replica context.

    Outside of every scope it is that of a single replica, as in tf.distribute.

    Context: any.

    Examples:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
        PerReplica(0, 1)
    """
    return current_replica_context()


def in_cross_replica_context() -> bool:
    """Return whether the current context is cross-replica: in a scope, but not in a replica.

    Context: any.

    Examples:
        >>> import replicax as rx
        >>> with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        ...     rx.in_cross_replica_context()
        True
    """
    return get_replica_context() is None
