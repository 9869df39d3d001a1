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
"""What is worth packing, as `benchmarks/packing.py` measures it.

A step with its weights in one pack, beside the same with each weight alone, took in memory 0.79 of
the time with weights of 4 KiB, 0.68 with 16 KiB and with 64 KiB, but 1.06 with 128 KiB and 1.08
with 256 KiB; over Gloo 0.19 with 16 KiB, 0.38 with 256 KiB, 0.90 with 1 MiB and 0.76 with 2 MiB (on
a busy machine of two cores; larger ones were not measured). Accelerators are not measured: XLA
joins small collectives there itself, and few bytes are safe.
"""
