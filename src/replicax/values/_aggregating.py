"""Variables that lie on one device while replicas compute on others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax

from replicax.values import _lending
from replicax.values._frames import StrategyLike, current_frame
from replicax.values._variable import Variable


class AggregatingVariable(Variable, kind="aggregating"):
    """A variable of `CentralStorageStrategy`: one array, on the parameter device.

    Replicas read copies of it; what they write follows the rules of a `MirroredVariable` and goes
    back to the one array.
    """

    strategy: StrategyLike

    @property
    def _home(self) -> Any:
        return self.strategy.parameter_device

    def _state_from(self, value: jax.Array) -> jax.Array:
        placed: jax.Array = jax.device_put(value, self._home, may_alias=False)
        return placed

    def _placed(self, state: Any) -> jax.Array:
        return self._state_from(_one_copy(state))

    _lies_elsewhere: ClassVar[bool] = True

    def _for_program(self) -> jax.Array:
        return self.strategy.replica_mesh.place_mirrored(self._value)

    def _from_program(self, state: jax.Array) -> None:
        self._value = self._placed(state)

    def _copies(self) -> tuple[jax.Array, ...]:
        return tuple(jax.device_put(self._value, d) for d in self.strategy.replica_mesh.devices)

    def _state_from_copies(self, copies: Sequence[jax.Array]) -> jax.Array:
        return self._state_from(copies[0])

    @property
    def _sharding(self) -> Any:
        return self.strategy.replica_mesh.mirrored

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The one array."""
        frame = current_frame()
        if frame is None or frame.access is None:
            return (_lending.lend(self),)
        return (self.value,)


def _one_copy(state: Any) -> Any:
    """The data of the first device of an array that several hold."""
    if isinstance(state, jax.Array) and len(state.devices()) > 1:
        return state.addressable_shards[0].data
    return state
