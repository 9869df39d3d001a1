"""What carries a collective of a compiled program, and what that means for packs."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

_KIB = 1024
_MIB = 1024 * _KIB


class Transport(enum.Enum):
    """What carries a collective.

    Examples:
        >>> import jax
        >>> Transport.between(jax.devices("cpu"))
        <Transport.MEMORY: 'memory'>
    """

    MEMORY = "memory"
    """The memory of one process, between CPU devices."""
    GLOO = "gloo"
    """Sockets between CPU processes."""
    NCCL = "nccl"
    """The links between accelerators: NCCL, RCCL, or those of TPUs."""

    @classmethod
    def between(cls, devices: Sequence[Any]) -> Transport:
        """What carries a collective between these devices. Context: any."""
        if any(device.platform != "cpu" for device in devices):
            return cls.NCCL
        processes = {device.process_index for device in devices}
        return cls.GLOO if len(processes) > 1 else cls.MEMORY


@dataclasses.dataclass(frozen=True)
class PackLimits:
    """Which leaves are packed.

    Attributes:
        leaf_bytes: A leaf up to this size is packed. A larger one travels alone.
        pack_bytes: A pack grows to this size. A larger one would save no more, and keep the
            reduction waiting for its last leaf.
    """

    leaf_bytes: int
    pack_bytes: int


LIMITS = MappingProxyType(
    {
        Transport.MEMORY: PackLimits(leaf_bytes=64 * _KIB, pack_bytes=4 * _MIB),
        Transport.GLOO: PackLimits(leaf_bytes=2 * _MIB, pack_bytes=4 * _MIB),
        Transport.NCCL: PackLimits(leaf_bytes=64 * _KIB, pack_bytes=4 * _MIB),
    }
)
