"""One `restore`: what is put in place at once, and what waits for variables."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from replicax import errors
from replicax._log import logger
from replicax.checkpoint._containers import IN_PLACE, is_leaf
from replicax.checkpoint._leaves import Leaves, find_leaves, replace_leaves
from replicax.checkpoint._records import Record, assign, fits, like, record_of
from replicax.input import DistributedIterator
from replicax.values import Frame, Variable, _deferred, entered

if TYPE_CHECKING:
    from replicax.checkpoint._checkpoint import Checkpoint
    from replicax.checkpoint._storage import Arrays

_LOGGER = logger("checkpoint")


class Saved(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        source: The path of the checkpoint, for messages.
        records: What is said about each leaf, by path.
        aliases: Further paths of leaves, with those of `records`.
        arrays: The arrays of the records that have data, by path.
    """

    source: str
    records: dict[str, Record]
    aliases: dict[str, str]
    arrays: Arrays


class Restoration:
    """Values that go from a checkpoint into objects, now or when variables appear.

    Objects that can be referred to weakly are: a model that waits for values may end.
    """

    def __init__(self, checkpoint: Checkpoint, saved: Saved) -> None:
        self.source = saved.source
        self.pending = set(saved.records)
        self.is_partial = False
        self._checkpoint = weakref.ref(checkpoint)
        self._roots = {
            name: _reference(root)
            for name, root in checkpoint.objects.items()
            if not is_leaf(root)  # nothing appears in those
        }
        self._saved = saved
        self._restored: set[str] = set()

    def begin(self, previous: Restoration | None) -> None:
        """Restore what is there, all of it or nothing, and take over from a restore before.

        Raises:
            InvalidArgumentError: A leaf is not in the checkpoint, or does not fit.
            FailedPreconditionError: An iterator cannot go where the checkpoint says.
        """
        checkpoint = self._checkpoint()
        assert checkpoint is not None  # noqa: S101 # it is calling
        leaves = find_leaves(checkpoint.objects)
        homes = self._homes(leaves, leaves.found)
        self._check(leaves, homes)
        if previous is not None:
            previous.end()
        self._restore(leaves, homes)
        if self.pending:
            _deferred.register(self._resolve)

    def end(self) -> None:
        """Wait no more: another restore takes over."""
        _deferred.unregister(self._resolve)
        self._warn_if_incomplete("Another restore has begun")

    def unmatched(self) -> list[str]:
        """Paths of leaves that exist and were not restored."""
        leaves = find_leaves(self._objects())
        return [path for path in leaves.found if path not in self._restored]

    def _resolve(self) -> bool:
        """Restore variables that appeared; whether nothing waits any more."""
        objects = self._objects()
        if not objects:
            self._warn_if_incomplete("The objects are gone")
            return True
        leaves = find_leaves(objects)
        variables = {
            path: leaf.value
            for path, leaf in leaves.found.items()
            if isinstance(leaf.value, Variable)
        }
        homes = self._homes(leaves, variables)
        waited_for = {path: home for path, home in homes.items() if home in self.pending}
        self._check(leaves, waited_for)
        self._restore(leaves, waited_for)
        for variable in variables.values():
            _deferred.note_placed(variable)
        return not self.pending

    def _objects(self) -> dict[str, Any]:
        checkpoint = self._checkpoint()
        if checkpoint is not None:
            return checkpoint.objects
        living = ((name, reference()) for name, reference in self._roots.items())
        return {name: root for name, root in living if root is not None}

    def _homes(self, leaves: Leaves, paths: Iterable[str]) -> dict[str, str | None]:
        """The path in the checkpoint of each leaf; None for what it does not hold."""
        others: dict[str, list[str]] = {}
        for alias, path in leaves.aliases.items():
            others.setdefault(path, []).append(alias)
        return {
            path: next(filter(None, map(self._home, [path, *others.get(path, ())])), None)
            for path in paths
        }

    def _home(self, path: str) -> str | None:
        home = self._saved.aliases.get(path, path)
        return home if home in self._saved.records else None

    def _restore(self, leaves: Leaves, homes: Mapping[str, str | None]) -> None:
        found = {path: (leaves.found[path].value, home) for path, home in homes.items() if home}
        others = {
            path: like(value, *self._content(home))
            for path, (value, home) in found.items()
            if not isinstance(value, IN_PLACE)
        }
        with entered(Frame(None, agreed=True)):  # not as a write of whoever caused it
            for value, home in found.values():
                if isinstance(value, IN_PLACE):
                    assign(value, *self._content(home))
        replace_leaves(leaves, others)
        self._restored |= set(found)
        self.pending -= {home for _, home in found.values()}
        for home in set(self._saved.arrays) - self.pending:
            del self._saved.arrays[home]

    def _content(self, home: str) -> tuple[Record, Any]:
        record = self._saved.records[home]
        return record, record.data_in(self._saved.arrays, home)

    def _check(self, leaves: Leaves, homes: Mapping[str, str | None]) -> None:
        rows = []
        for path, home in homes.items():
            wanted = record_of(path, leaves.found[path].value)
            saved = self._saved.records[home] if home is not None else None
            if saved is None or not fits(saved, wanted):
                rows.append([path, "missing" if saved is None else str(saved), str(wanted)])
        if not rows:
            self._check_positions(leaves, homes)
            return
        raise errors.InvalidArgumentError(
            errors.describe(
                f"The checkpoint at {self.source!r} does not fit the objects; nothing was "
                "restored.",
                table=errors.Table(["leaf", "in the checkpoint", "in the objects"], rows),
                why="A leaf takes a value of its own shape and dtype only. Different copies go to "
                "as many replicas as they come from, in a variable of the same kind.",
                fix="Build the objects as they were when they were saved, or give `Checkpoint` "
                "only those that it holds.",
            )
        )

    def _check_positions(self, leaves: Leaves, homes: Mapping[str, str | None]) -> None:
        for path, home in homes.items():
            iterator = leaves.found[path].value
            position = None if home is None else self._saved.records[home].position
            if position is None or not isinstance(iterator, DistributedIterator):
                continue
            try:
                iterator.check_state(position)
            except errors.ReplicaxError as error:
                error.add_note(f"Nothing was restored. It stands at `{path}` in {self.source!r}.")
                raise

    def _warn_if_incomplete(self, cause: str) -> None:
        if self.pending and not self.is_partial:
            _LOGGER.warning(
                "%s, and these values of the checkpoint at %s were never used: %s. "
                "`expect_partial()` on what `restore` returned says that this is meant.",
                cause,
                self.source,
                ", ".join(sorted(self.pending)),
            )


