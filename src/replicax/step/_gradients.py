"""Gradients of functions that use variables."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.step._bound_objects import bound
from replicax.step._lookup import Differentiated
from replicax.values import (
    Frame,
    Variable,
    VariableAccess,
    as_variable,
    current_frame,
    entered,
)
from replicax.values._lending import lend
from replicax.values._tracing import trace_level


class _Direct:
    """Access outside of every trace and replica."""

    is_local = False

    def read(self, variable: Variable) -> jax.Array:
        return lend(variable)

    def store(self, variable: Variable, value: Any, call_site: errors.CallSite | None) -> None:
        del call_site
        variable._store_directly(value)

    def create(self, make: Callable[[], Variable]) -> Variable:
        return make()


def value_and_grad(
    fn: Callable[..., Any],
    variables: Any = None,
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Make a function that returns the value of `fn` and its gradient on this replica.

    The gradient is local: combine it with `ctx.all_reduce("mean", gradients)`. Unlike
    `jax.value_and_grad`, `fn` may write variables (BatchNorm statistics, counters); the writes
    take effect once `fn` has returned.

    Context: any. Collective: no, but the collectives inside `fn` are, forwards and backwards.

    Args:
        fn: Function with a scalar result, or a pair of it and anything else with `has_aux`.
        variables: A tree of variables to differentiate with respect to, such as a list of
            `rx.Variable` or a Keras model's `trainable_variables`. If None, the arguments that
            `argnums` names are differentiated instead.
        argnums: Positions of arguments to differentiate; used only without `variables`.
        has_aux: Whether `fn` returns `(value, aux)`.

    Returns:
        A function of the arguments of `fn` that returns `(value, gradients)`, or
        `((value, aux), gradients)`. The gradients have the structure of `variables`, or of the
        arguments; that of a table of which `rx.embedding_lookup` took rows is an
        `rx.IndexedSlices`.

    Raises:
        ArgumentTypeError: `variables` holds something else than variables.

    Examples:
        >>> import replicax as rx
        >>> w = rx.Variable(3.0, name="w")
        >>> value, grads = rx.value_and_grad(lambda x: w.value ** 2 * x, [w])(2.0)
        >>> print(value, grads[0])
        18.0 12.0
    """
    structure: Any
    leaves, structure = jax.tree.flatten(variables)
    leaves = [as_variable(leaf) for leaf in leaves]
    for leaf in leaves:
        if not isinstance(leaf, Variable):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"rx.value_and_grad: `variables` holds {type(leaf).__name__}, not a variable.",
                    fix="Pass a list or tree of `rx.Variable`, or leave `variables` out and "
                    "differentiate arguments with `argnums`.",
                )
            )

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        outer: VariableAccess = (frame.access if frame is not None else None) or _Direct()
        outside = [outer.read(variable) for variable in leaves]
        level = trace_level()
        places = () if variables is not None else _places(argnums, len(args))
        seen: list[Differentiated] = []

        def inner(values: Sequence[Any], token: jax.Array, *inside: Any) -> Any:
            overlay = Differentiated(
                outer,
                dict(zip(leaves, values, strict=True)),
                dict(zip(leaves, outside, strict=True)),
                token,
                level,
            )
            seen.append(overlay)
            noting = [
                jax.tree_util.tree_map_with_path(
                    lambda path, x, y, i=i: overlay.noting(x, y, (i, path)), x, args[i]
                )
                if i in places
                else x
                for i, x in enumerate(inside)
            ]
            within = dataclasses.replace(frame or Frame(None), access=overlay)
            with entered(within), bound(overlay):
                result = fn(*noting, **kwargs)
            value, aux = result if has_aux else (result, None)
            # The order of this dictionary is the order of the writes.
            return value, (aux, [overlay.values[variable] for variable in overlay.stored])

        positions = (0, 1) if variables is not None else (1, *(i + 2 for i in places))
        compute = jax.value_and_grad(inner, argnums=positions, has_aux=True)
        (value, (aux, written)), found = compute(outside, jnp.zeros((), jnp.float32), *args)
        (overlay,) = seen
        for (variable, site), new in zip(overlay.stored.items(), written, strict=True):
            outer.store(variable, new, site)
        if variables is not None:
            gradients = structure.unflatten(
                [overlay.gradient(v, x) for v, x in zip(leaves, found[0], strict=True)]
            )
        else:
            parts = tuple(
                jax.tree_util.tree_map_with_path(
                    lambda path, x, i=i: overlay.gradient((i, path), x), x
                )
                for i, x in zip(places, found[1:], strict=True)
            )
            gradients = parts[0] if isinstance(argnums, int) else parts
        return ((value, aux) if has_aux else value), gradients

    return wrapped


def _places(argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Positions of the differentiated arguments, counted from the front."""
    asked = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for n in asked:
        if not -count <= n < count:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"rx.value_and_grad: `argnums` = {argnums!r}, but the function was given "
                    f"{count} positional arguments.",
                    fix="Pass what is differentiated by position, or `variables`.",
                )
            )
    return tuple(n % count for n in asked)
