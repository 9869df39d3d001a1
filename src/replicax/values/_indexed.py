"""Updates of some elements of a variable: `v.at[i].add(x)`, and `scatter_*` of sparse rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import EXACT
from replicax.values._frames import Frame, current_frame
from replicax.values._indexed_slices import IndexedSlices
from replicax.values._kinds import VariableAggregation
from replicax.values._operators import ArrayLike
from replicax.values._workers import check_workers_write_alike
from replicax.values._writes import beside, checked

if TYPE_CHECKING:
    from replicax.values._variable import Variable

# Under SUM and MEAN the replicas' parts are combined first, which has a meaning for these only.
_ADDING = frozenset({"add", "subtract"})
_SCALING = frozenset({"multiply", "divide"})
_COMBINING = (VariableAggregation.SUM, VariableAggregation.MEAN)


class IndexedUpdates:
    """The indexed updates of a variable."""

    @property
    def at(self) -> At:
        """Updates of elements, in the style of `jax.numpy`: ``v.at[index].add(x)``.

        Unlike there, the variable itself is changed and nothing is returned. In replica context
        the aggregation says what the replicas' updates mean together: with SUM or MEAN they are
        summed or averaged (`add` and `subtract` only), with ONLY_FIRST_REPLICA those of replica 0
        count, with NONE they must be equal. Each replica updates its own copy of a sync-on-read
        variable.

        Context: any. Collective: in replica context with an aggregation. Indices that are out of
        range are dropped, as in JAX.

        Examples:
            >>> import replicax as rx
            >>> v = rx.Variable([1.0, 2.0, 3.0])
            >>> v.at[1:].add(10.0)
            >>> v.value
            Array([ 1., 12., 13.], dtype=float32)
        """
        variable: Any = self
        return At(variable)

    def scatter_add(self, sparse_delta: IndexedSlices) -> None:
        """Add rows: ``v[indices[k]] += values[k]``; a row that is named twice is added twice.

        In replica context the aggregation combines the replicas' rows: SUM applies all of them,
        MEAN all of them divided by the number of replicas, ONLY_FIRST_REPLICA those of replica 0.

        Context: any. Collective: in replica context with an aggregation.

        Args:
            sparse_delta: Rows and the places where they go.

        Raises:
            ArgumentTypeError: Not an `rx.IndexedSlices`.
            InvalidArgumentError: Rows of another shape or dtype, or (where it is known) an index
                that is out of range.

        Examples:
            >>> import jax.numpy as jnp
            >>> import replicax as rx
            >>> v = rx.Variable(jnp.zeros((3, 2)))
            >>> v.scatter_add(rx.IndexedSlices(jnp.ones((2, 2)), jnp.array([0, 0])))
            >>> v.value[0]
            Array([2., 2.], dtype=float32)
        """
        _scatter(self, "scatter_add", "add", sparse_delta)

    def scatter_sub(self, sparse_delta: IndexedSlices) -> None:
        """Subtract rows; otherwise like `scatter_add`."""
        _scatter(self, "scatter_sub", "subtract", sparse_delta)

    def scatter_mul(self, sparse_delta: IndexedSlices) -> None:
        """Multiply by rows; otherwise like `scatter_add`."""
        _scatter(self, "scatter_mul", "multiply", sparse_delta)

    def scatter_div(self, sparse_delta: IndexedSlices) -> None:
        """Divide by rows; otherwise like `scatter_add`."""
        _scatter(self, "scatter_div", "divide", sparse_delta)

    def scatter_min(self, sparse_delta: IndexedSlices) -> None:
        """Take the elementwise minimum with rows; in replica context not for SUM and MEAN."""
        _scatter(self, "scatter_min", "min", sparse_delta)

    def scatter_max(self, sparse_delta: IndexedSlices) -> None:
        """Take the elementwise maximum with rows; in replica context not for SUM and MEAN."""
        _scatter(self, "scatter_max", "max", sparse_delta)

    def scatter_update(self, sparse_delta: IndexedSlices) -> None:
        """Replace rows; in replica context not for SUM and MEAN."""
        _scatter(self, "scatter_update", "set", sparse_delta)


class At:
    """``v.at``: index it to choose elements."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def __getitem__(self, index: Any) -> ElementsOf:
        return ElementsOf(self._variable, index)

    def __repr__(self) -> str:
        return f"{self._variable!r}.at"