class RestoreStatus:
    """What became of a `Checkpoint.restore`.

    Examples:
        >>> import tempfile
        >>> import replicax as rx
        >>> folder = tempfile.mkdtemp()
        >>> rx.checkpoint.Checkpoint(step=3, epoch=1).save(folder)
        >>> checkpoint = rx.checkpoint.Checkpoint(step=0)
        >>> status = checkpoint.restore(folder)
        >>> checkpoint.step, status.pending
        (3, ('epoch',))
    """

    def __init__(self, restoration: Restoration) -> None:
        self._restoration = restoration

    @property
    def pending(self) -> tuple[str, ...]:
        """Paths of the values that no object has taken yet, sorted. Context: cross-replica."""
        _deferred.settle()
        return tuple(sorted(self._restoration.pending))

    def assert_consumed(self) -> Self:
        """Make sure that every value was used, and every leaf of the objects restored.

        Context: cross-replica, or outside.

        Returns:
            The status.

        Raises:
            InvalidArgumentError: Some were not; lists them.
        """
        self.assert_existing_objects_matched()
        if pending := self.pending:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"{len(pending)} values of the checkpoint at {self._restoration.source!r} were "
                    "not used.",
                    table=_paths(pending),
                    why="No object has a leaf of that path; variables may still be created.",
                    fix="Give `Checkpoint` the objects that hold them, call this after the "
                    "variables were created, or use `assert_existing_objects_matched()`.",
                )
            )
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Make sure that every leaf that the objects have by now was restored.

        Context: cross-replica, or outside.

        Returns:
            The status.

        Raises:
            InvalidArgumentError: Some were not, because they appeared after `restore` and are not
                in the checkpoint, or are no variables; lists them.
        """
        _deferred.settle()
        if unmatched := self._restoration.unmatched():
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"{len(unmatched)} leaves of the objects were not restored from the "
                    f"checkpoint at {self._restoration.source!r}.",
                    table=_paths(unmatched),
                    why="They appeared after `restore`. Of such, only variables whose path is in "
                    "the checkpoint are given their value.",
                    fix="Call `restore` again now that they exist: it says which are missing in "
                    "the checkpoint.",
                )
            )
        return self

    def expect_partial(self) -> Self:
        """Say that unused values are expected: no warning is logged about them.

        Variables that are created later still get their values.

        Returns:
            The status.
        """
        self._restoration.is_partial = True
        return self

    def __repr__(self) -> str:
        waiting = len(self._restoration.pending)
        return f"<RestoreStatus of {self._restoration.source!r}, {waiting} values pending>"


def _paths(paths: Iterable[str]) -> errors.Table:
    return errors.Table(["leaf"], [[path] for path in paths])


def _reference(root: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(root)
    except TypeError:
        return lambda: root
