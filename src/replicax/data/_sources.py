"""Datasets that read: what has indices, and what can only be iterated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

from replicax import errors
from replicax.data._dataset import Dataset
from replicax.data._requests import Ids, Requests


class IndexedDataset(Dataset):
    """Elements that somebody else's object gives by number.

    Args:
        get: From the number of an element and of the epoch to the element.
        size: Elements of an epoch; None if there is no end.
        name: What it is, for messages.
        batch_size: Rows of an element, if elements are batches of a known size.
        gather: From numbers to the stacked elements, where the object can do that.
        is_sharded: Whether the object is a shard.
    """

    def __init__(
        self,
        get: Callable[[int, int], Any],
        size: int | None,
        name: str,
        *,
        batch_size: int | None = None,
        gather: Callable[[Ids], Any] | None = None,
        is_sharded: bool = False,
    ) -> None:
        self._get, self._size, self._name = get, size, name
        self._batch_size, self._gather_by, self._sharded = batch_size, gather, is_sharded

    def __repr__(self) -> str:
        return f"<{self._name} of {'endless' if self._size is None else self._size} elements>"

    @property
    def num_elements(self) -> int | None:
        return self._size

    @property
    def is_infinite(self) -> bool:
        return self._size is None

    @property
    def batch_size(self) -> int | None:
        return self._batch_size

    @property
    def is_sharded(self) -> bool:
        return self._sharded

    @property
    def has_indices(self) -> bool:
        return True

    @property
    def _gathers(self) -> bool:
        return self._gather_by is not None

    def _gather(self, indices: Ids, epochs: Ids) -> Any:
        del epochs
        if self._gather_by is None:
            raise NotImplementedError
        return self._gather_by(indices)

    def _ids(self, indices: Ids, epochs: Ids) -> Ids | None:
        del epochs
        return indices

    def _stream(self, wanted: Requests) -> Iterator[Any]:
        for indices, epochs in wanted:
            for index, epoch in zip(indices.tolist(), epochs.tolist(), strict=True):
                try:
                    element = self._get(index, epoch)
                except Exception as error:
                    error.add_note(f"Raised by {self!r} for element {index} of epoch {epoch}.")
                    raise
                yield element


def from_sequence(sequence: Sequence[Any]) -> Dataset:
    """The items of a list or of another sequence."""
    name = type(sequence).__name__
    return IndexedDataset(lambda index, _: sequence[index], len(sequence), name)


def from_iterable(source: Iterable[Any] | Callable[[], Iterable[Any]]) -> Dataset:
    """Elements of an iterable, or of what a function returns for each epoch.

    It can only be read in order: to open it further on, the elements before are read and
    dropped. Sequences, such as lists, have indices. An element belongs to the chain once it was
    given: `.batch`, `.shuffle`, `.cache` and `.prefetch` hold several, so do not write into it.

    An iterator, such as a generator, can be read once: a later epoch goes on where the last one
    stopped, and is refused when nothing is left. Pass the generator function instead.

    Args:
        source: An iterable, or a function of no arguments that returns one.

    Raises:
        ArgumentTypeError: It is neither, or its order may differ from process to process.

    Examples:
        >>> import replicax as rx
        >>> def squares():
        ...     for number in range(4):
        ...         yield number * number
        >>> list(rx.data.from_iterable(squares).skip(1))
        [1, 4, 9]
    """
    if isinstance(source, Sequence) and not isinstance(source, (str, bytes)):
        return from_sequence(source)
    if isinstance(source, (set, frozenset)):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"A {type(source).__name__} cannot be a dataset.",
                why="Its order may be another one in each process.",
                fix="Pass a list: `sorted(...)`.",
            )
        )
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes, dict)):
        size = len(source) if isinstance(source, Sized) else None
        once = isinstance(source, Iterator)
        return IterableDataset(source.__iter__, type(source).__name__, size=size, is_once=once)
    if callable(source):
        name = getattr(source, "__name__", type(source).__name__)
        return IterableDataset(lambda: _iterator_of(source(), name), name)
    raise errors.ArgumentTypeError(
        errors.describe(
            f"`from_iterable` takes an iterable or a function that returns one, not a "
            f"{type(source).__name__}: {source!r:.80}",
            fix="Pass a list, a generator function, or any object with `__iter__`.",
        )
    )


def _iterator_of(returned: Any, name: str) -> Iterator[Any]:
    if not isinstance(returned, Iterable) or isinstance(returned, (str, bytes, dict)):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`{name}` was to return an iterable of elements, and returned {returned!r:.80}.",
                fix="Use `yield` in it, or return a list.",
            )
        )
    return iter(returned)


class IterableDataset(Dataset):
    """Elements in the order in which an iterator gives them.

    Args:
        make: Makes an iterator for each epoch; the same one again means that it is used up.
        name: What it is, for messages.
        size: Elements of an epoch, if known.
        batch_size: Rows of an element, if elements are batches of a known size.
        is_sharded: Whether the object is a shard.
        is_infinite: Whether it is known to have no end.
        is_once: Whether it can be read only once.
        set_epoch: Called with the number of the epoch before its iterator is made.
        convert: From what the iterator gives to an element.
        unordered_why: Why the order cannot be repeated, if so: then it opens at 0 only.
    """

    def __init__(
        self,
        make: Callable[[], Iterator[Any]],
        name: str,
        *,
        size: int | None = None,
        batch_size: int | None = None,
        is_sharded: bool = False,
        is_infinite: bool = False,
        is_once: bool = False,
        set_epoch: Callable[[int], Any] | None = None,
        convert: Callable[[Any], Any] | None = None,
        unordered_why: str | None = None,
    ) -> None:
        self._make, self._name, self._size = make, name, size
        self._batch_size, self._sharded, self._infinite = batch_size, is_sharded, is_infinite
        self._set_epoch, self._convert, self._unordered_why = set_epoch, convert, unordered_why
        self._once = is_once
        self._latest: Iterator[Any] | None = None
        self._is_used_up = False

    def __repr__(self) -> str:
        count = "" if self._size is None else f"{self._size} "
        return f"<{count}elements of {self._name}>"

    @property
    def num_elements(self) -> int | None:
        return self._size

    @property
    def is_infinite(self) -> bool:
        return self._infinite

    @property
    def is_once(self) -> bool:
        return self._once

    @property
    def batch_size(self) -> int | None:
        return self._batch_size

    @property
    def is_sharded(self) -> bool:
        return self._sharded

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        if start and self._unordered_why is not None:
            raise errors.FailedPreconditionError(
                errors.describe(
                    f"{self!r} cannot be opened at element {start}.",
                    why=self._unordered_why,
                    fix="Leave shuffling to `.shuffle(seed=...)` of `rx.data`.",
                )
            )
        for number, element in enumerate(self._opened(epoch, start)):
            if number >= start:
                yield element if self._convert is None else self._convert(element)

    def _opened(self, epoch: int, start: int) -> Iterator[Any]:
        """The elements of an epoch, or what is left of an iterator that can be read once."""
        if self._set_epoch is not None:
            self._set_epoch(epoch)
        iterator = self._make()
        is_old, self._latest = iterator is self._latest, iterator
        if is_old and start:
            raise self._cannot_start_anew(start)
        number = 0
        while True:
            try:
                element = next(iterator)
            except StopIteration:
                if is_old and self._is_used_up and number == 0:
                    raise self._cannot_start_anew(start) from None
                self._is_used_up = True
                return
            except Exception as error:
                self._is_used_up = True
                error.add_note(f"Raised by {self!r} at element {number} of epoch {epoch}.")
                raise
            self._is_used_up = False
            number += 1
            yield element

    def _cannot_start_anew(self, start: int) -> errors.OutOfRangeError:
        return errors.OutOfRangeError(
            errors.describe(
                f"{self!r} cannot be opened at element {start}: it was read before."
                if start
                else f"{self!r} was read to its end before, and cannot start anew.",
                why="The source is an iterator, such as a generator: a second epoch would "
                "have no steps.",
                fix="Pass something that can be iterated again: a list, a dataset object, or "
                "the generator function itself, without calling it.",
            )
        )
