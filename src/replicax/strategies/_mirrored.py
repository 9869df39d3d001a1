"""Data-parallel training on the devices of one process."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from replicax import devices as rx_devices
from replicax.collectives import CommunicationOptions
from replicax.strategies._base import Strategy


class MirroredStrategy(Strategy):
    """One replica on each of several local devices; variables have a copy on each.

    Context: outside of every scope. Starts JAX's devices.

    Args:
        devices: Device specs such as `"gpu:0"` or JAX devices, one a replica. By default every
            local accelerator, else all CPU devices (one, unless `rx.devices.logical` or
            `REPLICAX_CPU_DEVICES` makes more).
        options: How collectives travel.

    Raises:
        UnknownDeviceError: A device that is not there; the error lists those that are.
        InvalidArgumentError: An empty list, or the same device twice.

    Examples:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> strategy.num_replicas_in_sync
        2
    """

    def __init__(
        self,
        devices: Sequence[str | rx_devices.DeviceSpec | jax.Device] | None = None,
        *,
        options: CommunicationOptions | None = None,
    ) -> None:
        chosen = (
            rx_devices.default_devices() if devices is None else rx_devices.resolve_all(devices)
        )
        super().__init__(chosen, options)
