"""Replicas that are not there: a step can be traced for more devices than this machine has."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import AbstractMesh, AxisType

from replicax.collectives import Transport
from replicax.values._distributed import PerReplica
from replicax.values._mesh import AXIS, ReplicaMesh

if TYPE_CHECKING:
    from replicax.values._frames import StrategyLike


class ImaginedMesh(ReplicaMesh):
    """Replicas on no devices. Programs over them can be traced and proved, not compiled or run.

    Args:
        num_replicas: How many.
        transport: What would carry their collectives.
    """

    def __init__(self, num_replicas: int, transport: Transport) -> None:
        super().__init__(())
        self._num_replicas = num_replicas
        self.transport = transport  # It cannot be found out: there are no devices.

    @property
    def num_replicas(self) -> int:
        """Number of replicas."""
        return self._num_replicas

    @functools.cached_property
    def mesh(self) -> Any:
        """An abstract mesh of one axis, `"replica"`."""
        return AbstractMesh((self._num_replicas,), (AXIS,), axis_types=(AxisType.Auto,))

    @property
    def is_cpu_simulation(self) -> bool:
        """No: nothing runs."""
        return False

    @functools.cached_property
    def local_replicas(self) -> tuple[int, ...]:
        """All of them, as if one process had them."""
        return tuple(range(self._num_replicas))


class _Here(threading.local):
    strategy: Any = None
    mesh: ImaginedMesh | None = None


_HERE = _Here()


@contextlib.contextmanager
def imagined(strategy: StrategyLike, num_replicas: int) -> Iterator[ImaginedMesh]:
    """While inside, and in this thread, `strategy` has that many replicas, on no devices."""
    before = _HERE.strategy, _HERE.mesh
    mesh = ImaginedMesh(num_replicas, strategy.replica_mesh.transport)
    _HERE.strategy, _HERE.mesh = strategy, mesh
    try:
        yield mesh
    finally:
        _HERE.strategy, _HERE.mesh = before


def imagined_mesh(strategy: object) -> ImaginedMesh | None:
    """The replicas that `strategy` is imagined to have here, or None."""
    return _HERE.mesh if _HERE.strategy is strategy else None


def imagined_here() -> ImaginedMesh | None:
    """The replicas that some strategy is imagined to have here, or None."""
    return _HERE.mesh


def enlarged(tree: Any, num_replicas: int) -> Any:
    """The shapes of a tree whose per-replica values have that many components, each as now."""

    def one(value: Any) -> Any:
        if not isinstance(value, PerReplica):
            return value
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((num_replicas, *x.shape[1:]), x.dtype), value
        )

    return jax.tree.map(one, tree, is_leaf=lambda value: isinstance(value, PerReplica))
