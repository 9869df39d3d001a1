"""How far two copies of one array are apart, in words."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

Array = np.ndarray[Any, Any]


def difference(here: Array, there: Array) -> tuple[str, str, str]:
    """Describe where two arrays of one shape and dtype differ in their bits.

    Returns:
        How many elements differ; the largest difference; where it is.
    """
    here, there = np.asarray(here), np.asarray(there)
    differs = np.flatnonzero(_bits(here) != _bits(there))
    counted = f"{differs.size} of {here.size}"
    if not differs.size:  # The digests differed, but the elements have been made equal since.
        return counted, "none any more", ""
    x, y = here.ravel()[differs], there.ravel()[differs]
    distances = _distances(x, y)
    # NaN is further away than any number.
    worst = int(np.argmax(np.where(np.isnan(distances), np.inf, distances)))
    position = tuple(int(i) for i in np.unravel_index(int(differs[worst]), here.shape))
    return counted, _words(x[worst], y[worst]), str(list(position)) if position else ""


def _bits(array: Array) -> Array:
    """One number of bytes for each element."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.dtype((np.void, flat.dtype.itemsize)))


def _distances(x: Array, y: Array) -> Array:
    if x.dtype == np.uint64:
        wide_x, wide_y = x, y
    elif jnp.issubdtype(x.dtype, jnp.inexact):
        return _apart(x, y)
    else:
        wide_x, wide_y = x.astype(np.int64), y.astype(np.int64)
    larger, smaller = np.maximum(wide_x, wide_y), np.minimum(wide_x, wide_y)
    # Modulo 2**64, which the true difference is below.
    return (larger.view(np.uint64) - smaller.view(np.uint64)).astype(np.float64)


def _apart(x: Array, y: Array) -> Array:
    wide = np.complex128 if jnp.issubdtype(x.dtype, jnp.complexfloating) else np.float64
    with np.errstate(all="ignore"):
        apart: Array = np.abs(x.astype(wide) - y.astype(wide))
    return apart


def _words(x: Any, y: Any) -> str:
    values = f"({x} here, {y} there)"
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return f"{abs(int(x) - int(y))} {values}"
    apart = float(_apart(np.asarray(x), np.asarray(y)))
    if apart == 0 or (np.isnan(x) and np.isnan(y)):
        return f"other bits {values}"
    return f"{apart:g} {values}"
