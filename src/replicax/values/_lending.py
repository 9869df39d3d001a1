"""Arrays that left a variable: the user may hold them, so a step must not give them away.

A compiled step donates the state that it replaces. An array that was read from a variable outside
of a step may still be in the user's hands, and would then be found deleted. Reading therefore
marks the variable as lent, and the next step that would donate it takes a copy instead. Steps
learn from `TURNS.changes` whether anything was lent since their last call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import jax

from replicax import errors
from replicax.collectives import TURNS
from replicax.values._mesh import copied
from replicax.values._tracing import is_staged, outermost_level

if TYPE_CHECKING:
    from replicax.values._variable import Variable


def lend(variable: Variable) -> jax.Array:
    """Return the variable's array, which from now on the user may hold.

    Raises:
        ContextError: Inside `jax.jit` or the like, which would keep the array as a constant.
    """
    if is_staged(outermost_level()):
        raise errors.ContextError(
            errors.describe(
                f"Variable `{variable.name}` was used under `jax.jit` (or another traced JAX "
                "function) outside of an `rx.function`.",
                why="JAX would keep the value of this moment as a constant, and lose writes.",
                fix="Decorate the function with `rx.function` instead of `jax.jit`, or read the "
                "value before and pass it in.",
            )
        )
    mark_lent(variable)
    return variable._value


def mark_lent(variable: Variable) -> None:
    """Note that the user may hold the variable's array."""
    if not variable._lent:
        variable._lent = True
        TURNS.changes += 1


def keep_lent_arrays(variables: Iterable[Variable]) -> None:
    """Give those of ``variables`` whose array was lent a copy of their own."""
    for variable in variables:
        if variable._lent:
            variable._value = copied(variable._value)
            variable._lent = False
