"""Arithmetic for objects that stand for one array."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np


def _value_of(operand: Any) -> Any:
    return operand.value if isinstance(operand, ArrayLike) else operand


def _forward(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: ArrayLike, other: Any) -> Any:
        return function(self.value, _value_of(other))

    return method


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: ArrayLike, other: Any) -> Any:
        return function(_value_of(other), self.value)

    return method


class ArrayLike:
    """Operators and conversions that act on ``self.value``.

    ``==`` compares identity, not elements: the objects are used as dictionary keys. Compare
    ``x.value == y``.
    """

    # NumPy must not take the operators of an array on the left for itself.
    __array_priority__ = 100

    @property
    def value(self) -> jax.Array:
        """The array."""
        raise NotImplementedError

    def __jax_array__(self) -> jax.Array:
        return self.value

    # NumPy's protocol passes `copy` by position.
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        # Always a copy: a view would keep a buffer that the next step gives away.
        return np.array(self.value, dtype=dtype, copy=True)

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __complex__(self) -> complex:
        return complex(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else str(self)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self.value)

    def __getitem__(self, key: Any) -> jax.Array:
        return self.value[key]

    def __neg__(self) -> jax.Array:
        return -self.value

    def __abs__(self) -> jax.Array:
        return abs(self.value)

    __add__ = _forward(operator.add)
    __radd__ = _reflected(operator.add)
    __sub__ = _forward(operator.sub)
    __rsub__ = _reflected(operator.sub)
    __mul__ = _forward(operator.mul)
    __rmul__ = _reflected(operator.mul)
    __truediv__ = _forward(operator.truediv)
    __rtruediv__ = _reflected(operator.truediv)
    __floordiv__ = _forward(operator.floordiv)
    __rfloordiv__ = _reflected(operator.floordiv)
    __mod__ = _forward(operator.mod)
    __rmod__ = _reflected(operator.mod)
    __pow__ = _forward(operator.pow)
    __rpow__ = _reflected(operator.pow)
    __matmul__ = _forward(operator.matmul)
    __rmatmul__ = _reflected(operator.matmul)
    __lt__ = _forward(operator.lt)
    __le__ = _forward(operator.le)
    __gt__ = _forward(operator.gt)
    __ge__ = _forward(operator.ge)
