"""Host callbacks of a compiled step: an exception on one replica does not hang the others.

XLA ends the part of the program that runs on a device whose callback raised, and the other devices
wait for it in their next collective for ever. So the callbacks of a step are wrapped: one that
raises is noted, and gives zeros. The program then runs to its end on all replicas, and the step
raises what was noted, before anybody sees a result.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from replicax import errors
from replicax.cluster import Failure, gather, guard
from replicax.step._compat import (
    CALLBACKS,
    bind_callback,
    called_back,
    equation_site,
    opened,
    with_equations,
)
from replicax.values._tracing import is_concrete

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

# Kernels have callbacks of their own; a mapped program was gone through when it was made.
_NOT_LOOKED_INTO = frozenset({"pallas_call", "shard_map"})


class Callbacks:
    """The host callbacks of one traced function.

    Attributes:
        are_there: Whether it has any.
        have_results: Whether the program computes with what some of them return.
    """

    def __init__(self) -> None:
        self.are_there = self.have_results = False
        self._lock = threading.Lock()
        self._runs = 0
        self._calls: dict[str, int] | None = None
        self._failures: list[BaseException] = []

    def note(self, eqn: JaxprEqn) -> None:
        """Note an equation that calls back."""
        self.are_there = True
        self.have_results = self.have_results or not eqn.primitive.name.startswith("debug")

    def count_calls(self) -> None:
        """From now on, tell of a failure the how many-th call it was: of the steps of a program."""
        self._calls = {}

    def number_of_call(self, where: str) -> str:
        """Count a call of a callback; empty where calls are not counted."""
        if self._calls is None:
            return ""
        with self._lock:
            self._calls[where] = number = self._calls.get(where, 0) + 1
        return f", in its call {number} of this execution"

    @contextmanager
    def caught(self) -> Iterator[None]:
        """While a step runs, which raises itself what its callbacks raise."""
        with self._lock:
            self._runs += 1
            if self._calls:
                self._calls.clear()
        try:
            yield
        finally:
            with self._lock:
                self._runs -= 1

    def catch(self, error: BaseException, where: str) -> bool:
        """Keep an exception of a callback; False where no step would raise it."""
        with self._lock:
            if not self._runs:
                return False
            error.add_note(f"raised in a host callback of {where}")
            self._failures.append(error)
            return True

    def take_failure(self) -> BaseException | None:
        """The first exception since the last call, or None."""
        with self._lock:
            failures, self._failures = self._failures, []
        return failures[0] if failures else None


# --- the wrapped program -------------------------------------------------------------------------


def with_caught_callbacks(jaxpr: Any, callbacks: Callbacks, axis: tuple[str, int] | None) -> Any:
    """Wrap the callbacks of a jaxpr, also of those inside of it.

    Args:
        jaxpr: A jaxpr; that it was proved.
        callbacks: Where exceptions go.
        axis: Name and size of the axis of the replicas, inside of a replica function.

    Returns:
        The jaxpr with other callbacks; the same object where it has none.
    """
    equations = [_caught(eqn, callbacks, axis) for eqn in opened(jaxpr)[0].eqns]
    if all(new is old for new, old in zip(equations, opened(jaxpr)[0].eqns, strict=True)):
        return jaxpr
    return with_equations(jaxpr, equations)


def _caught(eqn: Any, callbacks: Callbacks, axis: tuple[str, int] | None) -> Any:
    if eqn.primitive.name in CALLBACKS:
        callbacks.note(eqn)
        return _wrapped(eqn, callbacks, axis)
    if eqn.primitive.name in _NOT_LOOKED_INTO:
        return eqn

    def looked_into(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            parts = [looked_into(part) for part in value]
            is_same = all(new is old for new, old in zip(parts, value, strict=True))
            return value if is_same else type(value)(parts)
        return with_caught_callbacks(value, callbacks, axis) if hasattr(value, "eqns") else value

    params = {name: looked_into(value) for name, value in eqn.params.items()}
    if all(params[name] is value for name, value in eqn.params.items()):
        return eqn
    return eqn.replace(params=params)


def _wrapped(eqn: Any, callbacks: Callbacks, axis: tuple[str, int] | None) -> Any:
    """An equation that calls back and cannot fail; it tells the host which replica it is of."""
    call, avals, site = called_back(eqn), [var.aval for var in eqn.outvars], equation_site(eqn)

    def host(*operands: Any) -> Sequence[Any]:
        where = str(site or "a step")
        try:
            if axis is not None:
                where = f"replica {int(operands[0])} of {axis[1]} (at {where})"
                operands = operands[1:]
            where += callbacks.number_of_call(where)
            return _checked(call(*operands), avals)
        except BaseException as error:
            if not callbacks.catch(error, where):
                raise
            return [np.zeros(aval.shape, aval.dtype) for aval in avals]

    def program(*operands: Any) -> Sequence[Any]:
        index = () if axis is None else (jax.lax.axis_index(axis[0]),)
        return bind_callback(eqn, host, (*index, *operands))

    traced = jax.make_jaxpr(jax.jit(program), axis_env=[axis] if axis is not None else None)
    (new,) = opened(traced(*(atom.aval for atom in eqn.invars)))[0].eqns
    return new.replace(invars=eqn.invars, outvars=eqn.outvars)


def _checked(values: Sequence[Any], avals: Sequence[Any]) -> Sequence[Any]:
    """What a callback has returned, as arrays.

    Raises:
        InvalidArgumentError: It is not what the callback was said to return. In jax, this would
            be an exception outside of the callback.
    """
    arrays = [np.asarray(value) for value in values]
    arrays = [
        array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False) for array in arrays
    ]
    found = [f"{array.dtype}{list(array.shape)}" for array in arrays]
    wanted = [f"{aval.dtype}{list(aval.shape)}" for aval in avals]
    if found != wanted:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"A host callback returned {', '.join(found) or 'nothing'}.",
                why=f"It was announced as {', '.join(wanted) or 'nothing'}.",
                fix="Return what `result_shape_dtypes` says, with the same shapes and dtypes.",
            )
        )
    return arrays


# --- the eager runner ----------------------------------------------------------------------------


@contextmanager
def raising_themselves() -> Iterator[None]:
    """Raises what a host callback raised in the place of jax's error.

    jax gives its own error the text alone; the exception is in what it logs before.
    """
    heard = _Heard()
    logger = logging.getLogger("jax")
    logger.addHandler(heard)
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # by how the call was dispatched
        causes = [cause for cause in heard.exceptions if type(cause).__name__ in str(error)]
        if not causes or "callback" not in str(error) or error in causes:
            raise
        raise causes[-1] from error
    finally:
        logger.removeHandler(heard)
        heard.exceptions.clear()


class _Heard(logging.Handler):
    """Keeps the exceptions that jax logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.exceptions: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a record."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self.exceptions.append(error)


