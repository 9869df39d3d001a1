"""Checkpoints on disk: a folder of commits, of which the latest counts.

Orbax writes each commit under another name and renames it when it is complete. So there is no
moment without a complete checkpoint once there was one, whenever the process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp  # type: ignore[import-untyped]

from replicax import errors
from replicax._log import logger
from replicax.cluster import is_alone

FORMAT = "replicax.checkpoint"
VERSION = 1

_COMMIT = re.compile(r"commit-(\d{6,})")
_LOGGER = logger("checkpoint")

Arrays = dict[str, np.ndarray[Any, Any]]


def local_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path that the user means.

    Raises:
        ArgumentTypeError: `path` is no path.
        UnimplementedError: It is the address of a remote store.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`path` = {path!r} is not a path.", fix="Pass a string or a `pathlib.Path`."
            )
        )
    text = os.fspath(path)
    if "://" in text:
        raise errors.UnimplementedError(
            errors.describe(
                f"`path` = {text!r} is the address of a remote store.",
                why="Checkpoints are committed by renaming a folder of a file system.",
                fix="Pass a path of a local or mounted file system, and copy the folder.",
            )
        )
    return Path(text).absolute()


def require_writable(path: Path) -> None:
    """Make sure that nothing but a checkpoint of ours would be replaced.

    Raises:
        AlreadyExistsError: Something else is there.
    """
    foreign = _foreign(path)
    if foreign is not None:
        raise errors.AlreadyExistsError(
            errors.describe(
                f"`path` = {str(path)!r} exists and is no checkpoint: {foreign}.",
                why="Saving replaces only a checkpoint or an empty folder. Nothing was changed.",
                fix="Pass another path, or remove what is there.",
            )
        )


def write(path: Path, manifest: dict[str, Any], arrays: Arrays, keep: int = 1) -> None:
    """Commit a checkpoint, and only then remove those that stood there before.

    Args:
        path: Checked by `require_writable`.
        manifest: What JSON can say.
        arrays: The arrays by name, none of them empty.
        keep: How many commits are kept, this one included.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        number = max(_commits(path), default=0) + 1
        commit = path / f"commit-{number:06d}"
        _remove_all_but(path, set(_commits(path).values()))
        items = {"manifest": ocp.args.JsonSave({"format": FORMAT, "version": VERSION, **manifest})}
        if arrays:
            items["arrays"] = ocp.args.StandardSave(arrays)
        with _checkpointer() as checkpointer:
            checkpointer.save(commit, args=ocp.args.Composite(**items))
        kept = sorted(_commits(path).items())[-keep:]
        _remove_all_but(path, {entry for _, entry in kept})
    except Exception as error:
        mapped = errors.from_exception(error)
        mapped.add_note(f"while saving a checkpoint to {str(path)!r}")
        raise mapped from error


def read(path: Path, number: int | None = None) -> tuple[dict[str, Any], Arrays]:
    """The manifest and the arrays of a commit; None: of the latest.

    Raises:
        NotFoundError: There is nothing at `path`, or nothing complete, or no such commit.
        InvalidArgumentError: There is something else than a checkpoint.
        DataLossError: The checkpoint cannot be read.
    """
    while True:
        commit = _find(path, number)
        with _kept(commit) as is_kept:
            if not is_kept:  # another process has just replaced it
                continue
            try:
                return _read_commit(commit)
            except errors.ReplicaxError:
                raise
            except Exception as error:
                raise errors.DataLossError(
                    errors.describe(
                        f"The checkpoint at {str(path)!r}, {commit.name}, cannot be read: "
                        f"{type(error).__name__}: {error}",
                        why="Its files were changed or lost after it was committed.",
                        fix="Restore another commit, if `save` kept some, or a copy of this one.",
                    )
                ) from error


def numbers_at(path: Path) -> list[int]:
    """The numbers of the complete commits, the oldest first; empty where nothing is.

    Raises:
        InvalidArgumentError: There is something else than a checkpoint.
    """
    _require_checkpoint(path)
    return sorted(_commits(path)) if path.is_dir() else []


