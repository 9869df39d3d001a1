"""Jitted arithmetic.

Also inside of other programs: so an eager step compiles one program for it, instead of one for
each operation and device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import jax

_P = ParamSpec("_P")
_R = TypeVar("_R")


def jitted(*static_argnums: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """`jax.jit` that keeps the types of the function."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        return cast("Callable[_P, _R]", jax.jit(function, static_argnums=static_argnums))

    return decorate
