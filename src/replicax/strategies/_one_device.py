"""Training on one device, with the same code as on many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax import devices as rx_devices
from replicax.step._arguments import check_run_arguments
from replicax.strategies._base import Strategy
from replicax.values import DistributedValues, PerReplica


class OneDeviceStrategy(Strategy):
    """One replica, on one device.

    Args:
        device: A device spec or JAX device; by default the first accelerator, else the CPU.

    Raises:
        UnknownDeviceError: A device that is not there; the error lists those that are.

    Examples:
        >>> import replicax as rx
        >>> rx.OneDeviceStrategy("cpu:0").num_replicas_in_sync
        1
    """

    def __init__(self, device: str | rx_devices.DeviceSpec | jax.Device | None = None) -> None:
        chosen = rx_devices.default_devices()[0] if device is None else rx_devices.resolve(device)
        super().__init__([chosen])


class DefaultStrategy(Strategy):
    """The strategy in force outside of every scope: one replica on JAX's default device."""

    is_announced = False  # Nobody has made it.

    def __init__(self) -> None:
        super().__init__([rx_devices.default_devices()[0]])

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call `fn`: there is one replica, and no scope to enter."""
        del options
        check_run_arguments(self, args, kwargs)
        args, kwargs = jax.tree.map(
            lambda value: value.values[0] if isinstance(value, PerReplica) else value,
            (tuple(args), kwargs or {}),
            is_leaf=lambda value: isinstance(value, DistributedValues),
        )
        return fn(*args, **kwargs)
