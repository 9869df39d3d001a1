"""Keras' compiled steps, called so that neither Ctrl-C nor other programs harm them."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import jax
import keras

from replicax.cluster import guard
from replicax.collectives import IN_FLIGHT, TURNS
from replicax.keras import _compat
from replicax.keras._checks import OURS, check_placed
from replicax.recording import RECORDER
from replicax.step._recorded import subject_of_step
from replicax.values import ReplicaMesh

_FUNCTIONS = ("train_function", "test_function", "predict_function")


class Interruptions:
    """Ctrl-C: at once between steps, and after a step that runs, once it has handed its state over.

    Used as a context, in the thread that takes the steps.
    """

    def __init__(self) -> None:
        self._came: list[tuple[int, Any]] = []
        self._before: Any = None
        self._waits = False

    def __enter__(self) -> Self:
        """Take over from Python's handler; only the main thread can."""
        before = signal.getsignal(signal.SIGINT)
        if callable(before) and threading.current_thread() is threading.main_thread():
            self._before = before
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        """Give Ctrl-C back, unless somebody else has taken it meanwhile."""
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: Any) -> None:
        if self._waits:
            self._came.append((number, frame))
        else:
            self._before(number, frame)

    @contextlib.contextmanager
    def later(self) -> Iterator[None]:
        """Let Ctrl-C take effect at the end of the block."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
        if self._came:
            first, self._came = self._came[0], []
            self._before(*first)


class Step:
    """A step function of Keras: `(state, iterator) -> (result, state)`.

    Args:
        function: What Keras made.
        model: The model, whose variables give their arrays away while its steps run.
        mesh: The replicas.
        interruptions: What holds Ctrl-C back.
        name: What the model calls it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        model: Any,
        mesh: ReplicaMesh,
        interruptions: Interruptions,
        name: str = "step",
    ) -> None:
        self.function, self._model, self._mesh = function, model, mesh
        self._interruptions = interruptions
        self._subject = subject_of_step(f"{model.name}.{name}", mesh, is_awaited=False)

    def __call__(self, state: Any, iterator: Iterator[Any]) -> Any:
        """Take the batches first, which may take long, then run the step to its end."""
        count = max(1, int(self._model.steps_per_execution))
        try:
            batches = [next(iterator), *itertools.islice(iterator, count - 1)]
            takes_turns = self._mesh.is_cpu_simulation
            if takes_turns and (TURNS.in_a_row >= IN_FLIGHT or not _follows(state)):
                TURNS.settle()
            recorded = RECORDER.recorded(self._subject)
            with self._interruptions.later(), self._guarded(), recorded:
                result, state = self.function(state, iter(batches))
                # What Keras does next; Ctrl-C must not come between.
                self._keep(state)
        except BaseException:
            self._put_back(state)
            raise
        if takes_turns:
            TURNS.output = _first_array(state)
            TURNS.in_a_row += 1
        if self._mesh.spans_processes and len(state) == 2:  # noqa: PLR2004 - that of predict
            result = jax.tree.map(self._whole, result)
        return result, state

    def _whole(self, rows: Any) -> Any:
        """Predictions of all rows, which every process gets. Collective."""
        if rows.is_fully_replicated:
            return rows.addressable_data(0)
        return self._mesh.all_rows(rows)

    def _guarded(self) -> contextlib.AbstractContextManager[Any]:
        return guard() if self._mesh.spans_processes else contextlib.nullcontext()

    def _keep(self, state: Any) -> None:
        names = ["trainable_variables", "non_trainable_variables"]
        if len(state) == 4:  # noqa: PLR2004 - a training step's
            names.append("optimizer_variables")
        if len(state) > 2:  # noqa: PLR2004 - all but that of predict
            names.append("metrics_variables")
        _compat.set_state_of_fit(self._model, dict(zip(names, state, strict=True)))

    def _put_back(self, state: Any) -> None:
        """After an error before the step ran: Keras took the arrays out of the variables."""
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            return
        for variable, array in zip(self._variables(len(state)), _flat(state), strict=True):
            if _compat.array_of(variable) is None:
                _compat.set_array(variable, array)

    def _variables(self, parts: int) -> list[Any]:
        model = self._model
        found = [*model.trainable_variables, *model.non_trainable_variables]
        if parts == 4:  # noqa: PLR2004 - a training step's
            found += model.optimizer.variables
        if parts > 2:  # noqa: PLR2004 - all but that of predict
            found += model.metrics_variables
        return found


def _flat(state: Any) -> list[Any]:
    return [array for part in state for array in part]


def _first_array(state: Any) -> Any:
    return next((part[0] for part in state if part), None)


def _follows(state: Any) -> bool:
    """Whether the step is given what the last program makes, and so waits for it by itself."""
    return TURNS.output is not None and TURNS.output is _first_array(state)


class SafeSteps(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """Has Keras call its steps through `Step`, from where it has made them until `restore`.

    As long, the model is among `OURS`.

    Args:
        model: The model.
        mesh: The replicas.
        interruptions: What holds Ctrl-C back.
    """

    def __init__(self, model: Any, mesh: ReplicaMesh, interruptions: Interruptions) -> None:
        super().__init__()
        self._stepping, self._mesh, self._interruptions = model, mesh, interruptions
        OURS.append(model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Keras has made the training step."""
        del logs
        self._wrap("train_function")

    def on_test_begin(self, logs: Any = None) -> None:
        """Keras has made the step of an evaluation."""
        del logs
        self._wrap("test_function")

    def on_predict_begin(self, logs: Any = None) -> None:
        """Keras has made the step of a prediction."""
        del logs
        self._wrap("predict_function")

    def _wrap(self, name: str) -> None:
        function = getattr(self._stepping, name)
        if not isinstance(function, Step):
            check_placed(self._stepping, self._mesh)
            step = Step(function, self._stepping, self._mesh, self._interruptions, name)
            setattr(self._stepping, name, step)

    def restore(self) -> None:
        """Give the model Keras' own steps back."""
        for name in _FUNCTIONS:
            step = getattr(self._stepping, name)
            if isinstance(step, Step):
                setattr(self._stepping, name, step.function)
        OURS.remove(self._stepping)
        TURNS.settle()
