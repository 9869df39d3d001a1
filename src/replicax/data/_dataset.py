"""The protocol of a dataset, and its chain of stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from replicax import errors
from replicax.data import _checks
from replicax.data._requests import Ids, Requests, requests

HINT = "hint"
"""What `.shard(rx.data.HINT)` marks: the place in the chain where policy HINT shards."""


class Dataset:
    """Elements in an order that can be opened anywhere and repeated.

    A stage (`.map`, `.batch`, ...) makes a new dataset and leaves this one as it is. The order of
    an epoch depends on the number of the epoch where there is a shuffle, and on nothing else.

    Iterating a dataset gives one epoch; the n-th time it gives epoch n.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> dataset = rx.data.from_arrays(np.arange(5)).shuffle(seed=0).batch(2)
        >>> len(dataset), sorted(int(row) for batch in dataset for row in batch)
        (3, [0, 1, 2, 3, 4])
        >>> second = list(dataset.open(epoch=1))
        >>> [batch.tolist() for batch in dataset.open(epoch=1, start=2)] == [second[2].tolist()]
        True
    """

    _passes = 0

    # --- what a dataset is -----------------------------------------------------------------------

    @property
    def num_elements(self) -> int | None:
        """Elements of one epoch; None if unknown or without end."""
        raise NotImplementedError

    @property
    def source_length(self) -> int | None:
        """Elements of the source, before every stage; None if unknown or without end."""
        return self.num_elements

    @property
    def is_infinite(self) -> bool:
        """Whether an epoch is known to have no end."""
        return False

    @property
    def batch_size(self) -> int | None:
        """Rows of a full element, where the chain has a `.batch`, or the source says so.

        A `.map` after the batch is taken to keep the number of rows. None where an element is one
        row, or a batch of somebody else's.
        """
        return None

    @property
    def files(self) -> tuple[str, ...] | None:
        """The files that it reads, where it can be sharded by file."""
        return None

    @property
    def is_sharded(self) -> bool:
        """Whether it is one shard of a dataset already, and must not be sharded again."""
        return False

    @property
    def shards_by_hint(self) -> bool:
        """Whether `.shard(rx.data.HINT)` stands in the chain."""
        return False

    @property
    def is_once(self) -> bool:
        """Whether it can be read only once: its source is an iterator."""
        return False

    @property
    def has_indices(self) -> bool:
        """Whether an element can be read without those before it."""
        return False

    # --- reading ---------------------------------------------------------------------------------

    def open(self, *, epoch: int = 0, start: int = 0) -> Iterator[Any]:
        """Elements ``start``, ``start + 1``, ... of an epoch.

        With indices nothing before ``start`` is read; else it is read and dropped. Threads of
        the chain end when the iterator is closed, exhausted or collected.

        Args:
            epoch: Number of the epoch.
            start: Number of the first element; beyond the end there are none.

        Raises:
            InvalidArgumentError: A number is negative.
            OutOfRangeError: The source is an iterator that was used up.
        """
        epoch = _checks.count(epoch, "epoch")
        start = _checks.count(start, "start")
        if not self.has_indices:
            return self._iterate(epoch, start)
        return self._stream(requests(epoch, start, self.num_elements))

    def row_ids(self, element: int, *, epoch: int = 0) -> Ids | None:
        """Places in the source of the rows of one element, `i64[rows]`.

        Returns:
            The ids, in the order of the rows; None where the source has no indices. Where the
            source's elements are batches already, the id of the batch.

        Raises:
            OutOfRangeError: There is no such element.
        """
        element = _checks.count(element, "element")
        epoch = _checks.count(epoch, "epoch")
        if not self.has_indices:
            return None
        size = self.num_elements
        if size is not None and element >= size:
            raise errors.OutOfRangeError(
                errors.describe(
                    f"There is no element {element}: an epoch has {size} "
                    f"element{'' if size == 1 else 's'}.",
                    fix="Number the elements of an epoch from 0.",
                )
            )
        return self._ids(np.array([element]), np.array([epoch]))

    def __len__(self) -> int:
        size = self.num_elements
        if size is None:
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"The length of {self!r} is "
                    + ("infinite." if self.is_infinite else "not known."),
                    why="It repeats without end."
                    if self.is_infinite
                    else "Its source tells no length.",
                    fix="Use `num_elements`, which is None here, or give it "
                    + ("an end: `.take(n)`." if self.is_infinite else "a length: `.cache()`."),
                )
            )
        return size

    def __bool__(self) -> bool:
        # Without this, `if dataset:` would ask for a length that may not be known.
        return True

    def __iter__(self) -> Iterator[Any]:
        epoch, self._passes = self._passes, self._passes + 1
        return self.open(epoch=epoch)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    # --- for stages ------------------------------------------------------------------------------

    def _stream(self, wanted: Requests) -> Iterator[Any]:
        """The elements that are asked for, in order; only with indices."""
        raise NotImplementedError

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """Elements from ``start`` on; only without indices."""
        raise NotImplementedError

    def _ids(self, indices: Ids, epochs: Ids) -> Ids | None:
        """Ids of the rows of elements, one after the other; only with indices."""
        raise NotImplementedError

    @property
    def _gathers(self) -> bool:
        """Whether many elements can be read at once, without Python for each of them."""
        return False

    @property
    def _is_in_memory(self) -> bool:
        """Whether elements are rows of arrays, picked by indices alone."""
        return False

    def _gather(self, indices: Ids, epochs: Ids) -> Any:
        """The stacked elements, if the dataset gathers."""
        raise NotImplementedError

    def _resharded(self, num_shards: int, index: int, by: Literal["files", "hint"]) -> Dataset:
        """The same chain over a shard of the files, or with its hint followed."""
        del num_shards, index
        raise errors.InvalidArgumentError(
            errors.describe(
                f"{self!r} cannot be sharded by {by}.",
                why="It reads no files that it knows of."
                if by == "files"
                else "No `.shard(rx.data.HINT)` stands in its chain.",
                fix="Shard by rows, or use `rx.data.from_files(paths, read)`."
                if by == "files"
                else "Add `.shard(rx.data.HINT)` where it should be sharded.",
            )
        )

    # --- sharding --------------------------------------------------------------------------------

    def sharded(
        self, num_shards: int, index: int, *, by: Literal["files", "rows", "hint"]
    ) -> Dataset:
        """What one of several pipelines reads.

        Args:
            num_shards: Number of pipelines.
            index: Number of this one.
            by: `"files"` reads every ``num_shards``-th file. `"rows"` reads all elements and keeps
                of each batch the piece `[index * p, (index + 1) * p)` with
                `p = ceil(rows / num_shards)`, which may be empty; of elements that are rows,
                every ``num_shards``-th. `"hint"` shards where `.shard(rx.data.HINT)` stands.

        Raises:
            FailedPreconditionError: It is sharded already.
            InvalidArgumentError: It cannot be sharded so, or has fewer files than shards.
        """
        num_shards = _checks.count(num_shards, "num_shards", least=1)
        index = _checks.count(index, "index", below=num_shards)
        if by not in ("files", "rows", "hint"):
            raise errors.InvalidArgumentError(
                errors.describe(f"`by` = {by!r} is unknown.", fix="Pass 'files', 'rows' or 'hint'.")
            )
        if self.is_sharded:
            raise errors.FailedPreconditionError(
                errors.describe(
                    f"{self!r} is sharded already.",
                    why="Sharding it twice would lose rows.",
                    fix="Leave out its own sharding, or use the policy 'off'.",
                )
            )
        if by != "rows":
            return self._resharded(num_shards, index, by)
        if self.batch_size is None:
            return self.shard(num_shards, index)
        return _batches.Piece(self, num_shards, index)

    # --- stages ----------------------------------------------------------------------------------

    def map(self, fn: Callable[[Any], Any], num_parallel: int | None = None) -> Dataset:
        """Apply a function to every element.

        An exception of ``fn`` reaches the consumer as it is, in its turn, with the number of the
        element in a note.

        Args:
            fn: From an element to an element.
            num_parallel: How many calls may run at a time, in threads; the order is kept. None
                calls in the consumer's thread.
        """
        _checks.function(fn, "fn")
        if num_parallel is not None:
            num_parallel = _checks.count(num_parallel, "num_parallel", least=1)
        return _stages.Map(self, fn, num_parallel)

    def batch(self, size: int, drop_remainder: bool = False) -> Dataset:  # noqa: FBT001, FBT002
        """Stack every ``size`` elements along a new first axis.

        Args:
            size: Rows of a batch.
            drop_remainder: Leave out a last batch with fewer rows.
        """
        size = _checks.count(size, "size", least=1)
        return _batches.Batch(self, size, bool(drop_remainder))

    def shuffle(self, seed: int = 0, buffer: int | None = None) -> Dataset:
        """Put the elements into an order of ``seed`` and the number of the epoch.

        Args:
            seed: The same seed gives the same orders, on every machine.
            buffer: Draw each element from the next ``buffer`` ones only. None draws from all of
                them, which needs a source with indices.

        Raises:
            InvalidArgumentError: There is no buffer, and the source has no indices or no end.
        """
        seed = _checks.count(seed, "seed", below=_checks.MAX_SEED)
        if buffer is not None:
            buffer = _checks.count(buffer, "buffer", least=1)
        elif not self.has_indices or self.is_infinite:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"{self!r} cannot be shuffled as a whole.",
                    why="It repeats without end."
                    if self.is_infinite
                    else "Its source can only be read in order.",
                    fix="Shuffle before `.repeat()`."
                    if self.is_infinite
                    else "Pass `buffer=`, or put `.cache()` before the shuffle.",
                )
            )
        return _shuffle.shuffled(self, seed, buffer)

    def repeat(self, count: int | None = None) -> Dataset:
        """Several epochs as one, each with its own order; without end for None."""
        if count is not None:
            count = _checks.count(count, "count")
        return _stages.Repeat(self, count)

    def shard(self, num_shards: int | str, index: int | None = None) -> Dataset:
        """Every ``num_shards``-th element, from number ``index`` on.

        `.shard(rx.data.HINT)` shards only under the input policy `"hint"`, at this place.
        """
        if num_shards == HINT and index is None:
            return _stages.ShardHint(self)
        num_shards = _checks.count(num_shards, "num_shards", least=1)
        index = _checks.count(index, "index", below=num_shards)
        return _stages.Shard(self, num_shards, index)

    def take(self, count: int) -> Dataset:
        """The first ``count`` elements."""
        return _stages.Take(self, _checks.count(count, "count"))

    def skip(self, count: int) -> Dataset:
        """All but the first ``count`` elements."""
        return _stages.Skip(self, _checks.count(count, "count"))

    def cache(self) -> Dataset:
        """Keep elements in memory once they were read.

        The order is that of epoch 0 from then on, so shuffle after it. What can only be read in
        order gets indices: the first use reads it to its end.

        Raises:
            InvalidArgumentError: It has no end.
        """
        if self.is_infinite:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"{self!r} cannot be kept: it has no end.", fix="Cache before `.repeat()`."
                )
            )
        return _cache.cached(self)

    def prefetch(self, n: int = 2) -> Dataset:
        """Read up to ``n`` elements ahead, in a thread."""
        return _stages.Prefetch(self, _checks.count(n, "n", least=1))


# The stages are datasets themselves, so they come after the class.
from replicax.data import _batches, _cache, _shuffle, _stages  # noqa: E402
