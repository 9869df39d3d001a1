"""The first leaf of each argument, found without walking through the argument."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from replicax.step._arguments import argument_name, parameter_names

if TYPE_CHECKING:
    from replicax.step._function import Function


@dataclass(frozen=True)
class FirstLeaf:
    """The place of one leaf in `(args, kwargs)`.

    Attributes:
        path: Its path, as JAX gives it.
        steps: The look-ups that lead to it.
    """

    path: tuple[Any, ...]
    steps: tuple[Callable[[Any], Any], ...]

    def find(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The leaf at this place.

        Raises:
            Exception: The arguments have another structure.
        """
        value: Any = (args, kwargs)
        for step in self.steps:
            value = step(value)
        return value

    def name(self, function: Function, args: Sequence[Any]) -> str:
        """How messages call the leaf."""
        return argument_name(self.path, parameter_names(function.fn, len(args)))


def first_leaves(
    args: Sequence[Any], kwargs: dict[str, Any], *, only: Sequence[int | str] = ()
) -> tuple[FirstLeaf, ...]:
    """Places of the first leaf of each argument.

    Args:
        args: The arguments.
        kwargs: The named arguments.
        only: Positions and names of the arguments to look at; all if empty.

    Returns:
        The places; leaves inside of nodes that have no public look-up are left out.
    """
    with_paths, _ = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
    paths: dict[Any, tuple[Any, ...]] = {}
    for path, _ in with_paths:
        argument = getattr(path[1], "idx", getattr(path[1], "key", None))
        if not only or argument in only:
            paths.setdefault(path[:2], path)
    places = (_place(path) for path in paths.values())
    return tuple(place for place in places if place is not None)


def _place(path: tuple[Any, ...]) -> FirstLeaf | None:
    steps: list[Callable[[Any], Any]] = []
    for key in path:
        match key:
            case jax.tree_util.SequenceKey(idx=place) | jax.tree_util.DictKey(key=place):
                steps.append(operator.itemgetter(place))
            case jax.tree_util.GetAttrKey(name=name):
                steps.append(operator.attrgetter(name))
            case _:
                return None
    return FirstLeaf(path, tuple(steps))
