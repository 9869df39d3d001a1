"""A batch, or the end of the data as a value."""

from __future__ import annotations

from typing import Any

from replicax import errors


class OptionalBatch:
    """A batch, or none: what `DistributedIterator.get_next_as_optional` returns."""

    def __init__(self, batches: tuple[Any, ...] = ()) -> None:
        self._batches = batches

    def has_value(self) -> bool:
        """Whether there is a batch."""
        return bool(self._batches)

    def get_value(self) -> Any:
        """The batch.

        Raises:
            InvalidArgumentError: There is none.
        """
        if self._batches:
            return self._batches[0]
        raise errors.InvalidArgumentError(
            errors.describe(
                "The optional batch holds none.",
                why="The dataset had ended when it was taken.",
                fix="Ask `has_value()` first.",
            )
        )

    def __repr__(self) -> str:
        return f"OptionalBatch({', '.join(map(repr, self._batches))})"
