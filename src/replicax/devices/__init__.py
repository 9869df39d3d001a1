"""Devices: specs, logical CPU devices, and the placement policy.

A device has one name everywhere: `/job:worker/replica:0/task:1/device:GPU:0`, in short `GPU:0`.
`logical` splits the CPU into several devices before the first use of jax. `resolve` turns a name
into a device and fails loudly where there is none, unless soft placement is on.
"""

from __future__ import annotations

from ._known import default_devices as default_devices
from ._known import list_devices as list_devices
from ._known import local_accelerators as local_accelerators
from ._known import spec_of as spec_of
from ._logical import apply_environment as apply_environment
from ._logical import logical as logical
from ._placement import DeviceLike as DeviceLike
from ._placement import resolve as resolve
from ._placement import resolve_all as resolve_all
from ._placement import set_soft_placement as set_soft_placement
from ._placement import soft_placement as soft_placement
from ._spec import DeviceSpec as DeviceSpec

__all__ = [
    "DeviceLike",
    "DeviceSpec",
    "apply_environment",
    "default_devices",
    "list_devices",
    "local_accelerators",
    "logical",
    "resolve",
    "resolve_all",
    "set_soft_placement",
    "soft_placement",
    "spec_of",
]
