"""Keras callbacks on several workers: all decide, one writes.

Losses and metrics are those of the global batch and equal on all workers, so callbacks that stop
the training or change the learning rate decide alike. Those that write files do it on worker 0.
"""

from __future__ import annotations

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


class RestoresOnly(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """A `BackupAndRestore` on a worker that does not write: it only goes back to the backup."""

    def __init__(self, backup: Any) -> None:
        super().__init__()
        self._backup = backup

    def set_model(self, model: Any) -> None:
        """Hand the model on."""
        super().set_model(model)
        self._backup.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore, as worker 0 does."""
        self._backup.on_train_begin(logs)


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
    if strategy.is_chief:
        return [meets, *given]
    kept = [c for c in given if not isinstance(c, _WRITERS)]
    return [meets, *(RestoresOnly(c) if c in backups else c for c in kept)]
