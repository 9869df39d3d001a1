"""Rows of a table, whose gradient is those rows and not a table.

`rx.value_and_grad` differentiates a lookup with respect to the rows that it gave. They come from
the value that the table has outside, so for the derivative they are constants that pass through an
identity; its backward rule is called with the cotangent of the rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from replicax import errors
from replicax.step._access import TracedVariables
from replicax.values import IndexedSlices, Variable, VariableAccess, as_variable, current_frame
from replicax.values._combine import as_array
from replicax.values._tracing import trace_level

OutOfRange: TypeAlias = Literal["error", "clip", "zeros"]
_CHOICES = ("error", "clip", "zeros")


def embedding_lookup(table: Any, ids: Any, *, out_of_range: OutOfRange = "error") -> jax.Array:
    """Rows of a table, such as embeddings; their gradient is an `rx.IndexedSlices`.

    The value is `table[ids]`. In a function that `rx.value_and_grad` differentiates, the gradient
    of the table holds the rows that were looked up, one for each id, and no array of the table's
    size is made. It stays dense, with the same numbers, where the table is also read in another
    way (tied weights), where it is a value computed from a variable or an argument, and where the
    lookup is inside of `jax.jit`, `jax.checkpoint`, `jax.vmap` or a loop.

    Context: any. Collective: no.

    Args:
        table: f32[V, ...]: an `rx.Variable`, or an array, which is an argument (or a leaf of one)
            of the differentiated function.
        ids: i32[...], which rows, of any shape. Negative ids are out of range.
        out_of_range: What ids outside of 0 to V - 1 mean. "error": they are refused where they
            have values; in a compiled step such a row is NaN (the largest or smallest integer in a
            table of integers), so that the loss shows it. "clip": the nearest row. "zeros": a row
            of zeros without a gradient, for ids such as -1 that stand for nothing.

    Returns:
        f32[..., *row], one row for each id.

    Raises:
        ArgumentTypeError: `ids` are no integers.
        InvalidArgumentError: An id is out of range, or the table has no rows.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> table = rx.Variable(jnp.ones((1000, 2)))
        >>> def loss():
        ...     return rx.embedding_lookup(table, jnp.array([7, 3, 7])).sum()
        >>> value, (gradient,) = rx.value_and_grad(loss, [table])()
        >>> print(value, gradient, gradient.indices)
        6.0 IndexedSlices(values=float32[3, 2], indices=int32[3], dense_shape=(1000, 2)) [7 3 7]
    """
    table, ids = as_variable(table), _checked_ids(ids)
    if not isinstance(table, (Variable, jax.Array)):
        table = as_array(table, "The table of rx.embedding_lookup")
    shape = table.shape
    if not shape or shape[0] == 0:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"rx.embedding_lookup was given a table of shape {tuple(shape)}, without rows.",
                fix="Pass the whole table, `[rows, ...]`.",
            )
        )
    if out_of_range not in _CHOICES:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"rx.embedding_lookup: `out_of_range` = {out_of_range!r}.",
                fix=f"Pass one of {', '.join(map(repr, _CHOICES))}.",
            )
        )
    if out_of_range == "error":
        _check_range(ids, shape[0])
    places = jnp.clip(ids, 0, shape[0] - 1).astype(jnp.int32)
    rows = _rows(table, places, tuple(shape))
    if out_of_range == "clip":
        return rows
    is_inside = ((ids >= 0) & (ids < shape[0])).reshape(ids.shape + (1,) * (len(shape) - 1))
    other = 0 if out_of_range == "zeros" else _nothing(rows.dtype)
    return jnp.where(is_inside, rows, jnp.asarray(other, rows.dtype))


def _rows(table: Any, places: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    found = _differentiated(table)
    if found is None:
        return _taken(table.value if isinstance(table, Variable) else table, places)
    access, key, outside = found
    lookup = Lookup(places, shape, access.outer_level)
    access.lookups.setdefault(key, []).append(lookup)
    return _tapped(lookup, access.token, _taken(outside, places))


def _taken(whole: Any, places: jax.Array) -> jax.Array:
    rows: jax.Array = (
        jnp.asarray(whole).at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)
    )
    return rows


@dataclasses.dataclass(eq=False)
class Lookup:
    """One lookup in a table that is differentiated.

    Attributes:
        places: i32[...], which rows.
        shape: The shape of the table.
        level: The level of tracing of the differentiation, outside of the function.
        cotangent: f32[..., *row], once the backward pass was there; None if it never comes by.
    """

    places: jax.Array
    shape: tuple[int, ...]
    level: object
    cotangent: Any = None

    def slices(self, dtype: Any) -> tuple[jax.Array, jax.Array]:
        """The rows of the gradient, `[K, ...]`, and their indices."""
        indices = self.places.ravel()
        rows = (indices.size, *self.shape[1:])
        if self.cotangent is None:  # The loss does not depend on them.
            return jnp.zeros(rows, dtype), indices
        return self.cotangent.reshape(rows), indices


class Differentiated(TracedVariables):
    """Variables, and arrays among the arguments, as a differentiated function sees them.

    Args:
        parent: Where other variables come from.
        values: The variables that are differentiated, as tracers.
        outside: Their values outside of the differentiation.
        token: f32[], a zero that is differentiated, so that rows can depend on it.
        outer_level: The level of tracing outside.
    """

    def __init__(
        self,
        parent: VariableAccess,
        values: Mapping[Variable, Any],
        outside: Mapping[Variable, Any],
        token: jax.Array,
        outer_level: object,
    ) -> None:
        super().__init__(parent, values)
        self.token, self.outer_level = token, outer_level
        self.lookups: dict[Any, list[Lookup]] = {}
        self.read_whole: set[Any] = set()
        self._outside = dict(outside)
        self._arguments: dict[int, tuple[Any, Any, Any]] = {}

    def read(self, variable: Variable) -> jax.Array:
        """Return the state at this level, whose gradient then is dense."""
        if variable not in self.stored:
            self.read_whole.add(variable)
        return super().read(variable)

    def noting(self, leaf: Any, outside: Any, key: Any) -> Any:
        """An array argument, as the function gets it; `key` stands for it."""
        if not _is_table(leaf):
            return leaf
        noted = _noted(functools.partial(self.read_whole.add, key), leaf)
        self._arguments[id(noted)] = (noted, key, outside)
        return noted

    def table(self, table: Any) -> tuple[Any, Any] | None:
        """What stands for a table among `lookups`, and its value outside; None if not here."""
        if isinstance(table, Variable):
            is_here = table in self._outside and table not in self.stored and not table.is_on_read
            return (table, self._outside[table]) if is_here else None
        noted, key, outside = self._arguments.get(id(table), (None, None, None))
        return (key, outside) if noted is table and noted is not None else None

    def gradient(self, key: Any, dense: Any) -> Any:
        """The gradient of a variable or argument, given that of what was read whole."""
        lookups = self.lookups.get(key)
        if lookups is None:
            return dense
        parts = [lookup.slices(dense.dtype) for lookup in lookups]
        values, indices = (
            x[0] if len(x) == 1 else jnp.concatenate(x) for x in zip(*parts, strict=True)
        )
        if key in self.read_whole:
            return dense.at[indices].add(values)
        return IndexedSlices(values, indices, lookups[0].shape)


def _differentiated(table: Any) -> tuple[Differentiated, Any, Any] | None:
    """The innermost differentiation that a table takes part in, if a lookup can be caught."""
    frame = current_frame()
    access = frame.access if frame is not None else None
    while isinstance(access, TracedVariables):
        if isinstance(access, Differentiated):
            found = access.table(table)
            if found is not None:
                return (access, *found) if access.is_here else None
        if isinstance(table, Variable) and table in access.values:
            return None  # It was written, or is differentiated, at this level.
        access = access.parent
    return None


def _is_table(leaf: Any) -> bool:
    is_array = isinstance(leaf, jax.Array) and leaf.ndim > 0
    return is_array and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tapped(lookup: Lookup, token: jax.Array, rows: jax.Array) -> jax.Array:
    """The rows; the backward pass leaves their cotangent with the lookup."""
    del lookup, token
    return rows


def _tapped_forwards(lookup: Lookup, token: Any, rows: Any) -> tuple[Any, None]:
    del lookup, token
    return rows, None


def _tapped_backwards(lookup: Lookup, _: None, cotangent: Any) -> tuple[Any, None]:
    if trace_level() != lookup.level:
        raise errors.InternalError("A lookup was differentiated inside of another transformation.")
    lookup.cotangent = cotangent
    return jnp.zeros((), jnp.float32), None


_tapped.defvjp(_tapped_forwards, _tapped_backwards)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _noted(note: Any, value: jax.Array) -> jax.Array:
    """The value; `note` is called if a gradient comes back."""
    del note
    return value


def _noted_forwards(note: Any, value: Any) -> tuple[Any, None]:
    del note
    return value.value, None


def _noted_backwards(note: Any, _: None, cotangent: Any) -> tuple[Any]:
    if isinstance(cotangent, SymbolicZero):
        return (jnp.zeros(cotangent.shape, cotangent.dtype),)
    note()
    return (cotangent,)


_noted.defvjp(_noted_forwards, _noted_backwards, symbolic_zeros=True)


def _nothing(dtype: Any) -> Any:
    """What `jax.numpy.take` gives for a row that does not exist."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.nan
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return jnp.iinfo(dtype).min
    return jnp.iinfo(dtype).max if jnp.issubdtype(dtype, jnp.unsignedinteger) else True


def _checked_ids(ids: Any) -> jax.Array:
    array = as_array(ids, "`ids` of rx.embedding_lookup")
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"rx.embedding_lookup was given ids of dtype {array.dtype}.",
                why="They are the numbers of rows.",
                fix="Pass integers: `ids.astype('int32')`.",
            )
        )
    return array


def _check_range(ids: jax.Array, rows: int) -> None:
    if isinstance(ids, jax.core.Tracer):
        return
    host = np.asarray(ids)
    outside = host[(host < 0) | (host >= rows)]
    if outside.size:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"rx.embedding_lookup was given ids {sorted(set(outside.tolist()))[:8]}, but the "
                f"table has {rows} rows.",
                why="There are no such rows, and negative ids do not count from the end.",
                fix="Correct the ids, or say what they mean: `out_of_range='zeros'` for ids that "
                "stand for nothing, `out_of_range='clip'` for the nearest row.",
            )
        )
