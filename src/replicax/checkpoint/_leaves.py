"""Find the leaves of the objects of a checkpoint, and replace them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from replicax import errors
from replicax.checkpoint._containers import (
    IN_PLACE,
    children,
    is_leaf,
    is_mutable,
    put,
    rebuilt,
)


class Slot(NamedTuple):
    """A place in a mutable container, whose content can be replaced."""

    container: Any
    key: Any
    path: str
    value: Any


class Leaf(NamedTuple):
    """A variable, an iterator, an array or a number.

    Attributes:
        value: It.
        slot: The innermost replaceable place that holds it, maybe deep inside tuples.
    """

    value: Any
    slot: Slot


@dataclass
class Leaves:
    """What was found.

    Attributes:
        found: The leaves by path.
        aliases: Further paths of variables and iterators that stand in several places, with the
            first one.
    """

    found: dict[str, Leaf] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)


def find_leaves(objects: dict[str, Any]) -> Leaves:
    """Look through objects, near things first; each object and variable is entered once.

    Args:
        objects: The objects by name.

    Returns:
        The leaves, in an order that depends on the names alone.

    Raises:
        InvalidArgumentError: Two leaves have the same path.
    """
    leaves = Leaves()
    entered: dict[int, Any] = {}  # kept alive, so that no number is used twice
    first_paths: dict[int, str] = {}
    queue = deque(Slot(objects, name, name, objects[name]) for name in sorted(objects))
    while queue:
        slot = queue.popleft()
        for path, value in _inside(slot.value, slot.path):
            if isinstance(value, IN_PLACE) and id(value) in first_paths:
                leaves.aliases[path] = first_paths[id(value)]
            elif is_leaf(value):
                if path in leaves.found:
                    raise _same_path(path)
                if isinstance(value, IN_PLACE):
                    first_paths[id(value)] = path
                leaves.found[path] = Leaf(value, slot)
            elif id(value) not in entered:
                entered[id(value)] = value
                queue.extend(
                    Slot(value, child.key, path + child.suffix, child.value)
                    for child in children(value)
                )
    return leaves


def replace_leaves(leaves: Leaves, values: Mapping[str, Any]) -> None:
    """Put new values in the places of leaves that are not set where they are."""
    slots = {leaf.slot.path: leaf.slot for path, leaf in leaves.found.items() if path in values}
    for slot in slots.values():
        put(slot.container, slot.key, _replaced(slot.value, slot.path, values))


def _inside(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The leaves and the mutable containers that are reached through immutable containers."""
    if is_leaf(value) or is_mutable(value):
        yield path, value
        return
    for child in children(value):
        yield from _inside(child.value, path + child.suffix)


def _replaced(value: Any, path: str, values: Mapping[str, Any]) -> Any:
    if is_leaf(value):
        return values.get(path, value)
    if is_mutable(value):
        return value
    changed = {}
    for child in children(value):
        part = _replaced(child.value, path + child.suffix, values)
        if part is not child.value:
            changed[child.key] = part
    return rebuilt(value, changed) if changed else value


def _same_path(path: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(
        errors.describe(
            f"Two values of the checkpoint's objects have the path `{path}`.",
            why="Two keys of a dictionary look alike (their `repr` is the same).",
            fix="Use strings or numbers as keys.",
        )
    )
