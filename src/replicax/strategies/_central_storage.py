"""Variables on one device, computation on several."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from replicax import devices as rx_devices
from replicax.strategies._base import Strategy


class CentralStorageStrategy(Strategy):
    """One replica on each of several local devices; variables lie on one device.

    Each step moves the variables to the replicas and what they wrote back. That saves memory
    between steps and costs transfers; `MirroredStrategy` is faster where the copies fit.

    Context: outside of every scope. Starts JAX's devices.

    Args:
        compute_devices: Device specs such as `"gpu:0"` or JAX devices, one a replica. By default
            every local accelerator, else all CPU devices.
        parameter_device: The device of the variables. By default the only compute device if there
            is one, else the first CPU device.

    Raises:
        UnknownDeviceError: A device that is not there; the error lists those that are.
        InvalidArgumentError: An empty list, or the same device twice.

    Examples:
        >>> import replicax as rx
        >>> strategy = rx.CentralStorageStrategy(["cpu:0", "cpu:1"], parameter_device="cpu:0")
        >>> strategy.num_replicas_in_sync, strategy.extended.parameter_devices
        (2, ('/job:localhost/replica:0/task:0/device:CPU:0',))
    """

    def __init__(
        self,
        compute_devices: Sequence[str | rx_devices.DeviceSpec | jax.Device] | None = None,
        parameter_device: str | rx_devices.DeviceSpec | jax.Device | None = None,
    ) -> None:
        if compute_devices is None:
            chosen = rx_devices.default_devices()
        else:
            chosen = rx_devices.resolve_all(compute_devices)
        if parameter_device is None:
            parameter_device = chosen[0] if len(chosen) == 1 else "cpu:0"
        self._parameter_device = rx_devices.resolve(parameter_device)
        super().__init__(chosen)

    @property
    def parameter_device(self) -> jax.Device:
        """The device that holds the variables."""
        return self._parameter_device
