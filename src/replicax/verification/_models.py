"""Models that train themselves: a library says how to take one step of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from replicax.values import Variable


class ModelKind(Protocol):
    """How one library's models are verified."""

    def is_model(self, value: Any) -> bool:
        """Whether a value is a model that trains itself."""

    def step_of(self, model: Any) -> Callable[[Any], Any]:
        """What takes one step on a batch of per-replica values, and returns its numbers."""

    def variables_of(self, model: Any) -> Sequence[Variable]:
        """All that a step writes."""

    def on_one_device(self, model: Any, strategy: Any) -> AbstractContextManager[None]:
        """While inside, the strategy has one replica, and the model is to take its step there."""


_KINDS: list[ModelKind] = []


def register_models(kind: ModelKind) -> None:
    """Teach `rx.verify` one library's models."""
    _KINDS.append(kind)


def kind_of(value: Any) -> ModelKind | None:
    """The kind of a model; None for other values."""
    return next((kind for kind in _KINDS if kind.is_model(value)), None)
