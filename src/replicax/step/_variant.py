"""What tells two runs of one program apart, cheaply: shapes, and plain numbers among arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from replicax.cluster import NUMBER_BITS
from replicax.step._first_leaves import Way, way_of

_NUMBERS = (bool, int, float, np.generic)
_WORD = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15
_MOST_LEAVES = 4


def entry_by_call(
    entry: int, signatures: Iterable[Sequence[Any]], args: Sequence[Any], kwargs: dict[str, Any]
) -> Callable[[Sequence[Any], dict[str, Any]], int] | int:
    """The entry of a program in the order, for each call.

    Args:
        entry: The entry of the program.
        signatures: Shape, dtype and weak type of each leaf, for each trace of the program.
        args: Arguments of a call.
        kwargs: Named arguments.

    Returns:
        The entry, if nothing tells calls apart; else a function of the arguments.
    """
    with_paths, _ = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
    numbers = [way_of(path) for path, leaf in with_paths if isinstance(leaf, _NUMBERS)]
    # Where the traces differ, in a few leaves.
    columns = list(zip(*signatures, strict=False))
    differing = [i for i, column in enumerate(columns) if len(set(column)) > 1]
    shapes = [way_of(with_paths[i][0]) for i in differing[:_MOST_LEAVES] if i < len(with_paths)]
    to_numbers = [way for way in numbers if way is not None]
    to_arrays = [way for way in shapes if way is not None]
    if not (to_numbers or to_arrays):
        return entry

    def by_call(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
        values: list[Any] = []
        for way in to_numbers:
            value = _found(way, (args, kwargs))
            # An array that came in the place of a number is not looked at; NaN has no hash.
            values.append(value if isinstance(value, _NUMBERS) and value == value else None)  # noqa: PLR0124
        shapes = [getattr(_found(way, (args, kwargs)), "shape", None) for way in to_arrays]
        return entry | _bits(shapes) << NUMBER_BITS | _bits(values)

    return by_call


def _found(way: Way, tree: Any) -> Any:
    for look_up in way:
        tree = look_up(tree)
    return tree


def _bits(values: Sequence[Any]) -> int:
    """A hash of `NUMBER_BITS` bits that is the same in all processes."""
    found = hash(tuple(-1 if value is None else value for value in values)) & _WORD
    return ((found ^ found >> 32) * _FACTOR & _WORD) >> (64 - NUMBER_BITS)
