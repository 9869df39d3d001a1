"""Steps as they are traced somewhere else: for a strategy that stands on other devices a while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from replicax.step._function import _LIVE, Function

_CACHES: dict[str, Callable[[Function], Any]] = {
    "_variants": lambda _: {},
    "_programs": Function._new_programs,
    "_latest": lambda _: None,
    "_fed": Function._new_fed,
}


class Elsewhere:
    """What every `rx.function` has traced elsewhere; nothing at first."""

    def __init__(self) -> None:
        self._traced: dict[Function, dict[str, Any]] = {}

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """While inside, each `rx.function` knows what it has traced elsewhere, and nothing else."""
        here = _exchanged(self._traced)
        try:
            yield
        finally:
            self._traced = _exchanged(here)


def _exchanged(new: dict[Function, dict[str, Any]]) -> dict[Function, dict[str, Any]]:
    """Give functions other caches, empty ones if they have none, and return what they had."""
    old = {}
    for function in list(_LIVE):
        old[function] = {name: getattr(function, name) for name in _CACHES}
        others = new.get(function)
        for name, empty in _CACHES.items():
            setattr(function, name, empty(function) if others is None else others[name])
    return old
