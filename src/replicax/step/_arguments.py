"""The arguments of a replica function: which are mirrored, per-replica or no arrays at all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.step._bound_objects import is_object
from replicax.values import DistributedValues, Mirrored, PerReplica, StrategyLike, Variable
from replicax.values._combine import as_array
from replicax.values._workers import check_count


@dataclass(frozen=True)
class Leaf:
    """One leaf of the arguments.

    Attributes:
        value: The array, the `PerReplica`, or any other object.
        name: Its place, such as ``batch[0]``.
    """

    value: Any
    name: str

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"argument `{self.name}`"

    @property
    def is_array(self) -> bool:
        """Whether the leaf is one array, equal on all replicas."""
        return isinstance(self.value, (jax.Array, np.ndarray, np.generic))

    @property
    def is_per_replica(self) -> bool:
        """Whether each replica gets its own component."""
        return isinstance(self.value, PerReplica)


def check_run_arguments(strategy: StrategyLike, args: Any, kwargs: Any) -> None:
    """Check the form of `args` and `kwargs` of `strategy.run`.

    Raises:
        ArgumentTypeError: `args` is no list or tuple, or `kwargs` no dictionary.
    """
    if not isinstance(args, (list, tuple)):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"{strategy.name}.run: `args` must be a list or tuple, not {type(args).__name__}.",
                fix="Pass one argument as `args=(value,)`.",
            )
        )
    if kwargs is not None and not isinstance(kwargs, dict):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"{strategy.name}.run: `kwargs` must be a dictionary, not {type(kwargs).__name__}."
            )
        )


def check_merge_arguments(merge_fn: Any, args: Any, kwargs: Any) -> None:
    """Check the form of what `ctx.merge_call` is given.

    Raises:
        ArgumentTypeError: No function, `args` no list or tuple, or `kwargs` no dictionary.
    """
    if not isinstance(args, (list, tuple)):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"merge_call: `args` must be a list or tuple, not {type(args).__name__}.",
                fix="Pass one argument as `args=(value,)`.",
            )
        )
    if not callable(merge_fn) or not isinstance(kwargs, (dict, type(None))):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"merge_call was given {merge_fn!r} with `kwargs` = {kwargs!r}.",
                why="It takes a function and a dictionary.",
                fix="Pass `merge_call(merge_fn, args=(value,), kwargs={...})`.",
            )
        )


def flatten_arguments(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Leaf], Any]:
    """Split arguments into labelled leaves; per-replica values are leaves."""
    with_paths, structure = jax.tree_util.tree_flatten_with_path(
        (tuple(args), kwargs),
        is_leaf=lambda value: isinstance(value, DistributedValues) or is_object(value),
    )
    names = parameter_names(fn, len(args))
    leaves = []
    for path, value in with_paths:
        if isinstance(value, Mirrored) and not isinstance(value, Variable):
            value = value.value  # noqa: PLW2901 - a mirrored value is passed as its array
        leaves.append(Leaf(value, argument_name(path, names)))
    return leaves, structure


def argument_name(path: Sequence[Any], names: Sequence[str]) -> str:
    """Name the place of a leaf in `(args, kwargs)`, such as ``batch[0]['image']``."""
    in_args = getattr(path[0], "idx", 0) == 0
    head: str = names[path[1].idx] if in_args else path[1].key
    # What a per-replica value is made of is no part of its name.
    inner = (key for key in path[2:] if not getattr(key, "name", "").startswith("_"))
    return head + jax.tree_util.keystr(tuple(inner))


def all_parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the parameters of a function that can be given by position."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # Some builtins have no signature.
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first ``count`` arguments that are given by position."""
    names = all_parameter_names(fn)
    rest = [f"args[{i}]" for i in range(len(names), count)]
    return (names + rest)[:count]


def stack_components(components: Sequence[Any], label: str = "a per-replica value") -> Any:
    """Stack components of one shape and dtype into one array ``[num_replicas, ...]``.

    Raises:
        InvalidArgumentError: They differ; the error has a row a replica.
    """
    arrays = [as_array(component, f"A component of {label}") for component in components]
    kinds = {(array.shape, array.dtype) for array in arrays}
    if len(kinds) > 1:
        rows = [(i, str(array.dtype), str(array.shape)) for i, array in enumerate(arrays)]
        raise errors.InvalidArgumentError(
            errors.describe(
                f"{label[0].upper()}{label[1:]} has components of different shapes or dtypes in a "
                "compiled step.",
                table=errors.Table(("replica", "dtype", "shape"), rows),
                why="The step is one program for all replicas.",
                fix="Use `strategy.distribute_dataset`, which pads and masks uneven batches, or "
                "call the step outside of `rx.function`, where shapes may differ.",
            )
        )
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        return jnp.stack(arrays)
    if jnp.issubdtype(arrays[0].dtype, jax.dtypes.prng_key):
        home = next(iter(arrays[0].devices()))
        return jnp.stack([jax.device_put(array, home) for array in arrays])
    # On the host, so that the program may put each row on its replica's device.
    return np.stack([np.asarray(array) for array in arrays])


def check_components(strategy: StrategyLike, leaf: Leaf, *, is_compiled: bool = False) -> None:
    """Check that a per-replica leaf has one component a replica.

    Raises:
        InvalidArgumentError: It has more or fewer.
        UnimplementedError: In a compiled step, it has the components of one process of several.
    """
    what = f"{leaf.label[0].upper()}{leaf.label[1:]} is {leaf.value!r}"
    check_count(strategy, leaf.value, what, is_compiled=is_compiled)
