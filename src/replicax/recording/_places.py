"""Where records are written, and how."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from replicax.errors import FailedPreconditionError, describe

FOLDER = "REPLICAX_RECORD_DIR"
"""The variable that names the folder for records."""

_KEPT_S = 7 * 24 * 3600.0


def default_folder() -> Path:
    """This user's folder for records, in the folder of temporary files; it need not exist."""
    return Path(tempfile.gettempdir()) / f"replicax-records-{os.getuid()}"


def job_folder(job: str) -> Path:
    """The folder for the records of a job, on this host: that of the environment, else one of ours.

    Args:
        job: What tells the job from others.
    """
    return chosen_folder() or default_folder() / job


def chosen_folder() -> Path | None:
    """The folder for records that the environment names, or None."""
    return Path(text) if (text := os.environ.get(FOLDER)) else None


def own_folder(path: Path) -> Path:
    """Makes a folder that only this user can read, and returns it.

    Raises:
        FailedPreconditionError: It is somebody else's, or a link.
        OSError: It cannot be made.
    """
    inner = path.parent == default_folder()
    if inner and not path.exists():
        _forget_old(path.parent)
    for folder in [path.parent, path] if inner else [path]:
        folder.mkdir(mode=0o700, parents=not inner, exist_ok=True)
        # In a folder that all share, somebody else may have made it before.
        if inner and (folder.is_symlink() or folder.stat().st_uid != os.getuid()):
            raise FailedPreconditionError(
                describe(
                    f"Records are not written to {str(folder)!r}: it is not this user's own.",
                    fix=f"set {FOLDER} to a folder of yours.",
                )
            )
    return path


def _forget_old(folder: Path) -> None:
    """Removes records that nobody has looked at for a week."""
    with contextlib.suppress(OSError):
        for job in list(folder.iterdir()) if folder.stat().st_uid == os.getuid() else []:
            if job.is_dir() and time.time() - job.stat().st_mtime > _KEPT_S:
                for file in job.glob("*.json"):
                    file.unlink()
                job.rmdir()


def write_whole(path: Path, value: Any) -> None:
    """Writes JSON so that whoever reads it sees all of it.

    Raises:
        OSError: It cannot be written.
    """
    text = json.dumps(value, separators=(",", ":"))
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123 - the mode
        file.write(text)
    new.replace(path)
