"""Variables of which each replica holds a share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import TURNS
from replicax.values._frames import Frame, current_frame
from replicax.values._mesh import ReplicaMesh, own_part
from replicax.values._sync_on_read import SyncOnReadVariable
from replicax.values._variable import _CopyOf
from replicax.values._workers import meet_to_read
from replicax.values._writes import Update, applied, check_shape, checked


def share_length(shape: Sequence[int], count: int) -> int:
    """How many elements of an array each of ``count`` replicas holds; the last are padding."""
    return -(-math.prod(shape) // count)


def in_shares(value: Any, count: int) -> jax.Array:
    """An array as shares ``[count, length]``, in order, with zeros behind the last element."""
    flat = jnp.ravel(value)
    length = share_length(flat.shape, count)
    return jnp.pad(flat, (0, count * length - flat.size)).reshape(count, length)


def from_shares(shares: Any, shape: Sequence[int]) -> Any:
    """The array of which ``shares`` are the shares."""
    return shares.reshape(-1)[: math.prod(shape)].reshape(tuple(shape))


def shares_on(mesh: ReplicaMesh, value: jax.Array, shape: Sequence[int]) -> jax.Array:
    """The shares of an array on the replicas, `[num_replicas, length]`.

    Args:
        mesh: The replicas.
        value: The array; or a scalar, which all its elements are.
        shape: Its shape.
    """
    if value.ndim == 0:
        length = share_length(shape, mesh.num_replicas)
        return mesh.from_rows([jnp.full(length, own_part(value))] * mesh.num_local_replicas)
    shares = in_shares(own_part(value), mesh.num_replicas)
    return mesh.from_rows([shares[i] for i in mesh.local_replicas])


class ShardedVariable(SyncOnReadVariable):
    """A variable cut into one share a replica, such as the state of a sharded optimizer.

    Its elements, in order, are the rows of one array ``[num_replicas, length]`` that is sharded
    over the replicas; zeros pad the last ones. It is a sync-on-read variable for every proof: each
    replica may write a value of its own.

    * In replica context each replica reads and writes its own share, `[length]`.
    * Across replicas a read joins the shares, and `assign` cuts a whole value into them.

    `rx.Optimizer` makes it for a transformation of `rx.shard_optimizer`.

    Args:
        initial_value: The whole value, or a scalar that all elements start from; the whole is then
            made on no device.
        shape: The shape of the whole.
        name: A name for messages.
    """

    def __init__(
        self,
        initial_value: Any,
        *,
        shape: Sequence[int] = (),
        name: str | None = None,
        **options: Any,
    ) -> None:
        if isinstance(initial_value, _CopyOf):
            shape = initial_value.variable.shape
        self._whole_shape = tuple(shape)
        super().__init__(initial_value, name=name, **{"trainable": False, **options})

    def _state_from(self, value: jax.Array) -> jax.Array:
        return shares_on(self.strategy.replica_mesh, value, self._whole_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole; it never changes."""
        return self._whole_shape

    def _copy_shape(self, count: int) -> tuple[int, ...]:
        return (share_length(self._whole_shape, count),)

    # -- reading ------------------------------------------------------------

    def _seen(self, state: jax.Array, frame: Frame | None) -> jax.Array:
        if frame is not None and frame.sees_one_copy and frame.access is not None:
            return state
        if frame is None or frame.access is None:
            return self._aggregated()
        if frame.access.is_local:
            state = frame.merging.gather_local(state, 0)
        whole: jax.Array = from_shares(state, self._whole_shape)
        return whole

    def _aggregated(self) -> jax.Array:
        """The whole, out of the way of the replicas' devices where it is only to be saved."""
        mesh = self.strategy.replica_mesh
        if mesh.spans_processes:
            meet_to_read(self)
            shares: Any = np.asarray(mesh.all_rows(self._value))
        else:
            if mesh.is_cpu_simulation:
                TURNS.settle()
            shares = np.stack([np.asarray(copy) for copy in self._copies()])
        return jnp.asarray(from_shares(shares, self._whole_shape))

    # -- writing ------------------------------------------------------------

    def _update(self, update: Update, value: Any) -> None:
        frame = current_frame()
        if frame is None or frame.access is None or not frame.sees_one_copy:
            super()._update(update, value)
            return
        site = errors.call_site()
        operand = checked(self, update, value)
        before = frame.access.read(self)
        if operand.shape != before.shape:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`{self.name}.{update}` was given shape {operand.shape} in replica context, "
                    f"but a replica's share has shape {before.shape}.",
                    why=f"The variable {self._whole_shape} is cut into one share a replica.",
                    fix="Write a share there; across replicas `assign` takes the whole value.",
                )
            )
        frame.access.store(self, applied(update, before, operand), site)

    def _across(self, update: Update, operand: Any, state: Any, frame: Frame | None) -> Any:
        check_shape(self, update, operand.shape)
        mesh = self.strategy.replica_mesh
        shares: Any = in_shares(own_part(operand), mesh.num_replicas)
        if frame is None or frame.access is None:
            shares = shares[np.array(mesh.local_replicas)]
        elif frame.access.is_local:
            shares = frame.merging.own_copy(shares)
        return applied(update, state, shares)

    def _no_elements(self, *_: Any, **__: Any) -> NoReturn:
        raise errors.UnimplementedError(
            errors.describe(
                f"Elements of `{self.name}`, which is cut into one share a replica, were asked for "
                "by index.",
                why="They lie on one of the replicas.",
                fix="Across replicas, read the whole (`variable.value`) and `assign` a new one.",
            )
        )

    at = property(_no_elements)
    scatter_add = scatter_sub = scatter_mul = scatter_div = _no_elements
    scatter_min = scatter_max = scatter_update = _no_elements
