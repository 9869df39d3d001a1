"""The first leaf of each argument and of a result, found without walking through all of it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from replicax.step._arguments import argument_name, parameter_names
from replicax.values import PerReplica

if TYPE_CHECKING:
    from replicax.step._function import Function


Way = tuple[Callable[[Any], Any], ...]
"""Look-ups that lead from a tree to one of its leaves, each of them in C."""


@dataclass(frozen=True)
class FirstLeaf:
    """The place of one leaf in `(args, kwargs)`.

    Attributes:
        path: Its path, as JAX gives it.
        is_named: Whether it lies in `kwargs`.
        way: The look-ups that lead to it from there.
    """

    path: tuple[Any, ...]
    is_named: bool
    way: Way

    def name(self, function: Function, args: Sequence[Any]) -> str:
        """How messages call the leaf."""
        return argument_name(self.path, parameter_names(function.fn, len(args)))


def first_leaves(
    args: Sequence[Any], kwargs: dict[str, Any], *, only: Sequence[int | str] = ()
) -> dict[bool, list[FirstLeaf]]:
    """Places of the first leaf of each argument.

    One deleted leaf tells of a whole argument, because trees are donated whole.

    Args:
        args: The arguments.
        kwargs: The named arguments.
        only: Positions and names of the arguments to look at; all if empty.

    Returns:
        The places, in plain trees (False) and in per-replica values (True); leaves inside of nodes
        that have no public look-up are left out.
    """
    arguments = _by_place(args, kwargs)
    with_paths, _ = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
    paths: dict[int | str, tuple[Any, ...]] = {}
    for path, _ in with_paths:
        argument = getattr(path[1], "idx", getattr(path[1], "key", None))
        if argument is not None and (not only or argument in only):
            paths.setdefault(argument, path)
    found: dict[bool, list[FirstLeaf]] = {False: [], True: []}
    for argument, path in paths.items():
        way = way_of(path[1:])
        if way is not None:
            first = jax.tree.leaves(arguments[argument], is_leaf=_is_per_replica)[0]
            place = FirstLeaf(path, isinstance(argument, str), way)
            found[_is_per_replica(first)].append(place)
    return found


def way_to_first_leaf(tree: Any) -> Way:
    """The way to the first leaf of a tree; empty if there is none, or no public look-up."""
    with_paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return (way_of(with_paths[0][0]) if with_paths else None) or ()


def kinds_of(args: Sequence[Any], kwargs: dict[str, Any], places: Sequence[int | str]) -> set[bool]:
    """Whether the arguments at these places hold plain arrays (False), per-replica ones (True)."""
    arguments = _by_place(args, kwargs)
    return {
        _is_per_replica(leaf)
        for place in places
        for leaf in jax.tree.leaves(arguments[place], is_leaf=_is_per_replica)
    }


def _by_place(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[int | str, Any]:
    arguments: dict[int | str, Any] = dict(enumerate(args))
    arguments.update(kwargs)
    return arguments


def _is_per_replica(value: Any) -> bool:
    return isinstance(value, PerReplica)


def way_of(path: tuple[Any, ...]) -> Way | None:
    """The look-ups of a path; None where a node has no public one."""
    steps: list[Callable[[Any], Any]] = []
    for key in path:
        match key:
            case jax.tree_util.SequenceKey(idx=place) | jax.tree_util.DictKey(key=place):
                steps.append(operator.itemgetter(place))
            case jax.tree_util.GetAttrKey(name=name):
                steps.append(operator.attrgetter(name))
            case _:
                return None
    return tuple(steps)
