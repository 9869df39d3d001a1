"""Names of Keras that have no public form; each has a test that says when it is gone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import jax
import keras
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute
from keras.src.backend.common.stateless_scope import get_stateless_scope as get_stateless_scope
from keras.src.distribution.distribution_lib import Distribution as Distribution
from keras.src.trainers.data_adapters import get_data_adapter as get_data_adapter
from keras.src.trainers.data_adapters.array_slicing import (
    train_validation_split as train_validation_split,
)
from keras.src.trainers.data_adapters.data_adapter import DataAdapter as DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.utils.rng_utils import get_random_seed as get_random_seed

_FRAMES_LOOKED_AT = 12


def array_of(variable: Any) -> Any:
    """The array of a Keras variable, whatever scope is active; None where it has none yet."""
    return variable._value


def set_array(variable: Any, array: Any) -> None:
    """Replace the array of a Keras variable, which must have its shape and dtype."""
    variable._value = array


def arrays_of(variables: Sequence[Any]) -> list[Any]:
    """The arrays of Keras variables, as `array_of` gives them."""
    return [variable._value for variable in variables]


def set_arrays(variables: Sequence[Any], arrays: Sequence[Any]) -> None:
    """Replace the arrays of Keras variables, as `set_array` does."""
    for variable, array in zip(variables, arrays, strict=True):
        variable._value = array


def is_uninitialized(variable: Any) -> bool:
    """Whether a Keras variable without an array is to get one from its initializer."""
    return variable._value is None and variable._initializer is not None


def layout_of(variable: Any) -> Any:
    """The layout of a Keras variable, or None."""
    return variable._layout


def set_layout(variable: Any, layout: Any) -> None:
    """Have later assignments to a Keras variable placed like this."""
    variable._layout = layout


def take_uninitialized() -> list[Any]:
    """The variables that were created in stateless scopes of this thread; Keras forgets them."""
    found: list[Any] = get_global_attribute("uninitialized_variables") or []
    set_global_attribute("uninitialized_variables", [])
    return found


def initialize(variable: Any, placed: Callable[[Any], Any], layout: Any) -> None:
    """Give a variable without an array the value that its initializer makes.

    Args:
        variable: The variable.
        placed: Puts the value where it belongs.
        layout: The layout of later assignments, or None.
    """
    scope = get_stateless_scope()
    set_global_attribute("stateless_scope", None)
    try:
        with jax.ensure_compile_time_eval():
            value = variable._initializer(variable._shape, dtype=variable._dtype)
            value = variable._convert_to_tensor(value, dtype=variable._dtype)
            variable._layout = layout
            variable._value = placed(value)
            variable._initializer = None
    finally:
        set_global_attribute("stateless_scope", scope)


class Call(NamedTuple):
    """A call of `fit`, `evaluate` or `predict`.

    Attributes:
        model: The model; None where it cannot be told.
        method: The name of its method.
        given: What the iterator was given that is being made, by name.
        callbacks: What the method was given.
    """

    model: Any
    method: str
    given: dict[str, Any]
    callbacks: Any


def trainer_of_this_call() -> Call:
    """The call of a model that is making an iterator. For checks only."""
    frame: FrameType | None = sys._getframe(1)
    given: dict[str, Any] = {}
    for _ in range(_FRAMES_LOOKED_AT):
        if frame is None:
            break
        self = frame.f_locals.get("self")
        if isinstance(self, EpochIterator) and frame.f_code.co_name == "__init__":
            given = dict(frame.f_locals)
        if isinstance(self, keras.Model):
            return Call(self, frame.f_code.co_name, given, frame.f_locals.get("callbacks"))
        frame = frame.f_back
    return Call(None, "", given, None)


def sublayers(model: Any) -> Iterable[Any]:
    """A model and all layers in it."""
    found: Iterable[Any] = model._flatten_layers()
    return found


def set_state_of_fit(model: Any, state: dict[str, Any]) -> None:
    """Tell a model's `fit` where the new arrays are; Keras does it once more after a step.

    Not through Keras' own `__setattr__`, which looks for layers among all the arrays.
    """
    object.__setattr__(model, "_jax_state", state)


def layer_of_this_loss() -> Any:
    """The layer whose `add_loss` calls the function that calls this one, or None."""
    layer = sys._getframe(2).f_locals.get("self")
    return layer if isinstance(layer, keras.Layer) else None


def remember_loss(layer: Any, loss: Any) -> None:
    """Have a layer take a loss for one of its own."""
    layer._loss_ids.add(id(loss))