def _read_commit(commit: Path) -> tuple[dict[str, Any], Arrays]:
    with _checkpointer() as checkpointer:
        wanted = ocp.args.Composite(manifest=ocp.args.JsonRestore())
        manifest = dict(checkpointer.restore(commit, args=wanted).manifest)
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"The checkpoint at {str(commit.parent)!r} has the format "
                    f"{manifest.get('format')!r}, version {manifest.get('version')!r}.",
                    why=f"This release reads {FORMAT!r}, version {VERSION}.",
                    fix="Use the release that wrote it.",
                )
            )
        if not (commit / "arrays").exists():
            return manifest, {}
        wanted = ocp.args.Composite(arrays=ocp.args.StandardRestore())
        arrays = checkpointer.restore(commit, args=wanted).arrays
        return manifest, {name: np.asarray(array) for name, array in arrays.items()}


def _checkpointer() -> Any:
    """Orbax's own, for this process alone: workers meet in `_workers`, not there."""
    if is_alone():
        return ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    here = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"worker{here}"
    )
    handler = ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(multiprocessing_options=options)
    )
    return ocp.Checkpointer(handler, multiprocessing_options=options)


def _require_checkpoint(path: Path) -> None:
    foreign = _foreign(path)
    if foreign is not None:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`path` = {str(path)!r} is no checkpoint: {foreign}.",
                fix="Pass the path that was given to `save`.",
            )
        )


def _find(path: Path, number: int | None) -> Path:
    """A commit; None: the latest."""
    found = numbers_at(path)
    if found and (number is None or number in found):
        return path / f"commit-{found[-1] if number is None else number:06d}"
    if found:
        raise errors.NotFoundError(
            errors.describe(
                f"There is no commit {number} at `path` = {str(path)!r}, but {found}.",
                why="`save` keeps as many commits as `keep` says.",
                fix="Restore one of these.",
            )
        )
    text = "nothing is there"
    if path.is_dir():
        is_left = any(path.iterdir())
        text = "only what a save left that did not end" if is_left else "the folder is empty"
    raise errors.NotFoundError(
        errors.describe(
            f"There is no checkpoint at `path` = {str(path)!r}: {text}.",
            fix="Pass the path that was given to `save`.",
        )
    )


def _commits(path: Path) -> dict[int, Path]:
    """The complete commits by number."""
    matches = ((_COMMIT.fullmatch(entry.name), entry) for entry in path.iterdir())
    return {int(match[1]): entry for match, entry in matches if match and entry.is_dir()}


def _foreign(path: Path) -> str | None:
    """What stands at a path, in words, if it is neither ours, nor empty, nor nothing."""
    if not path.is_dir():
        return "a file" if os.path.lexists(path) else None
    names = sorted(entry.name for entry in path.iterdir() if not _COMMIT.match(entry.name))
    if not names:
        return None
    listed = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")  # noqa: PLR2004
    return f"a folder with {listed}"


@contextlib.contextmanager
def _kept(commit: Path) -> Iterator[bool]:
    """Keep a commit from being removed while it is read; whether it was still there."""
    try:
        folder = os.open(commit, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        _lock(folder, fcntl.LOCK_SH)
        yield commit.exists()
    finally:
        os.close(folder)


def _lock(folder: int, kind: int) -> None:
    """Lock an open folder, where its file system can."""
    try:
        fcntl.flock(folder, kind)
    except BlockingIOError:
        raise
    except OSError as error:
        _LOGGER.debug("No lock on a checkpoint: %s", error)


def _remove_all_but(path: Path, kept: set[Path]) -> None:
    """Remove commits and what is left of saves that did not end.

    What cannot be removed, because it is being read, say, is left to the next save.
    """
    for entry in path.iterdir():
        if entry in kept:
            continue
        try:
            folder = os.open(entry, os.O_RDONLY)
            try:
                _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry)
            finally:
                os.close(folder)
        except BlockingIOError:
            continue
        except OSError as error:  # the new checkpoint counts all the same
            _LOGGER.warning("An old checkpoint is left at %s: %s", entry, error)
