"""What has parts, and how a part is put in place."""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
import types
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.input import DistributedIterator
from replicax.metrics import Metric
from replicax.step._bound_objects import is_object
from replicax.values import DistributedValues, Variable
from replicax.values._foreign import parts_of_foreign

IN_PLACE = (Variable, DistributedIterator)
"""Leaves that are set where they are, and stay the objects that they were."""

_NUMBERS = (bool, int, float, complex)
# Objects of these hold no state of the user's; what is a pytree node is one all the same.
_OPAQUE_PACKAGES = {*sys.stdlib_module_names, "jax", "jaxlib", "ml_dtypes", "numpy", "replicax"}
_FUNCTIONS = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
)


class Child(NamedTuple):
    """One part of a container.

    Attributes:
        suffix: What the part adds to the path: ``.w``, ``[0]``, ``['w']``.
        key: How the container knows the part.
        value: The part.
    """

    suffix: str
    key: Any
    value: Any


def is_leaf(value: object) -> bool:
    """Whether it is a variable, an iterator's place, an array, a number or a per-replica value."""
    if isinstance(value, (*IN_PLACE, DistributedValues, jax.Array)):
        return True
    if isinstance(value, (np.ndarray, np.generic)):
        return jnp.issubdtype(value.dtype, np.number) or value.dtype == np.bool_
    return type(value) in _NUMBERS


def is_mutable(value: object) -> bool:
    """Whether parts of ``value`` can be replaced in place."""
    if isinstance(value, (dict, list, deque)):
        return True
    return _has_attributes(value) and not _is_frozen(value)


def children(value: object) -> list[Child]:
    """The parts of a container, in an order that does not depend on how it was filled.

    Anything else, such as a string or a function, has none.

    Raises:
        ContextError: An object of a model library whose parts are no variables.
    """
    of_library = _of_library(value)
    return _parts_of(value) if of_library is None else of_library


def _parts_of(value: object) -> list[Child]:
    if isinstance(value, dict):
        items = [Child(f"[{key!r}]", key, child) for key, child in value.items()]
        return sorted(items, key=lambda child: child.suffix)
    if isinstance(value, tuple) and (fields := _fields(value)) is not None:
        return [Child(f".{name}", name, getattr(value, name)) for name in fields]
    if isinstance(value, (list, deque, tuple)):
        return [Child(f"[{index}]", index, child) for index, child in enumerate(value)]
    if _has_attributes(value):
        return [Child(f".{name}", name, child) for name, child in _attributes(value)]
    if _is_pytree_node(value):
        parts, _ = _parts(value)
        return [
            Child(jax.tree_util.keystr(path), index, child)
            for index, (path, child) in enumerate(parts)
        ]
    return []


def _of_library(value: object) -> list[Child] | None:
    """The variables of an object of a model library; None of anything else."""
    parts = parts_of_foreign(value)
    if parts is not None:
        return [Child(suffix, suffix, variable) for suffix, variable in parts]
    if is_object(value):
        raise _not_adopted(value)
    return None


def _not_adopted(value: object) -> errors.ContextError:
    return errors.ContextError(
        errors.describe(
            f"A checkpoint was given a {type(value).__name__} of {type(value).__module__}, parts "
            "of which are no variables.",
            why="Restoring would build another object, and leave this one as it is.",
            fix="Call `rx.nnx.adopt(object)` in the strategy's scope before; or keep "
            "`nnx.state(object)` in the checkpoint, and write back what was restored by "
            "`nnx.update`.",
        )
    )


def put(container: Any, key: Any, value: Any) -> None:
    """Replace a part of a mutable container."""
    if isinstance(container, (dict, list, deque)):
        container[key] = value
    else:
        setattr(container, key, value)


def rebuilt(container: Any, changed: Mapping[Any, Any]) -> Any:
    """A container like the given immutable one, with other parts."""
    if isinstance(container, tuple):
        fields = _fields(container)
        keys = fields if fields is not None else range(len(container))
        parts = [changed.get(key, part) for key, part in zip(keys, container, strict=True)]
        return type(container)(parts) if fields is None else type(container)(*parts)
    if _has_attributes(container):
        twin = copy.copy(container)
        for name, part in changed.items():
            object.__setattr__(twin, name, part)  # it is frozen to others, and new
        return twin
    nodes, structure = _parts(container)
    return structure.unflatten([changed.get(i, part) for i, (_, part) in enumerate(nodes)])


def _fields(value: tuple[Any, ...]) -> tuple[str, ...] | None:
    """The names of a named tuple's parts; None for another tuple."""
    names: tuple[str, ...] | None = getattr(type(value), "_fields", None)
    return names


def _has_attributes(value: object) -> bool:
    """Whether ``value`` is an object whose attributes are its parts."""
    if value is None or isinstance(value, (*_FUNCTIONS, dict, list, deque, tuple, str, bytes)):
        return False
    if isinstance(value, types.SimpleNamespace) or _is_holder(value):
        return True
    if any(cls.__module__.partition(".")[0] in _OPAQUE_PACKAGES for cls in _own_classes(value)):
        return False
    return dataclasses.is_dataclass(value) or not _is_pytree_node(value)


def _own_classes(value: object) -> tuple[type, ...]:
    """The classes that make the object what it is, but those that nearly every object has."""
    return tuple(
        cls
        for cls in type(value).__mro__
        if cls is not object and cls.__module__ not in {"abc", "typing", "collections.abc"}
    )


def _attributes(value: object) -> list[tuple[str, Any]]:
    names = set(getattr(value, "__dict__", ()))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names |= {slots} if isinstance(slots, str) else set(slots)
    names = {name for name in names if not name.startswith("__")}
    found = [(name, getattr(value, name)) for name in sorted(names) if hasattr(value, name)]
    # The numbers of a metric are options; its state is in variables.
    is_holder = _is_holder(value)
    return [(name, part) for name, part in found if not (is_holder and type(part) in _NUMBERS)]


def _is_holder(value: object) -> bool:
    """Whether it is an object of this library that keeps its state in variables."""
    return isinstance(value, Metric) or getattr(type(value), "_holds_variables", False)


def _is_frozen(value: Any) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def _is_pytree_node(value: object) -> bool:
    return value is not None and not jax.tree_util.all_leaves([value])


def _parts(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """The leaves of a node, however deep: what lies between may be made while it is flattened."""
    return jax.tree_util.tree_flatten_with_path(node, is_leaf=is_leaf)
