"""How a step is called, and what of it is state."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from replicax.collectives import TURNS
from replicax.errors import ArgumentTypeError, describe
from replicax.step import Function
from replicax.step._bound_objects import is_object
from replicax.step._methods import BoundFunction
from replicax.strategies import Strategy
from replicax.values import Variable

from ._models import kind_of
from ._profile import STEP
from ._state import PythonRandom, Values, copied_tree, give, take


@dataclasses.dataclass(frozen=True)
class Moment:
    """All state at one moment.

    Attributes:
        variables: What the variables hold.
        tree: The functional state; None where the step has none.
    """

    variables: Values
    tree: Any = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one step has done.

    Attributes:
        after: All state.
        aux: What it returned beside the state.
        seconds: How long it took, to the end of its arrays.
    """

    after: Moment
    aux: Any
    seconds: float


class Call:
    """A step, and how it is called.

    `step(batch)` writes variables in place. `state, aux = step(state, batch)` takes state and gives
    it back; a tuple of states may also be taken and given one by one. Where the second argument of
    `rx.verify` is an object (a module, a model, a list of variables) and the step takes two
    arguments, it is handed on as it is.

    Args:
        strategy: The strategy.
        step: The step, or a model that trains itself.
        state: The second argument of `rx.verify`.

    Attributes:
        trains_itself: Whether the step is a model, or calls one whose library compiles its step.
    """

    def __init__(self, strategy: Strategy, step: Any, state: Any) -> None:
        self._strategy = strategy
        self._random = PythonRandom()  # Each run draws the same from it.
        parts = state if isinstance(state, (list, tuple)) else (state,)
        self._models = [(kind, x) for x in (step, *parts) if (kind := kind_of(x)) is not None]
        self.trains_itself = bool(self._models) and not isinstance(step, (Function, BoundFunction))
        if self._models and self._models[0][1] is step:
            step, state = self._models[0][0].step_of(step), None
        if not callable(step):
            raise ArgumentTypeError(
                describe(f"`step={step!r:.100}` is no function.", fix="pass the training step.")
            )
        self.step, self._given = step, state
        self.name: str = getattr(step, "__name__", type(step).__name__)
        self.takes = _number_of_arguments(step)
        self.is_functional = self.takes != 1 and _is_tree_of_arrays(state)
        self._is_apart = (
            self.takes is not None
            and isinstance(state, (tuple, list))
            and self.takes == len(state) + 1 > 2  # noqa: PLR2004 - a state and a batch
        )
        self.first = state if self.is_functional else None

    def variables(self) -> list[Variable]:
        """What models of other libraries write, where the step or the state is one."""
        return [v for kind, model in self._models for v in kind.variables_of(model)]

    @contextlib.contextmanager
    def on_one_device(self) -> Iterator[None]:
        """While inside, models that train themselves take their steps on one device."""
        with contextlib.ExitStack() as stack:
            for kind, model in self._models:
                stack.enter_context(kind.on_one_device(model, self._strategy))
            yield

    @property
    def is_compiled(self) -> bool:
        """Whether it is an `rx.function`."""
        return isinstance(self.step, (Function, BoundFunction))

    def arguments(self, tree: Any, batch: Any) -> tuple[Any, ...]:
        """What the step is called with."""
        given: Any = tree if self.is_functional else self._given
        if self._is_apart:
            return (*given, batch)
        if self.is_functional:
            return (given, batch)
        return (batch,) if self.takes == 1 or given is None else (given, batch)

    def parted(self, result: Any) -> tuple[Any, Any]:
        """The state and the rest of what the step returned."""
        if not self.is_functional:
            return None, result
        given: Any = self.first
        structure: Any = jax.tree.structure(given)
        if self._is_apart:
            count = len(given)
            if isinstance(result, tuple) and len(result) >= count:
                state = type(given)(result[:count])
                if jax.tree.structure(state) == structure:
                    return state, result[count:]
        elif isinstance(result, tuple) and result and jax.tree.structure(result[0]) == structure:
            return result[0], result[1:]
        elif jax.tree.structure(result) == structure:
            return result, None
        raise ArgumentTypeError(
            describe(
                f"`{self.name}` was given a state and returned none of its structure.",
                why=f"The state is {structure}, the result {jax.tree.structure(result)}.",
                fix="Return `(state, aux)` from `step(state, batch)`; or leave the state out "
                "(`None`) if the step writes variables in place.",
            )
        )

    def run(self, moment: Moment, batch: Any) -> Outcome:
        """Runs one step from a moment, which stays as it is."""
        give(moment.variables)
        self._random.restore()
        arguments = self.arguments(copied_tree(moment.tree), batch)
        jax.block_until_ready([list(take(self._strategy).values()), arguments])
        start = time.perf_counter()
        with jax.profiler.TraceAnnotation(STEP):
            result = self.step(*arguments)
            jax.block_until_ready([list(take(self._strategy).values()), result])
        seconds = time.perf_counter() - start
        TURNS.settle()
        state, aux = self.parted(result)
        self.variables()  # Some may have been created.
        variables = take(self._strategy)
        return Outcome(Moment(variables, state), aux, seconds)


def _number_of_arguments(step: Any) -> int | None:
    """How many arguments without a default the step takes; None if that is not known."""
    fn: Callable[..., Any] = step
    if isinstance(step, (Function, BoundFunction)):
        fn = step.fn
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        return None
    return sum(each.kind in kinds and each.default is each.empty for each in parameters)


def _is_tree_of_arrays(state: Any) -> bool:
    """Whether the state is arrays in plain containers, and not objects that a step writes."""
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Variable) or is_object(x))
    kinds = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
    return bool(leaves) and all(isinstance(leaf, kinds) for leaf in leaves)
