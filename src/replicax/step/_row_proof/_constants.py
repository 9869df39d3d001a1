"""Arithmetic on the numbers that stand at padded rows, such as `exp(-inf) = 0`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

_UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "conj": np.conj,
    "cos": np.cos,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "imag": np.imag,
    "is_finite": np.isfinite,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "neg": np.negative,
    "real": np.real,
    "round": np.round,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "add_any": np.add,
    "complex": lambda real, imaginary: real + 1j * imaginary,
    "div": np.true_divide,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "pow": np.power,
    "sub": np.subtract,
}
# On integers they work bit by bit.
_LOGICAL: dict[str, Callable[..., Any]] = {
    "and": np.logical_and,
    "not": np.logical_not,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
_ODD_AT_ZERO = frozenset(["asin", "asinh", "atan", "atanh", "erf", "erf_inv", "sinh", "imag"])

IDENTITIES = frozenset(
    [
        "convert_element_type",
        "copy",
        "copy_p",
        "name",
        "pvary",
        "real",
        "reduce_precision",
        "reduced_vary_cast",
        "replicax_mirrored_only",
        "replicax_unplaced",
        "sharding_constraint",
        "stop_gradient",
    ]
)
"""Primitives that leave a number as it is, up to its type."""


def evaluated(name: str, params: Mapping[str, Any], values: Sequence[Any], dtype: Any) -> Any:
    """The result of a primitive on numbers, or None if that is not known."""
    if any(value is None for value in values) or not _is_plain(dtype):
        return None
    function = _function(name, params, dtype)
    if function is None:
        return None
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(function(*values)).astype(dtype)[()]
        return complex(result) if dtype.kind == "c" else float(result)
    except (ArithmeticError, TypeError, ValueError):
        return None


def _is_plain(dtype: Any) -> bool:
    """Whether entries are numbers; keys are not."""
    return jnp.issubdtype(dtype, jnp.number) or dtype == jnp.bool_


def _function(name: str, params: Mapping[str, Any], dtype: Any) -> Callable[..., Any] | None:
    if name in IDENTITIES:
        return lambda x: x
    if name == "integer_pow":
        power = params["y"]
        return lambda x: np.power(np.asarray(x, dtype), power) if power >= 0 else None
    if name in _LOGICAL:
        return _LOGICAL[name] if dtype == np.bool_ else None
    if name in _ODD_AT_ZERO:
        return lambda x: 0 if x == 0 else None
    if np.issubdtype(dtype, np.integer) and name == "div":
        return None
    return _UNARY.get(name) or _BINARY.get(name)
