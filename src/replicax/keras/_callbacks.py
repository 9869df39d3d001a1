"""Keras callbacks on several workers: all decide, one writes.

Losses and metrics are those of the global batch and equal on all workers, so callbacks that stop
the training or change the learning rate decide alike. Those that write files do it on worker 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from replicax.cluster import agree

_WRITERS: tuple[type, ...] = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
)


_HOOKS = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]


class Alone(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """A callback of one worker: variables that it makes while it writes are its own.

    Args:
        callback: The callback.
        together: Hooks that all workers call.
        alone: Whether this worker calls the others.
    """

    def __init__(self, callback: Any, *, together: tuple[str, ...] = (), alone: bool) -> None:
        super().__init__()
        self.callback = callback
        for hook in _HOOKS:
            call = getattr(callback, hook)
            if hook not in together:
                call = _without_distribution(call) if alone else _nothing
            setattr(self, hook, call)

    def set_model(self, model: Any) -> None:
        """Hand the model on."""
        super().set_model(model)
        self.callback.set_model(model)

    def set_params(self, params: Any) -> None:
        """Hand the parameters on."""
        super().set_params(params)
        self.callback.set_params(params)


def _nothing(*args: Any, **kwargs: Any) -> None:
    del args, kwargs


def _without_distribution(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before = keras.distribution.distribution()
        keras.distribution.set_distribution(None)
        try:
            return call(*args, **kwargs)
        finally:
            keras.distribution.set_distribution(before)

    return wrapped


class Meets(keras.callbacks.Callback):  # type: ignore[misc]
    """Has the workers wait for each other before and after files are written."""

    def __init__(self, files: list[str]) -> None:
        super().__init__()
        self._files = files

    def on_train_begin(self, logs: Any = None) -> None:
        """All see the same backups, or none starts."""
        del logs
        agree(
            "the start of fit",
            {
                f"backup in {name}": sorted(p.name for p in Path(name).glob("*"))
                for name in self._files
            },
            why="All workers go on from one backup.",
            fix="Use a folder that all workers see.",
        )


def for_this_worker(strategy: Any, callbacks: Any) -> list[Any]:
    """The callbacks that this worker runs."""
    given = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    given = [one for one in given if one is not None]
    if not strategy.replica_mesh.spans_processes:
        return given
    backups = [c for c in given if isinstance(c, keras.callbacks.BackupAndRestore)]
    meets = Meets([str(c.backup_dir) for c in backups])
    return [meets, *(_shared(one, is_chief=strategy.is_chief) for one in given)]


def _shared(callback: Any, *, is_chief: bool) -> Any:
    """What this worker runs of a callback."""
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        return Alone(callback, together=("on_train_begin",), alone=is_chief)
    return Alone(callback, alone=is_chief) if isinstance(callback, _WRITERS) else callback
