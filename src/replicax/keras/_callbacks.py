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
from replicax.keras._backups import WholeBackups
from replicax.keras._distribution import without_distribution

WRITERS: tuple[type, ...] = (
    keras.callbacks.BackupAndRestore,
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
        self._takes_model = alone or bool(together)
        for hook in _HOOKS:
            call = getattr(callback, hook)
            if hook not in together:
                call = _without_distribution(call) if alone else _nothing
            setattr(self, hook, call)

    def set_model(self, model: Any) -> None:
        """Hand the model on, which TensorBoard draws at once."""
        super().set_model(model)
        if self._takes_model:
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
        with without_distribution():
            return call(*args, **kwargs)

    return wrapped


class Backup(Alone):
    """`BackupAndRestore` over several workers: one writes, all go on from one complete backup.

    Args:
        callback: The callback.
        is_chief: Whether this worker writes.
    """

    def __init__(self, callback: Any, *, is_chief: bool) -> None:
        super().__init__(callback, together=("on_train_begin",), alone=is_chief)
        self._folder = Path(callback.backup_dir)
        self._whole = WholeBackups(self._folder) if is_chief else None
        for hook in ("on_train_begin", "on_epoch_end", "on_train_batch_end", "on_train_end"):
            setattr(self, hook, self._around(hook, getattr(self, hook)))

    def _around(self, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        whole = self._whole

        @functools.wraps(call)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            if hook == "on_train_begin":
                self._meet()
            call(*args, **kwargs)
            if whole is not None and hook == "on_train_end":
                whole.end()
            elif whole is not None:
                whole.note()

        return wrapped

    def _meet(self) -> None:
        """All see the same backup, or none starts."""
        if self._whole is not None:
            self._whole.start()
        agree("the start of fit", {"backups in": str(self._folder)})
        agree(
            "the start of fit",
            {f"backup in {self._folder}": sorted(p.name for p in self._folder.glob("*"))},
            why="All workers go on from one backup.",
            fix="Use a folder that all workers see.",
        )


def for_this_worker(strategy: Any, callbacks: Any) -> list[Any]:
    """The callbacks that this worker runs."""
    given = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    given = [one for one in given if one is not None]
    if not strategy.replica_mesh.spans_processes:
        return given
    return [_shared(one, is_chief=strategy.is_chief) for one in given]


def _shared(callback: Any, *, is_chief: bool) -> Any:
    """What this worker runs of a callback."""
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        return Backup(callback, is_chief=is_chief)
    return Alone(callback, alone=is_chief) if isinstance(callback, WRITERS) else callback
