"""Combine the components of per-replica values in cross-replica context."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import ReduceOp
from replicax.values._distributed import DistributedValues, Mirrored
from replicax.values._operators import ArrayLike

_OVER_ELEMENTS: dict[ReduceOp, Callable[..., jax.Array]] = {
    ReduceOp.SUM: jnp.sum,
    ReduceOp.MEAN: jnp.mean,
    ReduceOp.MAX: jnp.max,
    ReduceOp.MIN: jnp.min,
}


def over_elements(op: ReduceOp) -> Callable[..., jax.Array]:
    """The function of `jax.numpy` that combines the elements of one array."""
    return _OVER_ELEMENTS[op]


def is_leaf(value: Any) -> bool:
    """Whether tree functions in cross-replica context stop at ``value``."""
    return isinstance(value, (DistributedValues, ArrayLike))


def reduce_components(op: ReduceOp, components: Sequence[Any], axes: tuple[int, ...]) -> jax.Array:
    """Combine components, and the given axes of each, into one array.

    The mean weighs all elements alike: rows, not replicas, where the components differ in length.
    """
    arrays = _on_one_device(components)
    if not axes:
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            raise _different(
                "shapes",
                "reduced elementwise",
                arrays,
                "Give `axis=0` to combine rows, or return one shape a replica.",
            )
        return _OVER_ELEMENTS[op](jnp.stack(arrays), axis=0)
    if op is not ReduceOp.MEAN:
        # A component without elements adds nothing to a sum and has no maximum.
        filled = arrays if op is ReduceOp.SUM else [a for a in arrays if _count(a, axes)]
        if not filled:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"reduce with {op.name} was given components without elements.",
                    why="Of no elements there is neither a largest nor a smallest one.",
                    fix="Leave empty batches out.",
                )
            )
        partial = [_OVER_ELEMENTS[op](array, axis=axes) for array in filled]
        return _OVER_ELEMENTS[op](jnp.stack(partial), axis=0)
    total = sum(_count(array, axes) for array in arrays)
    return jnp.stack([jnp.sum(a, axis=axes) for a in arrays]).sum(axis=0) / total


def reduce_stacked(
    op: ReduceOp, stacked: Any, axes: tuple[int, ...], rows: Any = None
) -> jax.Array:
    """Combine the rows of ``[num_replicas, ...]``; ``axes`` count from the component's first.

    Args:
        op: The operation.
        stacked: One component a row.
        axes: Axes of a component to combine too.
        rows: i32[num_replicas] real rows along the component's axis 0, the others being padding.
    """
    all_axes = (0, *(axis + 1 for axis in axes))
    if rows is None or 0 not in axes:
        return _OVER_ELEMENTS[op](stacked, axis=all_axes)
    real = jnp.arange(stacked.shape[1]) < jnp.asarray(rows)[:, None]
    mask = real.reshape(real.shape + (1,) * (stacked.ndim - 2))
    if op is ReduceOp.MEAN:
        mask = jnp.broadcast_to(mask, stacked.shape)
        return jnp.mean(stacked, axis=all_axes, where=mask)
    if op is ReduceOp.SUM:
        return jnp.sum(stacked, axis=all_axes, where=mask)
    initial = _extreme(op, stacked.dtype)
    return _OVER_ELEMENTS[op](stacked, axis=all_axes, where=mask, initial=initial)


def gather_components(components: Sequence[Any], axis: int) -> jax.Array:
    """Concatenate components along ``axis``, whose length may differ."""
    arrays = _on_one_device(components)
    others = {array.shape[:axis] + array.shape[axis + 1 :] for array in arrays}
    if len(others) > 1:
        raise _different(
            "shapes",
            f"gathered along axis {axis}",
            arrays,
            "Only the gathered axis may differ in length.",
        )
    return jnp.concatenate(arrays, axis=axis)


def gather_stacked(stacked: Any, axis: int) -> jax.Array:
    """Concatenate the rows of ``[num_replicas, ...]`` along ``axis`` of a component."""
    moved = jnp.moveaxis(stacked, 0, axis)
    shape = stacked.shape[1:]
    return moved.reshape((*shape[:axis], shape[axis] * stacked.shape[0], *shape[axis + 1 :]))


def checked_axes(axis: Any, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Normalise ``axis`` (None, an integer or a tuple) for components of the given shapes."""
    if axis is None:
        return ()
    given = axis if isinstance(axis, tuple) else (axis,)
    ndim = min(len(shape) for shape in shapes)
    axes = []
    for item in given:
        try:
            index = operator.index(item)
        except TypeError:
            index = None
        if index is None or isinstance(item, bool):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"`axis` = {axis!r} is not an integer, a tuple of integers or None.",
                    fix="Pass None to combine the components elementwise, 0 to combine rows too.",
                )
            )
        if not -ndim <= index < ndim:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`axis` = {axis!r} is out of range for components with {ndim} axes.",
                    why=f"The shapes are {sorted(set(shapes))}.",
                    fix=f"Pass an axis from {-ndim} to {ndim - 1}; `reduce` also takes None."
                    if ndim
                    else "Pass `axis=None`.",
                )
            )
        axes.append(index % ndim)
    return tuple(sorted(set(axes)))


