"""Backups of `fit` that are whole or not there, whenever their writer is killed.

`keras.callbacks.BackupAndRestore` writes over its last backup. A worker that is killed meanwhile,
because another one was, would leave a file that nobody can read. So each complete backup is copied
aside, and that copy counts at the next start.
"""

from __future__ import annotations

import shutil
from pathlib import Path


class WholeBackups:
    """The copy of a folder as it was when it was last complete.

    Args:
        folder: Where the backups are written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole, self._part, self._old = (
            folder.with_name(folder.name + ending) for ending in (".whole", ".part", ".old")
        )
        self._seen: dict[str, tuple[int, int]] = {}

    def start(self) -> None:
        """Go back to the last complete state. A folder without a copy was not written here."""
        copy = next((path for path in (self._whole, self._old) if path.exists()), None)
        if copy is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            shutil.copytree(copy, self._folder)
        self._keep()

    def note(self) -> None:
        """Keep the folder as it is now, if it has changed."""
        if self._files() != self._seen:
            self._keep()

    def end(self) -> None:
        """Keep it, or nothing if the folder is gone."""
        if self._folder.exists():
            self.note()
            return
        for path in (self._whole, self._part, self._old):
            shutil.rmtree(path, ignore_errors=True)

    def _files(self) -> dict[str, tuple[int, int]]:
        found = self._folder.glob("*")
        return {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in found}

    def _keep(self) -> None:
        seen = self._files()
        for path in (self._part, self._old):
            shutil.rmtree(path, ignore_errors=True)
        if self._folder.exists():
            shutil.copytree(self._folder, self._part)
        else:
            self._part.mkdir(parents=True)
        if self._whole.exists():
            self._whole.rename(self._old)
        self._part.rename(self._whole)
        shutil.rmtree(self._old, ignore_errors=True)
        self._seen = seen
