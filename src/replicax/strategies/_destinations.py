"""Where results of `reduce_to` and `broadcast_to` go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax import devices, errors
from replicax.step import require_cross_replica
from replicax.values import (
    DistributedValues,
    Mirrored,
    PerReplica,
    StrategyLike,
    Variable,
    current_frame,
)
from replicax.values._combine import as_array
from replicax.values._mesh import placed_by_processes
from replicax.values._workers import meet_to_combine


def placed(strategy: StrategyLike, destinations: Any, call: str) -> Callable[[Any], Any]:
    """A function that places a tree of arrays on the devices that ``destinations`` names.

    Raises:
        ArgumentTypeError: It names no devices.
        UnknownDeviceError: It names a device that is not there.
    """
    require_cross_replica(strategy, call)
    sharding = _sharding_of(strategy, destinations, call)

    frame = current_frame()
    is_local = frame is not None and frame.access is not None and frame.access.is_local
    traced = None if is_local else strategy.replica_mesh.mirrored

    def place(value: Any) -> Any:
        if strategy.replica_mesh.spans_processes and (frame is None or frame.access is None):
            meet_to_combine(call, value, {})
        return jax.tree.map(
            lambda leaf: _put(leaf, sharding, traced), value, is_leaf=_is_distributed
        )

    return place


def with_destination(pairs: Any) -> Sequence[tuple[Any, Any]]:
    """Check the pairs of `batch_reduce_to`.

    Raises:
        ArgumentTypeError: They are no pairs.
    """
    if isinstance(pairs, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2  # noqa: PLR2004 - a pair
        for pair in pairs
    ):
        return pairs
    raise errors.ArgumentTypeError(
        errors.describe(
            f"batch_reduce_to was given {pairs!r}.",
            fix="Pass a list of pairs `(value, destinations)`.",
        )
    )


def _is_distributed(value: Any) -> bool:
    return isinstance(value, (DistributedValues, Variable))


def _put(leaf: Any, sharding: Any, traced: Any) -> Any:
    """Place one value; one that is being traced goes where ``traced`` says, or stays."""
    if isinstance(leaf, PerReplica):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"broadcast_to was given {leaf!r}.",
                why="It has one component a replica; one of them would have to be chosen.",
                fix="Reduce it first, with `strategy.reduce` or `extended.reduce_to`.",
            )
        )
    array = as_array(leaf.value if isinstance(leaf, (Mirrored, Variable)) else leaf)
    if isinstance(array, jax.core.Tracer):
        # One program runs on the replicas' devices only, and each replica has a merge call's value.
        return array if traced is None else jax.lax.with_sharding_constraint(array, traced)
    return placed_by_processes(array, sharding)


def _sharding_of(strategy: StrategyLike, destinations: Any, call: str) -> Any:
    if isinstance(destinations, (str, devices.DeviceSpec, jax.Device)):
        return jax.sharding.SingleDeviceSharding(devices.resolve(destinations))
    if isinstance(destinations, Variable):
        owner = destinations.strategy
        if owner is not None and owner.parameter_device is not None and owner is strategy:
            return jax.sharding.SingleDeviceSharding(owner.parameter_device)
        return (owner or strategy).replica_mesh.mirrored
    if isinstance(destinations, DistributedValues):
        return strategy.replica_mesh.mirrored
    if isinstance(destinations, jax.Array) and not isinstance(destinations, jax.core.Tracer):
        return destinations.sharding
    if isinstance(destinations, jax.core.Tracer):
        return strategy.replica_mesh.mirrored
    raise errors.ArgumentTypeError(
        errors.describe(
            f"`{call}` was given `destinations` = {destinations!r}, which names no devices.",
            fix="Pass a variable, a value that lies where the result should go, or a device spec "
            "such as 'cpu:0'. Lists of devices are not accepted: a variable of the strategy names "
            "all of them.",
        )
    )