# --- a step --------------------------------------------------------------------------------------


def run_to_the_end(
    call: Callable[..., Any], args: Sequence[Any], callbacks: Sequence[Callbacks]
) -> tuple[Any, BaseException | None]:
    """Run a program, wait for its end, and return its outputs and what a callback raised."""
    error: BaseException | None = None
    outputs = None
    with ExitStack() as stack:
        for one in callbacks:
            stack.enter_context(one.caught())
        try:
            outputs = call(*args)
            if all(is_concrete(type(leaf)) for leaf in jax.tree.leaves(outputs)):
                with guard():
                    jax.block_until_ready(outputs)
                    jax.effects_barrier()
        except BaseException as raised:  # noqa: BLE001 - raised below, or the failure behind it
            error = raised
    failures = [failure for one in callbacks if (failure := one.take_failure()) is not None]
    failure = failures[0] if failures else None
    if error is not None and failure is None:
        raise error
    return outputs, failure


def failure_of_any_worker(failure: BaseException | None, name: str) -> BaseException | None:
    """Tell all workers what a callback raised here, and hear what one raised there. Collective."""
    told = None
    if failure is not None:
        told = Failure.of_exception(failure, rank=jax.process_index()).to_json()
    records = [record for record in gather("callbacks of a step", told) if record is not None]
    if failure is not None or not records:
        return failure
    return Failure.from_json(records[0]).to_error(
        f"It was in a host callback of the same step `{name}`; no variable was changed."
    )
