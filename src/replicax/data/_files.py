"""Datasets of files."""

from __future__ import annotations

import glob
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from replicax import errors
from replicax.data import _checks
from replicax.data._dataset import Dataset


def from_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    read: Callable[[str], Iterable[Any]],
) -> FilesDataset:
    """Elements of files, one file after the other.

    Args:
        paths: Paths, in this order; a single one may be a pattern, such as `"data/*.npz"`, whose
            files are sorted by name.
        read: From a path to its elements, such as `rx.data.read_lines`.

    Raises:
        InvalidArgumentError: There are no paths, or a path twice.
        NotFoundError: A file does not exist, or a pattern has no files.

    Examples:
        >>> import os, pathlib, tempfile
        >>> import replicax as rx
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in "ab":
        ...         _ = pathlib.Path(folder, name).write_text(f"{name}1{os.linesep}{name}2")
        ...     list(rx.data.from_files(f"{folder}/*", rx.data.read_lines).interleave(2))
        ['a1', 'b1', 'a2', 'b2']
    """
    _checks.function(read, "read")
    return FilesDataset(_checked_paths(paths), read)


def _checked_paths(paths: Any) -> tuple[str, ...]:
    if isinstance(paths, (str, os.PathLike)):
        found = os.fspath(paths)
        if glob.has_magic(found) and not Path(found).exists():
            # A pattern may be absolute, which Path.glob does not take.
            names = tuple(sorted(glob.glob(found, recursive=True)))  # noqa: PTH207
            if not names:
                raise errors.NotFoundError(
                    errors.describe(
                        f"No file has a name like {found!r}.",
                        fix="Check the pattern and the current folder.",
                    )
                )
            return names
        paths = [found]
    try:
        names = tuple(os.fspath(path) for path in paths)
    except TypeError as error:
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`paths` = {paths!r:.80} are no paths.", fix="Pass a list of file names."
            )
        ) from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`paths` names {twice[0]!r} twice." if twice else "`paths` is empty.",
                fix="Name each file once." if twice else "Pass at least one file.",
            )
        )
    # A name with a scheme is the reader's to find.
    missing = [name for name in names if "://" not in name and not Path(name).exists()]
    if missing:
        raise errors.NotFoundError(
            errors.describe(
                f"{len(missing)} of {len(names)} files do not exist, the first: {missing[0]!r}.",
                fix="Check the paths and the current folder.",
            )
        )
    return names


class FilesDataset(Dataset):
    """Elements of files; `rx.data.from_files` makes it."""

    def __init__(
        self,
        paths: tuple[str, ...],
        read: Callable[[str], Iterable[Any]],
        cycle: int = 1,
        *,
        is_sharded: bool = False,
    ) -> None:
        self._paths, self._read, self._cycle = paths, read, cycle
        self._sharded = is_sharded

    def __repr__(self) -> str:
        interleave = "" if self._cycle == 1 else f".interleave({self._cycle})"
        return f"from_files(<{len(self._paths)} files>){interleave}"

    @property
    def num_elements(self) -> int | None:
        """None: the files would have to be read."""
        return None

    @property
    def files(self) -> tuple[str, ...] | None:
        """The paths, in the order in which they are opened."""
        return self._paths

    @property
    def is_sharded(self) -> bool:
        """Whether these are a part of the files only."""
        return self._sharded

    def interleave(self, cycle: int) -> FilesDataset:
        """Take elements from ``cycle`` files in turn; a file at its end makes room for the next.

        Args:
            cycle: Number of files that are open at a time.
        """
        cycle = _checks.count(cycle, "cycle", least=1)
        return FilesDataset(self._paths, self._read, cycle, is_sharded=self._sharded)

    def _resharded(self, num_shards: int, index: int, by: Literal["files", "hint"]) -> Dataset:
        if by != "files":
            return super()._resharded(num_shards, index, by)
        if len(self._paths) < num_shards:
            count = len(self._paths)
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"{count} file{'' if count == 1 else 's'} cannot be shared out over "
                    f"{num_shards} pipelines.",
                    why="A pipeline without a file would have no rows.",
                    fix=f"Write at least {num_shards} files, or shard by rows.",
                )
            )
        paths = self._paths[index::num_shards]
        return FilesDataset(paths, self._read, self._cycle, is_sharded=num_shards > 1)

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        del epoch
        number = 0
        waiting = deque(self._paths)
        reading: deque[tuple[str, int, Iterator[Any]]] = deque()
        while waiting or reading:
            while waiting and len(reading) < self._cycle:
                path = waiting.popleft()
                reading.append((path, 0, self._opened(path)))
            path, place, elements = reading.popleft()
            try:
                element = next(elements)
            except StopIteration:
                # The next file takes the place of the one that ended, and its turn.
                if waiting:
                    path = waiting.popleft()
                    reading.appendleft((path, 0, self._opened(path)))
                continue
            except Exception as error:
                error.add_note(f"Raised by the reader for element {place} of {path!r}.")
                raise
            reading.append((path, place + 1, elements))
            number += 1
            if number > start:
                yield element

    def _opened(self, path: str) -> Iterator[Any]:
        try:
            elements = self._read(path)
        except Exception as error:
            error.add_note(f"Raised by the reader for {path!r}.")
            raise
        if isinstance(elements, Iterable) and not isinstance(elements, (str, bytes)):
            return iter(elements)
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`read` was to return the elements of {path!r}, and returned {elements!r:.80}.",
                fix="Return an iterable, or use `yield` in it.",
            )
        )
