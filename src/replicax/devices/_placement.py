"""From the name of a device to the device."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import jax

from replicax._log import logger
from replicax.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    Table,
    UnknownDeviceError,
    describe,
)

from ._hints import hints
from ._known import all_devices, default_devices, devices_of, is_local, spec_of
from ._spec import DeviceSpec

DeviceLike: TypeAlias = str | DeviceSpec | jax.Device

_LOGGER = logger("devices")
_DEVICE_HELP = 'pass a string such as "GPU:0", a DeviceSpec, or a jax.Device.'


class _SoftPlacement:
    """Whether a missing device is replaced, and which replacements were logged."""

    def __init__(self) -> None:
        self.enabled = False
        self._logged: set[DeviceSpec] = set()
        self._lock = threading.Lock()

    def log_once(self, spec: DeviceSpec, device: jax.Device) -> None:
        with self._lock:
            if spec in self._logged:
                return
            self._logged.add(spec)
        _LOGGER.warning("Device %s is not there. Soft placement uses %s.", spec, spec_of(device))


_SOFT = _SoftPlacement()


def set_soft_placement(enabled: bool) -> None:  # noqa: FBT001 - the one argument of a setter.
    """Sets for the whole process whether a missing device is replaced. Context: any.

    Off at the start. When on, `resolve` gives the first CPU device for a device that is not
    there, and logs one warning for each missing device. A device of an unknown task stays an
    error.

    Raises:
        ArgumentTypeError: `enabled` is no bool.

    Examples:
        >>> set_soft_placement(True)
        >>> resolve("CPU:0") == resolve("CPU:500")
        True
        >>> set_soft_placement(False)
    """
    if not isinstance(enabled, bool):
        message = describe(
            f"set_soft_placement got {enabled!r} of type {type(enabled).__name__}.",
            fix="pass True or False.",
        )
        raise ArgumentTypeError(message)
    _SOFT.enabled = enabled


def soft_placement() -> bool:
    """Returns whether a missing device is replaced. Context: any.

    Examples:
        >>> soft_placement()
        False
    """
    return _SOFT.enabled


def resolve(device: DeviceLike) -> jax.Device:
    """Finds the device that a name stands for. Context: any; starts jax.

    Args:
        device: A device string, a spec, or a device of jax, which comes back unchanged. An
            open task is this process, an open type is the type of `default_devices`, an open
            index is 0.

    Returns:
        The device. With soft placement it may be the first CPU device instead.

    Raises:
        ArgumentTypeError: `device` has another type.
        InvalidArgumentError: The string is no device string.
        UnknownDeviceError: There is no such device. The message lists the known ones and
            names the settings that may hide some.

    Examples:
        >>> resolve("cpu:1") == jax.devices("cpu")[1]
        True
    """
    if isinstance(device, jax.Device):
        return device
    if isinstance(device, str):
        spec = DeviceSpec.from_string(device)
    elif isinstance(device, DeviceSpec):
        spec = device
    else:
        message = f"A device was expected, got {device!r} of type {type(device).__name__}."
        raise ArgumentTypeError(describe(message, fix=_DEVICE_HELP))
    found = _find(spec)
    if found is not None:
        return found
    replacement = _replacement(spec)
    if replacement is None:
        raise UnknownDeviceError(_unknown_message(device, spec))
    _SOFT.log_once(spec, replacement)
    return replacement


def resolve_all(devices: Iterable[DeviceLike] | None) -> list[jax.Device]:
    """Finds the devices of a strategy. Context: any; starts jax.

    Args:
        devices: Names or devices in replica order; None for `default_devices`.

    Returns:
        As many devices, all different and of one type.

    Raises:
        ArgumentTypeError: `devices` is no list of devices, but a single device or a set.
        InvalidArgumentError: The list is empty, has the same device twice, or mixes types.
        UnknownDeviceError: A device is not there.

    Examples:
        >>> [device.id for device in resolve_all(["cpu:2", "cpu:0"])]
        [2, 0]
    """
    if devices is None:
        return default_devices()
    single_or_unordered = str | DeviceSpec | jax.Device | AbstractSet
    if isinstance(devices, single_or_unordered) or not isinstance(devices, Iterable):
        message = describe(
            f"A list of devices was expected, got {devices!r} of type {type(devices).__name__}.",
            why="the order of the devices is the order of the replicas.",
            fix='pass a list such as ["CPU:0", "CPU:1"], or None for all local accelerators, '
            "or all logical CPU devices where there are none.",
        )
        raise ArgumentTypeError(message)
    given = list(devices)
    if not given:
        message = describe(
            "The list of devices is empty.",
            why="a strategy needs one device for each replica.",
            fix="pass None for all local accelerators, or all logical CPU devices where there "
            'are none; or name the devices, such as ["CPU:0", "CPU:1"].',
        )
        raise InvalidArgumentError(message)
    found = [resolve(device) for device in given]
    _refuse_duplicates(given, found)
    _refuse_mixed_types(given, found)
    return found


def _find(spec: DeviceSpec) -> jax.Device | None:
    """The device of a spec, or None."""
    if spec.job not in (None, "localhost") or spec.replica not in (None, 0):
        return None
    kind = spec.device_type or default_devices()[0].platform
    task = jax.process_index() if spec.task is None else spec.task
    peers = [device for device in devices_of(kind.lower()) if device.process_index == task]
    index = spec.device_index or 0
    return peers[index] if index < len(peers) else None


def _replacement(spec: DeviceSpec) -> jax.Device | None:
    """What soft placement gives for a missing device, or None."""
    if not soft_placement():
        return None
    return _find(spec.replace(device_type="CPU", device_index=0))


def _unknown_message(device: DeviceLike, spec: DeviceSpec) -> str:
    known = all_devices()
    why = hints(spec.device_type) if spec.device_type is not None else []
    if spec.job not in (None, "localhost"):
        why.append("Without a cluster the only job is localhost.")
    return describe(
        f"There is no device {str(device)!r}. The known devices are:",
        table=Table(["device", "kind"], [[spec_of(one), one.device_kind] for one in known]),
        why=" ".join(why) or None,
        fix=_unknown_fix(spec, [one for one in known if is_local(one)]),
    )


def _unknown_fix(spec: DeviceSpec, local: list[jax.Device]) -> str:
    kind, index = spec.device_type, spec.device_index or 0
    count = sum(spec_of(one).device_type == kind for one in local)
    fix = "name a device of the list."
    if kind == "CPU" and 0 < count <= index:
        return f"call rx.devices.logical(cpu={index + 1}) before the first use of jax, or {fix}"
    if kind is not None and count == 0:
        return (
            f"make sure that jax is installed with support for {kind} and that nothing hides it, "
            f"or {fix} rx.devices.set_soft_placement(True) would use CPU:0 instead."
        )
    return fix


def _refuse_duplicates(given: list[DeviceLike], found: list[jax.Device]) -> None:
    twice = next((device for device in found if found.count(device) > 1), None)
    if twice is None:
        return
    rows = [[i, str(given[i]), spec_of(found[i])] for i in range(len(found)) if found[i] == twice]
    why = "each replica needs a device of its own."
    if soft_placement():
        why += " Soft placement is on: a device that is not there becomes CPU:0."
    message = describe(
        f"The list of devices has {spec_of(twice)} more than once.",
        table=Table(["position", "given as", "is"], rows),
        why=why,
        fix="remove it from the list, or make more logical devices with rx.devices.logical.",
    )
    raise InvalidArgumentError(message)


def _refuse_mixed_types(given: list[DeviceLike], found: list[jax.Device]) -> None:
    if len({device.platform for device in found}) == 1:
        return
    rows = [[i, str(given[i]), spec_of(found[i])] for i in range(len(found))]
    message = describe(
        "The list of devices mixes types.",
        table=Table(["position", "given as", "is"], rows),
        why="one compiled program cannot run on devices of two types.",
        fix="name devices of one type.",
    )
    raise InvalidArgumentError(message)
