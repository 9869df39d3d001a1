"""Sparse rows: some rows of a large array, such as the gradient of an embedding table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.values._combine import as_array
from replicax.values._distributed import DistributedValues, PerReplica
from replicax.values._operators import ArrayLike


class IndexedSlices:
    """Some rows of an array that is never made: `values[k]` belongs to row `indices[k]`.

    A row may be named more than once; the array then holds the sum of what is given for it. It is
    a pytree node of `values` and `indices`, so beware of `jax.tree.map`: it maps the indices too.

    `ctx.all_reduce` and `strategy.reduce` join the rows of all replicas in replica order, with
    `"mean"` divided by the number of replicas, which is the all-reduce of the whole array without
    its zeros.

    Args:
        values: `[K, ...]`, the rows.
        indices: `i32[K]`, or other integers: which rows they are.
        dense_shape: The shape of the whole array, `(rows, ...)`, if known.

    Raises:
        ArgumentTypeError: Something else than arrays of numbers, or indices that are no integers.
        InvalidArgumentError: Shapes that do not fit together.

    Examples:
        >>> import replicax as rx
        >>> slices = rx.IndexedSlices([[1.0, 1.0], [2.0, 2.0]], [2, 0])
        >>> slices
        IndexedSlices(values=float32[2, 2], indices=int32[2])
        >>> print(slices.to_dense(3))
        [[2. 2.]
         [0. 0.]
         [1. 1.]]
    """

    __slots__ = ("_dense_shape", "_indices", "_values")

    def __init__(self, values: Any, indices: Any, dense_shape: Sequence[int] | None = None) -> None:
        self._values = _array(values, "values")
        self._indices = _array(indices, "indices")
        self._dense_shape = None if dense_shape is None else _checked_shape(dense_shape)
        if not any(isinstance(x, DistributedValues) for x in (self._values, self._indices)):
            _check(self._values, self._indices, self._dense_shape)

    @classmethod
    def _unchecked(cls, values: Any, indices: Any, dense_shape: tuple[int, ...] | None) -> Self:
        """As the constructor, for whatever JAX puts in the place of arrays."""
        new = object.__new__(cls)
        new._values, new._indices, new._dense_shape = values, indices, dense_shape
        return new

    @property
    def values(self) -> Any:
        """`[K, ...]`, the rows."""
        return self._values

    @property
    def indices(self) -> Any:
        """`i32[K]`, which rows they are."""
        return self._indices

    @property
    def dense_shape(self) -> tuple[int, ...] | None:
        """The shape of the whole array, or None if it was not given."""
        return self._dense_shape

    def to_dense(self, shape: int | Sequence[int] | None = None) -> jax.Array:
        """The whole array: zero, and the sum of what is given for each row.

        Context: any. Collective: no. A negative index counts from the end.

        Args:
            shape: The number of rows, or the whole shape; by default `dense_shape`.

        Returns:
            `[rows, ...]`, of the dtype of `values`.

        Raises:
            InvalidArgumentError: No shape is known, it does not fit, or an index is beyond it.
                While JAX traces, indices have no values; rows beyond the shape are then left out.

        Examples:
            >>> import replicax as rx
            >>> print(rx.IndexedSlices([1.0, 2.0, 4.0], [0, 3, 0], dense_shape=(4,)).to_dense())
            [5. 0. 0. 2.]
        """
        whole = self._whole_shape(shape)
        self._check_range(whole[0])
        dense: jax.Array = jnp.zeros(whole, self._values.dtype).at[self._indices].add(self._values)
        return dense

    def __radd__(self, array: Any) -> jax.Array:
        """`array + slices`: the array with the rows added, as `optax.apply_updates` does.

        Raises:
            InvalidArgumentError: The rows do not fit the array, or are beyond it.
        """
        whole = as_array(array, "What rx.IndexedSlices are added to")
        self._check_range(self._whole_shape(whole.shape)[0])
        added: jax.Array = whole.at[self._indices].add(self._values)
        return added

    def _whole_shape(self, shape: int | Sequence[int] | None) -> tuple[int, ...]:
        if any(isinstance(x, DistributedValues) for x in (self._values, self._indices)):
            raise errors.ContextError(
                errors.describe(
                    f"{self!r} has one part a replica, and is not one array.",
                    fix="Join the parts first: `strategy.reduce('sum', slices, axis=None)`.",
                )
            )
        if shape is None:
            shape = self._dense_shape
        if shape is None:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"{self!r} does not know how many rows the whole array has.",
                    fix="Pass the number of rows, `slices.to_dense(table.shape[0])`, or make the "
                    "slices with `dense_shape=table.shape`.",
                )
            )
        if isinstance(shape, (int, np.integer)) and not isinstance(shape, bool):
            shape = (int(shape), *self._values.shape[1:])
        whole = _checked_shape(shape)
        _check(self._values, self._indices, whole)
        return whole

    def _check_range(self, rows: int) -> None:
        if isinstance(self._indices, jax.core.Tracer):
            return
        indices = np.asarray(self._indices)
        outside = indices[(indices >= rows) | (indices < -rows)]
        if outside.size:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"{self!r} names rows {sorted(set(outside.tolist()))[:8]}, but the whole array "
                    f"has {rows} rows.",
                    why="What is given for a row that does not exist would be lost in silence.",
                    fix="Pass the number of rows of the whole array.",
                )
            )

    def __repr__(self) -> str:
        shape = "" if self._dense_shape is None else f", dense_shape={self._dense_shape}"
        return (
            f"IndexedSlices(values={_brief(self._values)}, indices={_brief(self._indices)}{shape})"
        )


def _array(value: Any, what: str) -> Any:
    if isinstance(value, ArrayLike):
        value = value.value
    if isinstance(value, (PerReplica, jax.ShapeDtypeStruct)):
        return value
    array = as_array(value, f"`{what}` of IndexedSlices")
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`{what}` of IndexedSlices are random keys, {_brief(array)}.",
                fix="Pass an array of numbers.",
            )
        )
    return array


def _check(values: Any, indices: Any, dense_shape: tuple[int, ...] | None) -> None:
    """Check that the parts fit together."""
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`indices` of IndexedSlices are {_brief(indices)}, which are no integers.",
                fix="Pass the numbers of the rows, `indices.astype('int32')`. The rows of a mask "
                "are `jnp.flatnonzero(mask)`.",
            )
        )
    if indices.ndim != 1:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`indices` of IndexedSlices are {_brief(indices)} with {indices.ndim} axes.",
                why="There is one index for each row of `values`.",
                fix="Pass `indices.ravel()`, and `values` with as many rows: "
                "`values.reshape(-1, dim)`.",
            )
        )
    if values.ndim == 0 or values.shape[0] != indices.shape[0]:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"IndexedSlices were given values {_brief(values)} and indices {_brief(indices)}.",
                why="There is one index for each row of `values`.",
                fix="Pass `values` and `indices` of the same length.",
            )
        )
    if dense_shape is not None and dense_shape[1:] != values.shape[1:]:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"The shape {dense_shape} does not fit values {_brief(values)}.",
                why="A row of `values` is a row of the whole array, so all axes but the first are "
                "equal.",
                fix=f"Pass a shape such as {(dense_shape[0], *values.shape[1:])}.",
            )
        )


def _checked_shape(shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(shape)
    except TypeError:
        sizes = ()
    if not sizes or any(
        isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0 for n in sizes
    ):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"{shape!r} is no shape of a whole array.",
                fix="Pass its sizes, the number of rows first: `dense_shape=table.shape`.",
            )
        )
    return tuple(int(n) for n in sizes)


def _brief(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return repr(value)
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"


# -- pytree registration: the children are whatever JAX puts there ------------------


def _flatten(value: IndexedSlices) -> tuple[tuple[Any, Any], tuple[int, ...] | None]:
    return (value._values, value._indices), value._dense_shape


def _flatten_with_keys(
    value: IndexedSlices,
) -> tuple[tuple[tuple[Any, Any], ...], tuple[int, ...] | None]:
    key = jax.tree_util.GetAttrKey
    children = ((key("values"), value._values), (key("indices"), value._indices))
    return children, value._dense_shape


def _unflatten(dense_shape: tuple[int, ...] | None, children: Iterable[Any]) -> IndexedSlices:
    values, indices = children
    return IndexedSlices._unchecked(values, indices, dense_shape)


jax.tree_util.register_pytree_with_keys(IndexedSlices, _flatten_with_keys, _unflatten, _flatten)