def checked_axis_to_join(axis: Any, shapes: Sequence[tuple[int, ...]]) -> int:
    """Normalise the axis along which components of the given shapes are joined."""
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`axis` = {axis!r} is not an integer.",
                fix="Pass the axis along which the components are joined, 0 for rows.",
            )
        )
    if not min(len(shape) for shape in shapes):
        raise errors.InvalidArgumentError(
            errors.describe(
                "Scalars cannot be gathered.",
                why="They have no axis along which they could be joined.",
                fix="Give each component an axis, `x[None]`, or look at them with "
                "`strategy.local_results(value)`.",
            )
        )
    return checked_axes(axis, shapes)[0]


def reduce_common(op: ReduceOp, value: Any, axis: Any, copies: int) -> Any:
    """Reduce a value that is the same on every replica.

    Args:
        op: The operation.
        value: The value.
        axis: Axes of the value to combine too.
        copies: How many replicas are known to hold the value; 0 if it is just some value.

    Raises:
        InvalidArgumentError: A sum of a value of which it is unknown how often it counts.
    """
    array = as_array(value)
    axes = checked_axes(axis, [array.shape])
    if op is ReduceOp.SUM:
        require_counted(value, copies)
    if axes:
        array = _OVER_ELEMENTS[op](array, axis=axes)
    elif op is ReduceOp.MEAN and not jnp.issubdtype(array.dtype, jnp.inexact):
        array = array.astype(jnp.float32)
    return array * copies if op is ReduceOp.SUM and copies > 1 else array


def require_counted(value: Any, copies: int) -> None:
    """Check that a sum over the replicas may count a value that is the same on all of them.

    Raises:
        InvalidArgumentError: It is unknown how many replicas hold it: ``copies`` is 0.
    """
    if copies:
        return
    raise errors.InvalidArgumentError(
        errors.describe(
            f"reduce('sum', ...) was given {_kind(value)}, which is not a per-replica value.",
            why="It is equal on every replica: made outside, or combined before (by "
            "`all_reduce` or `global_mean`, say). Its sum over the replicas would count it "
            "once a replica, which one device does not.",
            fix="Use the value itself, or reduce with 'mean'. To count what each replica made "
            "for itself, pass what `strategy.run` returned.",
        )
    )


def as_array(value: Any, what: str = "A value") -> jax.Array:
    """Return an array, a number or nested lists of them as an array.

    Raises:
        ArgumentTypeError: It is something else, such as a string or a ragged list.
    """
    if isinstance(value, jax.Array):
        return value
    if all(_is_numeric(leaf) for leaf in jax.tree.leaves(value, is_leaf=_is_none)):
        with contextlib.suppress(TypeError, ValueError):
            return jnp.asarray(value)
    raise errors.ArgumentTypeError(
        errors.describe(
            f"{what} is {value!r} ({type(value).__name__}), which is no array.",
            fix="Pass an array of numbers, a number, or nested lists of numbers.",
        )
    )


def _is_none(value: Any) -> bool:
    return value is None


def _is_numeric(leaf: Any) -> bool:
    if hasattr(leaf, "__jax_array__") or isinstance(leaf, (bool, int, float, complex)):
        return True
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and (
        jnp.issubdtype(dtype, jax.dtypes.prng_key)
        or jnp.issubdtype(dtype, np.number)
        or dtype == np.bool_
    )


def _kind(value: Any) -> str:
    if isinstance(value, Mirrored):
        return f"{value!r}, a mirrored value"
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"an array {value.dtype}[{', '.join(map(str, shape))}]"


def _on_one_device(components: Sequence[Any]) -> list[jax.Array]:
    arrays = [as_array(component) for component in components]
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        return arrays
    home = next(iter(arrays[0].devices()))
    return [jax.device_put(array, home) for array in arrays]


def _count(array: jax.Array, axes: tuple[int, ...]) -> int:
    return int(np.prod([array.shape[axis] for axis in axes], dtype=np.int64))


def _extreme(op: ReduceOp, dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.inexact):
        return -jnp.inf if op is ReduceOp.MAX else jnp.inf
    info = jnp.iinfo(dtype)
    return info.min if op is ReduceOp.MAX else info.max


def _different(
    what: str, doing: str, arrays: Sequence[jax.Array], fix: str
) -> errors.CollectiveMismatchError:
    rows = [(i, str(array.dtype), str(array.shape)) for i, array in enumerate(arrays)]
    return errors.CollectiveMismatchError(
        errors.describe(
            f"A per-replica value with different {what} cannot be {doing}.",
            table=errors.Table(("replica", "dtype", "shape"), rows),
            fix=fix,
        )
    )
