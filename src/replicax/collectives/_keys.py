"""Group and instance keys: the names of a group of devices and of one collective in it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from replicax.errors import ArgumentTypeError, InvalidArgumentError, describe

_FIRST_GROUP_KEY = 1
_FIRST_INSTANCE_KEY = 100


class CollectiveKeys:
    """Hands out the keys of collectives. Safe to share between threads.

    All members that ask in the same order get the same keys, without a word to each other.

    Examples:
        >>> keys = CollectiveKeys()
        >>> group = keys.group_key(["CPU:0", "CPU:1"])
        >>> group, keys.instance_key(group), keys.instance_key(group)
        (1, 100, 101)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, ...], int] = {}
        self._members: dict[int, tuple[str, ...]] = {}
        self._next_instance: dict[tuple[int, str | None], int] = {}

    def group_key(self, devices: Sequence[str]) -> int:
        """Returns the key of an ordered list of devices. Context: any.

        Args:
            devices: Device strings. Another order is another group.

        Returns:
            The key, from 1. The same list always has the same key.

        Raises:
            ArgumentTypeError: `devices` is no sequence of strings.
            InvalidArgumentError: `devices` is empty, or names a device twice.
        """
        members = _checked(devices)
        with self._lock:
            if members not in self._groups:
                key = _FIRST_GROUP_KEY + len(self._groups)
                self._groups[members] = key
                self._members[key] = members
            return self._groups[members]

    def instance_key(self, group_key: int, device: str | None = None) -> int:
        """Returns the next key of a collective in a group. Context: any.

        Args:
            group_key: A key that `group_key` has returned.
            device: Count for this device of the group. None counts for the whole group.

        Returns:
            The key, from 100, one more at each call for the same group and device.

        Raises:
            InvalidArgumentError: The group is not known, or has no such device.
        """
        with self._lock:
            if group_key not in self._members:
                raise InvalidArgumentError(
                    describe(
                        f"`group_key={group_key!r}` is not known.",
                        why=f"the known group keys are {sorted(self._members)}.",
                        fix="take the key from `group_key(devices)` of the same object.",
                    )
                )
            members = self._members[group_key]
            if device is not None and device not in members:
                raise InvalidArgumentError(
                    describe(
                        f"`device={device!r}` is not in the group {group_key}.",
                        why=f"its devices are {list(members)}.",
                        fix="pass one of these devices, spelled the same.",
                    )
                )
            copies = _HERE.copies
            counters = self._next_instance
            if copies is not None:
                counters = copies.setdefault(id(self), dict(counters))
            key = counters.get((group_key, device), _FIRST_INSTANCE_KEY)
            counters[group_key, device] = key + 1
            return key


class _Here(threading.local):
    copies: dict[int, dict[tuple[int, str | None], int]] | None = None


_HERE = _Here()


@contextlib.contextmanager
def looking_ahead() -> Iterator[None]:
    """While inside, this thread gets the keys that would come next, and uses none of them up.

    For programs that are traced to be looked at, which one worker may do alone.
    """
    before = _HERE.copies
    _HERE.copies = {} if before is None else before
    try:
        yield
    finally:
        _HERE.copies = before


def _checked(devices: Sequence[str]) -> tuple[str, ...]:
    fix = 'pass a list of device strings, such as ["CPU:0", "CPU:1"].'
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise ArgumentTypeError(describe(f"`devices={devices!r}` is no list.", fix=fix))
    for device in devices:
        if not isinstance(device, str):
            raise ArgumentTypeError(
                describe(f"`devices` holds {device!r} ({type(device).__name__}).", fix=fix)
            )
    if not devices or len(set(devices)) != len(devices):
        why = "a device is named twice." if devices else "it is empty."
        raise InvalidArgumentError(
            describe(f"`devices={list(devices)!r}` is no group.", why=why, fix=fix)
        )
    return tuple(devices)
