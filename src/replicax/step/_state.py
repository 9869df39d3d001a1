"""State of the functional style: what goes into a step mirrored must come back mirrored.

`state, loss = step(state, batch)` threads state through the step by hand. A state that comes back
varying means that every replica would train a model of its own. Three things show it:

* an argument that is donated must come back mirrored: what replaces it is state;
* a result tree in the place and of the structure of an argument is taken for its next value;
* a per-replica result of the step that is fed back where a plain array went in before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.values import PerReplica


def donated_names(
    donate: int | str | Sequence[int | str], parameters: Sequence[str], function: str
) -> tuple[str, ...]:
    """Names of the donated parameters.

    Raises:
        InvalidArgumentError: There is no such parameter.
    """
    if not isinstance(donate, (int, str, Iterable)):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`donate` = {donate!r} is neither a name nor a position.",
                fix="Pass a parameter's name, its position, or a tuple of them.",
            )
        )
    names = []
    for item in (donate,) if isinstance(donate, (int, str)) else tuple(donate):
        if isinstance(item, str) and item in parameters:
            names.append(item)
        elif isinstance(item, int) and not isinstance(item, bool) and 0 <= item < len(parameters):
            names.append(parameters[item])
        else:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`donate` = {item!r}: `{function}` has no such parameter.",
                    fix=f"Pass names or positions of {', '.join(parameters) or 'parameters'}.",
                )
            )
    return tuple(names)


def check_returned_state(
    args: Sequence[Any], result: Any, donate: Sequence[str], names: Sequence[str], function: str
) -> None:
    """Check that state comes back mirrored.

    Args:
        args: The positional arguments, arrays or tracers.
        result: The result of the function; varying parts are `PerReplica`.
        donate: Names of donated arguments.
        names: Names of the positional arguments.
        function: Name of the function.

    Raises:
        VaryingWriteError: Naming the paths of the state that varies.
    """
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    for position, (argument, name) in enumerate(zip(args, names, strict=False)):
        if name in donate:
            candidates = [(f"result[{i}]", part) for i, part in enumerate(parts)]
            candidates.append(("result", result))
        elif len(parts) > 1 and position < len(parts) and not _is_bare(argument):
            candidates = [(f"result[{position}]", parts[position])]
        else:
            continue
        for where, part in candidates:
            varying = _varying_paths(argument, part)
            if varying:
                raise _varying_state(name, where, varying, function)


def check_fed_back(
    value: PerReplica, name: str, function_id: int, plain: set[str], function: str
) -> None:
    """Refuse a varying result of a function as the next value of a mirrored argument.

    Args:
        value: The per-replica argument.
        name: Path of the argument.
        function_id: The function that is called.
        plain: Paths of arguments that were plain arrays before.
        function: Name of the function.

    Raises:
        VaryingWriteError: The value is the function's own varying result.
    """
    if value.provenance.function == function_id and name in plain:
        raise _varying_state(name, "the last result", [("", value.provenance.cause)], function)


def _is_bare(argument: Any) -> bool:
    structure: Any = jax.tree.structure(argument)
    return isinstance(argument, PerReplica) or structure.num_nodes == 1


def _varying_paths(argument: Any, part: Any) -> list[tuple[str, str]]:
    """Paths and causes of varying leaves, if ``part`` has the form of ``argument``."""
    if isinstance(argument, PerReplica) or not jax.tree.leaves(argument):
        return []
    old_structure: Any
    old, old_structure = jax.tree.flatten(argument, is_leaf=_is_per_replica)
    new, new_structure = jax.tree_util.tree_flatten_with_path(part, is_leaf=_is_per_replica)
    if old_structure != new_structure:
        return []
    if any(_local_shape(x) != _local_shape(y) for x, (_, y) in zip(old, new, strict=True)):
        return []
    return [
        (jax.tree_util.keystr(path), y.provenance.cause)
        for x, (path, y) in zip(old, new, strict=True)
        if isinstance(y, PerReplica) and not isinstance(x, PerReplica)
    ]


def _is_per_replica(value: Any) -> bool:
    return isinstance(value, PerReplica)


def _local_shape(value: Any) -> tuple[Any, ...]:
    if isinstance(value, PerReplica):
        return (value.stacked.shape[1:], value.stacked.dtype)
    array = value if hasattr(value, "dtype") else jax.typeof(value)
    return (array.shape, array.dtype)


def _varying_state(
    name: str, where: str, varying: Sequence[tuple[str, str]], function: str
) -> errors.VaryingWriteError:
    return errors.VaryingWriteError(
        errors.describe(
            f"State `{name}` goes into `{function}` mirrored and comes back as {where} with values "
            "that may differ between replicas.",
            table=errors.Table(
                ("state", "varies because it depends on"),
                [(name + path, cause) for path, cause in varying[:20]],
            ),
            why="Each replica would keep weights of its own. Most often a gradient was not "
            "all-reduced.",
            fix="Combine what differs: `ctx.all_reduce('mean', gradients)`. If it is no state, "
            "return it in another place or structure; if the state is meant to differ, start it "
            "with `strategy.distribute_values_from_function`.",
        )
    )


def split_off_state(
    state: dict[str, Any], result: Any, function: str
) -> tuple[list[Any], Any, Callable[[list[Any], Any], Any]]:
    """Part what a step returned into its new state and the rest.

    Args:
        state: What goes from step to step, by the name of its argument.
        result: What the step returned: the new state, or a tuple that begins with it.
        function: Name of the function.

    Returns:
        The new state, the rest, and a function that joins them in the form of the result.

    Raises:
        InvalidArgumentError: The state does not come back.
    """
    if not state:
        return [], result, lambda _, rest: rest
    given = list(state.values())
    if len(given) == 1 and _have_one_form(given[0], result):
        return [result], (), lambda new, _: new[0]
    if isinstance(result, (tuple, list)) and len(result) >= len(given):
        new, rest = list(result[: len(given)]), list(result[len(given) :])
        kind = type(result)
        if all(_have_one_form(x, y) for x, y in zip(given, new, strict=True)):
            make = kind if not hasattr(result, "_fields") else lambda parts: kind(*parts)
            return new, rest, lambda new, rest: make([*new, *rest])
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    rows = [
        (f"`{name}`", _form(value), _form(part))
        for (name, value), part in itertools.zip_longest(state.items(), parts[: len(state)])
    ]
    raise errors.InvalidArgumentError(
        errors.describe(
            f"`{function}` does not return its state in the form in which it was given.",
            table=errors.Table(("donated", "given", "returned in its place"), rows),
            why="With `steps_per_execution`, donated arguments go from each step to the next.",
            fix="Return them first, in the order of the parameters: `return state, loss`.",
        )
    )


def check_is_no_state(
    given: dict[str, Any], order: Sequence[str], result: Any, function: str
) -> None:
    """Refuse what looks like state and would be the same in all steps of a call.

    Args:
        given: The arguments that go to all steps, by name.
        order: Names of parameters. A number is taken for state where a result has its place.
        result: What a step returned.
        function: Name of the function.

    Raises:
        InvalidArgumentError: A result has the form of an argument.
    """
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    in_place = dict(zip(order, parts, strict=False))
    for name, value in given.items():
        is_number = jax.tree_util.all_leaves([value]) and jnp.ndim(value) == 0
        others = [in_place[name]] if name in in_place else []
        if any(_is_next(value, part) for part in (others if is_number else [*parts, result])):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`{name}` of `{function}` looks like state: a result has its form.",
                    why="With `steps_per_execution`, what is not donated is the same in all steps "
                    "of a call.",
                    fix=f"Write `rx.function(donate={name!r}, ...)` and return its next value "
                    "first. If it is no state, return the result in another structure, such as "
                    "`{'loss': loss}`.",
                )
            )


def _is_next(argument: Any, part: Any) -> bool:
    """Whether a result may be the next value of an argument: not of a Python number."""
    old, new = jax.tree.leaves(argument), jax.tree.leaves(part)
    return (
        bool(old)
        and _have_one_form(argument, part)
        and [jax.typeof(x).weak_type for x in old] == [jax.typeof(x).weak_type for x in new]
    )


def _have_one_form(argument: Any, part: Any) -> bool:
    old_structure: Any
    new_structure: Any
    old, old_structure = jax.tree.flatten(argument)
    new, new_structure = jax.tree.flatten(part)
    if old_structure != new_structure:
        return False
    return all(_local_shape(x) == _local_shape(y) for x, y in zip(old, new, strict=True))


def _form(value: Any) -> str:
    return "nothing" if value is None else str(jax.tree.map(jax.typeof, value))[:120]
