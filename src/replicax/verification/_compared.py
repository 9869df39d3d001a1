"""How far the state after a step on replicas is from that on one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._state import Array

# Of the largest change of an array, by the dtype that the step computes in.
_RELATIVE = {8: 1e-9, 4: 1e-4, 2: 3e-2, 1: 2e-1}
_ROUNDINGS = 8  # of the array's own values, when the change is added to them
_NOISE = 10
_TOO_NOISY = 0.1


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array, before and after a step.

    Attributes:
        name: Its name.
        replicas: Its change on the replicas, f64.
        one: Its change on one device, f64.
        strict: How far rounding alone may put them apart.
        tolerance: How far they may be apart, with what the order of rows does.
        noise: How far one device is from itself with the rows in reverse order; None where that
            was not run.
        scale: The largest change on one device.
        is_exact: Whether it must be equal: integers, truth values, keys.
    """

    name: str
    replicas: Array
    one: Array
    strict: float
    tolerance: float
    noise: float | None
    scale: float
    is_exact: bool

    @property
    def apart(self) -> float:
        """The largest difference; infinite where one of them is no number and the other is."""
        return _distance(self.replicas, self.one)

    @property
    def differs(self) -> bool:
        """Whether they are further apart than the tolerance."""
        return not self.apart <= self.tolerance

    @property
    def is_rounding(self) -> bool:
        """Whether rounding decides what its change is."""
        return self.noise is not None and self.noise > _TOO_NOISY * self.scale > 0

    def fits(self, other: Array) -> bool:
        """Whether another change is that of the replicas."""
        return self.replicas.shape == other.shape and (
            _distance(self.replicas, other) <= self.tolerance_of(other)
        )

    def tolerance_of(self, other: Array) -> float:
        """The tolerance, for a change of another size."""
        larger = _largest(other)
        return self.tolerance * max(1.0, larger / self.scale) if self.scale else self.tolerance


def compared(
    before: Mapping[str, Array],
    replicas: Mapping[str, Array],
    one: Mapping[str, Array],
    reverse: Mapping[str, Array] | None,
    coarsest: int,
) -> list[Entry]:
    """The arrays that both have, in order.

    Args:
        before: State before the step.
        replicas: State after it on the replicas.
        one: State after it on one device.
        reverse: The same with the rows in reverse order.
        coarsest: Bytes of the narrowest floating type that the step computes in.
    """
    entries = []
    for name, after in replicas.items():
        there = one.get(name)
        start = before.get(name)
        if there is None or there.shape != after.shape:
            continue
        is_float = jnp.issubdtype(after.dtype, jnp.inexact)
        if start is None or start.shape != after.shape:
            start = np.zeros_like(after)
        change, of_one = _wide(after) - _wide(start), _wide(there) - _wide(start)
        back = reverse.get(name) if reverse is not None else None
        noise = None
        if back is not None and back.shape == after.shape and is_float:
            noise = _distance(_wide(back), _wide(there))
        scale = _largest(of_one)
        tolerance = 0.0
        if is_float:
            width = min(coarsest, after.dtype.itemsize if after.dtype.kind != "c" else 4)
            largest = _largest(_wide(start))
            tolerance = _RELATIVE.get(width, 1e-4) * scale
            tolerance += _ROUNDINGS * float(jnp.finfo(after.dtype).eps) * max(largest, scale)
            tolerance += float(jnp.finfo(after.dtype).tiny)
        strict = tolerance
        if noise is not None and np.isfinite(noise):
            tolerance += _NOISE * noise
        entries.append(Entry(name, change, of_one, strict, tolerance, noise, scale, not is_float))
    return entries


def relative_tolerance(coarsest: int) -> float:
    """The stated tolerance, for messages."""
    return _RELATIVE.get(coarsest, 1e-4)


def _largest(x: Array) -> float:
    """The largest size of a number that is finite."""
    sizes = np.abs(x)
    return float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))


def _wide(x: Array) -> Array:
    if x.dtype.kind == "c":
        return x.astype(np.complex128)
    if x.dtype.kind in "iub":
        return x.astype(np.float64) if x.dtype.itemsize < 8 else x.astype(np.longdouble)  # noqa: PLR2004
    return x.astype(np.float64)


def _distance(x: Array, y: Array) -> float:
    if not x.size:
        return 0.0
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        apart = np.where(same, 0.0, np.abs(x - y))
    worst: Any = np.max(np.where(np.isnan(apart), np.inf, apart))
    return float(worst)