class ElementsOf:
    """``v.at[index]``: elements of a variable, to be read or updated in place.

    Each method takes a value that broadcasts to the elements, and the keyword arguments of the
    method of the same name in `jax.numpy.ndarray.at`.
    """

    def __init__(self, variable: Variable, index: Any) -> None:
        self._variable, self._index = variable, index

    def get(self, **options: Any) -> jax.Array:
        """Return the elements."""
        elements: jax.Array = self._variable.value.at[self._index].get(**options)
        return elements

    def set(self, value: Any, **options: Any) -> None:
        """Replace the elements."""
        self._update("set", value, options)

    def add(self, value: Any, **options: Any) -> None:
        """Add to the elements; one that is named twice is added to twice."""
        self._update("add", value, options)

    def subtract(self, value: Any, **options: Any) -> None:
        """Subtract from the elements."""
        self._update("subtract", value, options)

    def multiply(self, value: Any, **options: Any) -> None:
        """Multiply the elements."""
        self._update("multiply", value, options)

    def divide(self, value: Any, **options: Any) -> None:
        """Divide the elements."""
        self._update("divide", value, options)

    def min(self, value: Any, **options: Any) -> None:
        """Take the minimum with the elements."""
        self._update("min", value, options)

    def max(self, value: Any, **options: Any) -> None:
        """Take the maximum with the elements."""
        self._update("max", value, options)

    def _update(self, op: str, value: Any, options: dict[str, Any]) -> None:
        variable, call = self._variable, f"at[...].{op}"
        site = errors.call_site()
        operand = checked(variable, call if op in _ADDING | _SCALING else "assign", value)
        frame = current_frame()
        index = self._index if isinstance(self._index, tuple) else (self._index,)
        index = tuple(i.value if isinstance(i, ArrayLike) else i for i in index)
        check_workers_write_alike(variable, call, operand, *index)

        def change(state: Any, leading: tuple[Any, ...] = ()) -> Any:
            places = (*leading, *(beside(i, state) for i in index))
            value = beside(operand, state)
            try:
                return getattr(state.at[places], op)(value, **options)
            except (ValueError, IndexError) as error:
                raise _does_not_fit(variable, call, index, operand, error) from error

        if not _writes_one_copy(frame, variable):
            _across(variable, call, change, frame, site)
            return
        if variable.aggregation not in _COMBINING:
            variable._write("assign", change(variable.value), site)
            return
        if op not in _ADDING:
            raise _no_meaning(variable, call)
        delta = change(jnp.zeros_like(variable.value))
        variable._write("assign_add", delta, site)


def _scatter(variable: Any, call: str, op: str, slices: Any) -> None:
    if not isinstance(slices, IndexedSlices):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`{variable.name}.{call}` takes an rx.IndexedSlices, not {type(slices).__name__}.",
                fix="Pass `rx.IndexedSlices(values, indices)`; for other indices use "
                "`variable.at[index]`.",
            )
        )
    site = errors.call_site()
    frame = current_frame()
    values = checked(variable, "assign" if op in {"set", "min", "max"} else call, slices.values)
    slices = IndexedSlices(values, jnp.asarray(slices.indices))
    _check_rows(variable, call, slices)
    check_workers_write_alike(variable, call, slices.values, slices.indices)
    if _writes_one_copy(frame, variable):
        replica: Any = frame.replica  # type: ignore[union-attr] # there is one
        if variable.aggregation in _COMBINING:
            if op not in _ADDING | _SCALING:
                raise _no_meaning(variable, call)
            slices = replica.all_reduce(variable.aggregation.value, slices, EXACT)
        elif variable.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            slices = replica.broadcast(slices)
        frame.access.store(variable, _changed(variable.value, op, slices), site)  # type: ignore[union-attr]
        return

    def change(state: Any, leading: tuple[Any, ...] = ()) -> Any:
        return _changed(state, op, slices, leading)

    _across(variable, call, change, frame, site)


def _changed(state: Any, op: str, slices: IndexedSlices, leading: tuple[Any, ...] = ()) -> Any:
    rows: Any = state.at[(*leading, beside(slices.indices, state))]
    return getattr(rows, op)(beside(slices.values, state))


def _writes_one_copy(frame: Frame | None, variable: Variable) -> bool:
    """Whether the aggregation of a mirrored variable is asked for."""
    is_replica = frame is not None and frame.replica is not None and not frame.updating
    return is_replica and not variable.is_on_read


def _across(variable: Any, call: str, change: Any, frame: Frame | None, site: Any) -> None:
    """Change the state without combining replicas: one copy's, or that of all."""
    if frame is not None and frame.sees_one_copy and frame.access is not None:
        frame.access.store(variable, change(frame.access.read(variable)), site)
    elif variable.is_on_read:
        variable._require_no_sum(call)
        is_local = frame is not None and frame.access is not None and frame.access.is_local
        leading = () if is_local else (slice(None),)
        variable._change_across(lambda state: change(state, leading), frame, site)
    else:
        variable._change_across(change, frame, site)


def _check_rows(variable: Variable, call: str, slices: IndexedSlices) -> None:
    rows: Any = slices.values
    if not variable.shape or rows.shape[1:] != variable.shape[1:]:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`{variable.name}.{call}` was given rows of shape {rows.shape[1:]}, but the "
                f"variable has shape {variable.shape}.",
                fix="The values have the shape `[len(indices), *variable.shape[1:]]`.",
            )
        )
    if isinstance(slices.indices, jax.core.Tracer):
        return
    indices = np.asarray(slices.indices)
    bad = indices[(indices < 0) | (indices >= variable.shape[0])]
    if bad.size:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`{variable.name}.{call}` was given row {int(bad[0])}, but the variable has "
                f"{variable.shape[0]} rows.",
                why="JAX would drop the update, or count from the end, in silence.",
                fix=f"Pass indices from 0 to {variable.shape[0] - 1}.",
            )
        )


def _no_meaning(variable: Variable, call: str) -> errors.UnimplementedError:
    return errors.UnimplementedError(
        errors.describe(
            f"`{variable.name}.{call}` was called in replica context, but the variable has "
            f"aggregation {variable.aggregation.name}.",
            why="The replicas' values are combined before they are written, which has a meaning "
            "for additions and subtractions (and, of sparse rows, for factors) only.",
            fix="Combine them yourself and use a variable without aggregation, or use "
            "ONLY_FIRST_REPLICA.",
        )
    )


def _does_not_fit(
    variable: Variable, call: str, index: Any, operand: Any, error: Exception
) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(
        errors.describe(
            f"`{variable.name}.{call}`: a value of shape {operand.shape} does not fit "
            f"`[{', '.join(map(str, index))}]` of a variable of shape {variable.shape}.",
            why=str(error).splitlines()[0],
            fix="The value must broadcast to the chosen elements.",
        )
    )
