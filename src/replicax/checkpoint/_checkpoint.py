"""Save and restore objects."""

from __future__ import annotations

import os
from typing import Any

from replicax import errors
from replicax.checkpoint._leaves import Leaves, find_leaves
from replicax.checkpoint._records import Record, data_of, record_of
from replicax.checkpoint._restoration import Restoration, RestoreStatus, Saved
from replicax.checkpoint._storage import (
    local_path,
    numbers_at,
    read,
    require_writable,
    write,
)
from replicax.checkpoint._workers import (
    begin,
    by_each_worker,
    by_one_worker,
    from_one_worker,
    meet_to_save,
)
from replicax.cluster import is_alone
from replicax.input import DistributedIterator
from replicax.values import Frame, current_frame, entered

_RESERVED = frozenset({"objects", "restore", "save"})


class Checkpoint:
    """Saves objects to a folder and restores them, on any number of replicas.

    The objects are trees of variables, arrays (of JAX and NumPy), Python numbers and iterators of
    distributed datasets: models and other objects, whose attributes are looked through,
    dictionaries, lists, tuples, dataclasses, and pytrees such as the states of Optax. Each of these
    leaves has a path: ``model.dense.w``, ``opt[0].mu['w']``. Everything else, such as a string, a
    function or a strategy, is left out.

    * What is saved is the value across replicas: of a sync-on-read variable the sum, the mean or
      replica 0's value, as its aggregation says. It can be restored into a variable of any kind
      on any number of replicas, or into a plain array. A sync-on-read variable without aggregation
      has no common value: its copies are saved, and go to the same number of replicas only.
    * Variables are restored with `assign`. Arrays and numbers are replaced in the dictionary, list
      or attribute that holds them, and stay on the devices of what they replace. A tuple or a
      pytree that cannot be changed is replaced by a new one; given to `Checkpoint` as it is, the
      new one is found under its name: ``checkpoint.state``.
    * Of an iterator its place is saved (`DistributedIterator.get_state`). It is restored with
      `set_state`, on any number of replicas: the rows that remain follow, and the passes over its
      dataset after this one are the epochs after.
    * Values of variables that do not exist yet wait. When a variable appears among the objects, it
      is given its value before it is first used from there.

    Args:
        **objects: The objects by name. The names `objects`, `restore` and `save` are taken.

    Raises:
        InvalidArgumentError: No object is given, or a name is taken.

    Attributes:
        objects: The objects by name; each is also an attribute.

    Examples:
        >>> import tempfile
        >>> import replicax as rx
        >>> folder = tempfile.mkdtemp()
        >>> with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        ...     seen = rx.Variable(0, synchronization="on_read", aggregation="sum")
        >>> seen.assign(7)
        >>> rx.checkpoint.Checkpoint(seen=seen, rate=0.5).save(folder)
        >>> alone = rx.Variable(0)
        >>> checkpoint = rx.checkpoint.Checkpoint(seen=alone, rate=0.0)
        >>> _ = checkpoint.restore(folder).assert_consumed()
        >>> int(alone), checkpoint.rate
        (7, 0.5)

        An iterator goes on where it was:

        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> rows = rx.data.from_iterable(range(8)).shuffle(seed=0).batch(4)
        >>> batches = iter(strategy.distribute_dataset(rows))
        >>> _ = next(batches)
        >>> rx.checkpoint.Checkpoint(batches=batches).save(folder)
        >>> again = iter(strategy.distribute_dataset(rows))
        >>> _ = rx.checkpoint.Checkpoint(batches=again).restore(folder)
        >>> again.step, len(list(again))
        (1, 1)
    """

    objects: dict[str, Any]
    _restoration: Restoration | None = None

    def __init__(self, **objects: Any) -> None:
        taken = sorted(name for name in objects if name in _RESERVED or name.startswith("_"))
        if taken or not objects:
            what = f"was given an object named `{taken[0]}`" if taken else "was given no objects"
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`Checkpoint` {what}.",
                    why="The name is part of each path in the checkpoint, and an attribute.",
                    fix="Give each object a name of its own: `Checkpoint(model=model)`. `objects`, "
                    "`restore`, `save` and names that begin with `_` are taken.",
                )
            )
        self.objects = objects

    def __getattr__(self, name: str) -> Any:
        objects = self.__dict__.get("objects", {})
        if name in objects:
            return objects[name]
        # Python's own protocol: `hasattr` and `copy` expect this class.
        raise AttributeError(
            errors.describe(
                f"The checkpoint has no object `{name}`.",
                fix=f"Use one of {', '.join(map(repr, objects))}.",
            )
        )

    def save(self, path: str | os.PathLike[str], *, keep: int = 1) -> None:
        """Save all leaves of the objects.

        The checkpoint at `path` is replaced once the new one is complete. If the process ends
        before, the old one is still there. In a job of several workers all call it, and worker 0
        writes; either all return, or all raise.

        Context: cross-replica, or outside of every scope; not inside an `rx.function`.
        Collective: yes.

        Args:
            path: A folder of a local file system, which holds a checkpoint, is empty, or does not
                exist.
            keep: How many checkpoints `path` holds afterwards, this one included, if there are
                as many. See `replicax.checkpoint.commits`.

        Raises:
            AlreadyExistsError: Something else is at `path`; it is not touched.
            CollectiveMismatchError: Other workers do something else, or save other objects.
            ContextError: In replica context, or inside an `rx.function`.
            FailedPreconditionError: An iterator has ended, and another one of its dataset is used.
            InvalidArgumentError: A per-replica value is among the leaves, or `keep` is below 1.
        """
        self._saved(path, keep, {})

    def _saved(self, path: str | os.PathLike[str], keep: int, notes: dict[str, Any]) -> None:
        """Save, and keep notes of the library's own beside the leaves."""
        _require_context("save")
        target = local_path(path)
        _require_positive(keep)
        begin("Checkpoint.save")
        by_one_worker(lambda: require_writable(target), "Checkpoint.save")
        with entered(Frame(None)):
            leaves = find_leaves(self.objects)
            _refuse_followed(leaves)
            values = {name: leaf.value for name, leaf in leaves.found.items()}
            records = {name: record_of(name, value) for name, value in values.items()}
            manifest = {
                "leaves": {name: record.to_json() for name, record in records.items()},
                "aliases": leaves.aliases,
                "notes": notes,
            }
            meet_to_save(manifest)
            arrays = {
                name: data_of(values[name], record)
                for name, record in records.items()
                if record.has_data
            }
        by_one_worker(lambda: write(target, manifest, arrays, keep), f"saving {str(target)!r}")

    def restore(self, path: str | os.PathLike[str], *, commit: int | None = None) -> RestoreStatus:
        """Restore all leaves of the objects; all of them or, with an error, none.

        Values in the checkpoint that no object has a place for wait for variables. Another
        `restore` of this `Checkpoint` ends the waiting of the one before. In a job of several
        workers all call it; worker 0 says which commit is the latest, and each reads it; either
        all return, or all raise.

        Context: cross-replica, or outside of every scope; not inside an `rx.function`.
        Collective: yes.

        Args:
            path: A path that was given to `save`.
            commit: One of `replicax.checkpoint.commits`; None: the latest.

        Returns:
            What was restored and what was not.

        Raises:
            NotFoundError: Nothing is at `path`, or an empty folder, or a save that did not end.
            InvalidArgumentError: Something else than a checkpoint is, or a leaf is missing in it or
                has another shape or dtype; lists all of these. Or an iterator has another dataset.
            FailedPreconditionError: The source of an iterator can be read only once, and was read
                further.
            DataLossError: The checkpoint cannot be read.
            ContextError: In replica context, or inside an `rx.function`.
        """
        return self._restored(path, commit)[0]

    def _restored(
        self, path: str | os.PathLike[str], commit: int | None
    ) -> tuple[RestoreStatus, dict[str, Any]]:
        """Restore, and return the notes as well."""
        _require_context("restore")
        source = local_path(path)
        doing = f"restoring {str(source)!r}"
        begin("Checkpoint.restore")
        if commit is None and not is_alone():
            commit = max(from_one_worker(lambda: numbers_at(source), doing), default=None)
        manifest, arrays = by_each_worker(lambda: read(source, commit), doing)
        records = {name: Record.from_json(fields) for name, fields in manifest["leaves"].items()}
        saved = Saved(str(source), records, manifest["aliases"], arrays)
        restoration = Restoration(self, saved)
        restoration.begin(self._restoration)
        self._restoration = restoration
        return RestoreStatus(restoration), manifest.get("notes", {})

    def __repr__(self) -> str:
        return f"<Checkpoint of {', '.join(self.objects)}>"


