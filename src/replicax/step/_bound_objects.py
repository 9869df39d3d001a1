"""Objects of model libraries whose parts are variables, and how a step sees them.

A library whose objects hold arrays in attributes cannot ask an access object for each read, as
`rx.Variable` does. So at each level of tracing, and for each replica of the eager runner, its
objects are *bound*: they hold that level's values while its code runs, and their own again
afterwards. `replicax.nnx` registers how. One thread binds them at a time.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol, TypeVar, cast

from replicax import errors
from replicax.step._access import TracedVariables
from replicax.step._one_at_a_time import held_for_objects, let_go
from replicax.values import StrategyLike, Variable, VariableAccess

# Libraries whose objects lose what a step writes to them unless their package knows them.
_PACKAGES = {("flax.nnx.pytreelib", "Pytree"): "nnx"}


class ObjectKind(Protocol):
    """How the objects of one library are bound."""

    def is_object(self, value: Any) -> bool:
        """Whether a value is such an object."""

    def check_known(self, value: Any, strategy: StrategyLike) -> None:
        """Raise if an object's parts are not variables of the strategy."""

    def bound(self, access: VariableAccess, replica: Any = None) -> AbstractContextManager[None]:
        """Let all objects hold what `access` sees, and store in it what they hold at the end.

        `replica` is the replica context where its function begins, else None.
        """

    def suspended(self) -> AbstractContextManager[None]:
        """Let all objects hold their own values, and those of now again at the end."""


_KINDS: list[ObjectKind] = []


def register_objects(kind: ObjectKind) -> None:
    """Teach the runners one library's objects."""
    _KINDS.append(kind)


def bound(access: VariableAccess, replica: Any = None) -> AbstractContextManager[Any]:
    """Bind all objects to an access, for the length of a `with` block."""
    if not _KINDS:
        return contextlib.nullcontext()
    return _all_bound(access, replica)


@contextlib.contextmanager
def _all_bound(access: VariableAccess, replica: Any) -> Iterator[None]:
    with held_for_objects(), ExitStack() as stack:
        for kind in _KINDS:
            stack.enter_context(kind.bound(access, replica))
        yield


_Meet = TypeVar("_Meet", bound=Callable[..., Any])


def suspending(meet: _Meet) -> _Meet:
    """A meeting during which objects are not bound to the replica that waits in it."""
    if not _KINDS:
        return meet

    def suspended_meet(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for kind in _KINDS:
                stack.enter_context(kind.suspended())
            stack.enter_context(let_go())
            return meet(*args, **kwargs)

    return cast("_Meet", suspended_meet)


def is_object(value: Any) -> bool:
    """Whether a value is an object that steps use in place, and not a tree of arrays."""
    return any(kind.is_object(value) for kind in _KINDS) or _package_of(value) is not None


def check_objects(fn: Callable[..., Any], values: Sequence[Any], strategy: StrategyLike) -> None:
    """Check the objects that a replica function is given or closes over.

    Raises:
        ContextError: What the step writes to one of them would be lost, or written twice.
    """
    for value in (fn, getattr(fn, "__self__", None), *values, *cells_of(fn), *globals_of(fn)):
        if not is_object(value):
            continue
        kind = next((kind for kind in _KINDS if kind.is_object(value)), None)
        if kind is None:
            raise _unknown(value)
        kind.check_known(value, strategy)


def check_no_objects(args: Sequence[Any], kwargs: dict[str, Any], names: Sequence[str]) -> None:
    """Refuse objects as arguments of an `rx.function`, which would take them for trees of arrays.

    Raises:
        ArgumentTypeError: One is.
    """
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        if is_object(value):
            kind = type(value).__name__
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"Argument `{name}` of an rx.function is a {kind} of {type(value).__module__}.",
                    why="It is used in place. Taken apart into arrays and built anew, it would "
                    "lose what the step writes to it.",
                    fix=f"Name the parameter: `rx.function(static_argnames={name!r})`; or use the "
                    "object from outside (a global or a closure).",
                )
            )


def peek(access: Any, variable: Variable) -> Any:
    """What an access sees, without noting that the program needs it; None if it is out of reach."""
    while isinstance(access, TracedVariables):
        if variable in access.values:
            return access.values[variable]
        access = access.parent
    return None if access is None else access.read(variable)


def _package_of(value: Any) -> str | None:
    for cls in type(value).__mro__:
        package = _PACKAGES.get((cls.__module__, cls.__name__))
        if package is not None:
            return package
    return None


def cells_of(fn: Callable[..., Any]) -> Iterator[Any]:
    """What a function closes over."""
    for cell in getattr(fn, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            yield cell.cell_contents


def globals_of(fn: Callable[..., Any]) -> Iterator[Any]:
    """The globals that a function names."""
    code, known = getattr(fn, "__code__", None), getattr(fn, "__globals__", {})
    for name in _names(code) if code is not None else ():
        if name in known:
            yield known[name]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _unknown(value: Any) -> errors.ContextError:
    package = _package_of(value)
    return errors.ContextError(
        errors.describe(
            f"A replica function uses a {type(value).__name__} of {type(value).__module__}.",
            why="What it writes to the object would be lost, because nothing says which of its "
            "parts are variables of the strategy.",
            fix=f"Call `rx.{package}.adopt(object)` once, in the strategy's scope, before steps.",
        )
    )
