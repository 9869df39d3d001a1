"""Parameters that are no arrays: an `rx.function` is compiled for each value of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from replicax import errors


def static_names(names: Sequence[str], fn: Callable[..., Any], function: str) -> frozenset[str]:
    """Check the names of static parameters.

    Raises:
        InvalidArgumentError: There is no such parameter.
    """
    if not names:
        return frozenset()
    parameters = inspect.signature(fn).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in names if name not in parameters]
    if unknown and not takes_any:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`static_argnames` = {unknown[0]!r}: `{function}` has no such parameter.",
                fix=f"Pass names of {', '.join(parameters) or 'parameters'}.",
            )
        )
    return frozenset(names)


def check_hashable(static: dict[str, Any], function: str) -> None:
    """Check that static arguments can tell one compiled step from another.

    Raises:
        ArgumentTypeError: One cannot be hashed, such as a list or an array.
    """
    for name, value in static.items():
        try:
            hash(value)
        except TypeError as error:
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"Static argument `{name}` of `{function}` is {value!r}, which cannot be "
                    "hashed.",
                    why="One step is compiled for each value of it, and found again by the value.",
                    fix="Pass a tuple instead of a list, or a number, a string or an enum; arrays "
                    "are no static arguments.",
                )
            ) from error


def split_static(
    static: frozenset[str], names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]:
    """Split arguments into the static ones by name, and the other ones."""
    named = {**dict(zip(names, args, strict=True)), **kwargs}
    return (
        {name: value for name, value in named.items() if name in static},
        tuple(value for name, value in zip(names, args, strict=True) if name not in static),
        {name: value for name, value in kwargs.items() if name not in static},
    )


def without(fn: Callable[..., Any], static: dict[str, Any]) -> Callable[..., Any]:
    """`fn` with the values of some parameters filled in, wherever they stand."""
    whole = inspect.signature(fn)
    others = [p for p in whole.parameters.values() if p.name not in static]
    signature = whole.replace(parameters=others)

    @functools.wraps(fn)
    def rest(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments | static
        in_order = {name: given[name] for name in whole.parameters if name in given}
        bound = inspect.BoundArguments(whole, in_order)
        return fn(*bound.args, **bound.kwargs)

    rest.__signature__ = signature  # type: ignore[attr-defined]
    return rest


def bound_to(instance: Callable[[], Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function with its first argument filled in by `instance()`."""

    @functools.wraps(fn)
    def method(*args: Any, **kwargs: Any) -> Any:
        return fn(instance(), *args, **kwargs)

    whole = inspect.signature(fn)
    others = list(whole.parameters.values())[1:]
    method.__signature__ = whole.replace(parameters=others)  # type: ignore[attr-defined]
    return method