def commits(path: str | os.PathLike[str]) -> list[int]:
    """The numbers of the complete checkpoints at a path, the oldest first.

    In a job of several workers all call it, and worker 0 looks: what exists is the same for all.

    Context: cross-replica, or outside of every scope. Collective: yes.

    Args:
        path: A path that was given to `Checkpoint.save`, or where nothing is yet.

    Returns:
        What `Checkpoint.restore(path, commit=...)` takes; empty where nothing is.

    Raises:
        InvalidArgumentError: Something else than a checkpoint is at `path`.

    Examples:
        >>> import tempfile
        >>> import replicax as rx
        >>> folder = tempfile.mkdtemp()
        >>> for epoch in range(3):
        ...     rx.checkpoint.Checkpoint(epoch=epoch).save(folder, keep=2)
        >>> rx.checkpoint.commits(folder)
        [2, 3]
        >>> checkpoint = rx.checkpoint.Checkpoint(epoch=0)
        >>> _ = checkpoint.restore(folder, commit=2)
        >>> checkpoint.epoch
        1
    """
    source = local_path(path)
    return from_one_worker(lambda: numbers_at(source), f"looking for {str(source)!r}")


def _require_positive(keep: int) -> None:
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
        raise errors.InvalidArgumentError(
            errors.describe(f"`Checkpoint.save` got `keep` = {keep!r}.", fix="Pass 1 or more.")
        )


def _refuse_followed(leaves: Leaves) -> None:
    for path, leaf in leaves.found.items():
        if isinstance(leaf.value, DistributedIterator) and leaf.value.was_followed:
            raise errors.FailedPreconditionError(
                errors.describe(
                    f"`{path}` is {leaf.value!r}, which has ended, and a later pass over its "
                    "dataset has begun.",
                    why="A run that is resumed from it would repeat the passes since.",
                    fix="Give `Checkpoint` the iterator that is in use: make a new `Checkpoint` "
                    "for each save, or keep the iterator in an attribute of an object.",
                )
            )


def _require_context(call: str) -> None:
    frame = current_frame()
    if frame is None or not (frame.sees_one_copy or frame.access is not None):
        return
    where = "in replica context" if frame.replica is not None else "inside an rx.function"
    if frame.updating:
        where = "inside `extended.update`"
    raise errors.ContextError(
        errors.describe(
            f"`Checkpoint.{call}` was called {where}.",
            why="A checkpoint holds the values across replicas, between steps.",
            fix="Call it between the steps, where `strategy.run` is called.",
        )
    )
