"""What an optimizer does with sparse rows: it changes those rows of a variable, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.step._element_evaluation import NotElementwise
from replicax.step._element_rule import ElementRule
from replicax.values import IndexedSlices
from replicax.values._sparse import is_sparse


class RowUpdates:
    """The updates of sparse rows by one transformation.

    Args:
        transformation: An optax transformation.
        is_lazy: Whether rows without a gradient are left alone although the rule changes them.
    """

    def __init__(self, transformation: Any, *, is_lazy: bool) -> None:
        self._transformation, self._is_lazy = transformation, is_lazy
        self._rules: dict[tuple[int, ...], ElementRule | NotElementwise] = {}

    def prepared(
        self, gradients: Any, params: Any, extra: dict[str, Any]
    ) -> tuple[Any, ElementRule | None]:
        """Choose which gradients stay sparse, and make the others dense.

        Returns:
            The gradients, and the rule for elements; None if all are dense now.

        Raises:
            UnimplementedError: The updates are meant to be lazy, and there is no such rule.
        """
        structure: Any
        leaves, structure = jax.tree.flatten(gradients, is_leaf=is_sparse)
        sparse = tuple(k for k, leaf in enumerate(leaves) if is_sparse(leaf))
        rule = self._rules.get(sparse)
        if rule is None or extra:
            try:
                rule = ElementRule(self._transformation, params, sparse, extra)
            except NotElementwise as verdict:
                rule = verdict
            if not extra:
                self._rules[sparse] = rule
        if isinstance(rule, NotElementwise):
            if self._is_lazy:
                raise _not_lazy(rule.reason)
            kept: Any = ()
        else:
            kept = sparse if self._is_lazy else rule.keeps
        shapes = [x.shape for x in jax.tree.leaves(params)]
        leaves = [
            leaf.to_dense(shape) if is_sparse(leaf) and k not in kept else leaf
            for k, (leaf, shape) in enumerate(zip(leaves, shapes, strict=True))
        ]
        return structure.unflatten(leaves), rule if kept and isinstance(rule, ElementRule) else None

    def apply(
        self, rule: ElementRule, gradients: Any, state: Any, params: Any, apply_if: Any
    ) -> tuple[Any, Any]:
        """The new parameters and the new state."""
        part = _Part(rule, gradients, state, params, skip_zeros=self._is_lazy)
        updates, new_states = part.updated()
        if apply_if is not None:
            updates, new_states = jax.tree.map(
                lambda x, y: jnp.where(apply_if, x, y),
                (updates, new_states),
                ([_nothing(u) for u in updates], part.states),
            )
        whole: Any = jax.tree.structure(params)
        written = [
            r.added(w, u) if r is not None else jnp.asarray(w + u).astype(w.dtype)
            for w, u, r in zip(jax.tree.leaves(params), updates, part.rows, strict=True)
        ]
        return whole.unflatten(written), part.whole_state(new_states)

    def updates(
        self, rule: ElementRule, gradients: Any, state: Any, params: Any
    ) -> tuple[Any, Any]:
        """What is added to the parameters, sparse rows where only rows change; and the state."""
        part = _Part(rule, gradients, state, params, skip_zeros=self._is_lazy)
        updates, new_states = part.updated()
        whole: Any = jax.tree.structure(params)
        leaves = [
            u if r is None else r.slices(u, w.shape)
            for u, r, w in zip(updates, part.rows, jax.tree.leaves(params), strict=True)
        ]
        return whole.unflatten(leaves), part.whole_state(new_states)


class _Part:
    """The rows of parameters and state that have a gradient.

    Attributes:
        rows: For each leaf of the parameters which rows, or None for all of it.
        params: Those parts of the leaves of the parameters.
        states: Those parts of the leaves of the state.
    """

    def __init__(
        self, rule: ElementRule, gradients: Any, state: Any, params: Any, *, skip_zeros: bool
    ) -> None:
        self._rule, self._structure = rule, jax.tree.structure(state)
        before, self._states = jax.tree.leaves(params), jax.tree.leaves(state)
        self._gradients = jax.tree.leaves(gradients, is_leaf=is_sparse)
        self.rows = [
            None
            if not is_sparse(g)
            else _Rows.as_given(g, w.shape[0])
            if k in rule.adds and w.dtype in (jnp.float32, jnp.float64)
            else _Rows.of(g, w.shape[0], skip_zeros=skip_zeros)
            for k, (g, w) in enumerate(zip(self._gradients, before, strict=True))
        ]
        self._of_states = [None if leaf is None else self.rows[leaf] for leaf in rule.leaf_of]
        self.params = _parts(before, self.rows)
        self.states = _parts(self._states, self._of_states)

    def updated(self) -> tuple[list[Any], list[Any]]:
        """The updates and the new states of the rows."""
        gradients = zip(self._gradients, self.rows, strict=True)
        values = [g if r is None else r.values for g, r in gradients]
        return self._rule.update(values, self.states, self.params)

    def whole_state(self, new: Sequence[Any]) -> Any:
        """The state with new rows."""
        structure: Any = self._structure
        return structure.unflatten(_written(self._states, self._of_states, new))


def check_rows(gradients: Any, variables: Any) -> None:
    """Check that sparse rows are rows of the variables that they are for.

    Raises:
        InvalidArgumentError: They have another shape, or are out of range and have values.
    """
    leaves = jax.tree.leaves(gradients, is_leaf=is_sparse)
    for leaf, variable in zip(leaves, jax.tree.leaves(variables), strict=True):
        if is_sparse(leaf):
            leaf._check_range(leaf._whole_shape(variable.shape)[0])


class _Rows:
    """Some rows of an array.

    Attributes:
        values: `[K, ...]`, what was given for each row.
        places: i32[K], which rows; beyond the array where there are fewer than K.
        is_unique: Whether each row is there once.
    """

    def __init__(self, values: jax.Array, places: jax.Array, *, is_unique: bool) -> None:
        self.values, self.places, self.is_unique = values, places, is_unique

    @classmethod
    def as_given(cls, slices: IndexedSlices, rows: int) -> _Rows:
        """The rows of a gradient, some of them several times."""
        return cls(slices.values, _from_start(slices, rows), is_unique=False)

    @classmethod
    def of(cls, slices: IndexedSlices, rows: int, *, skip_zeros: bool) -> _Rows:
        """The rows of a gradient, each once; those whose sum is zero are left out if asked for.

        Args:
            slices: The gradient.
            rows: How many rows the whole has. Negative indices count from the end.
            skip_zeros: Whether rows of zeros are left out.
        """
        count, *row = slices.values.shape
        indices = _from_start(slices, rows)
        if count == 0:
            return cls(slices.values, indices, is_unique=True)
        order = jnp.argsort(indices)
        ids = indices[order]
        is_first = jnp.concatenate([jnp.ones(1, bool), ids[1:] != ids[:-1]])
        number = jnp.cumsum(is_first) - 1
        values = jnp.zeros((count, *row), slices.values.dtype)
        values = values.at[number].add(slices.values[order], indices_are_sorted=True)
        counter = jnp.arange(count, dtype=jnp.int32)
        beyond = rows + counter
        places = jnp.zeros(count, jnp.int32).at[number].set(ids.astype(jnp.int32))
        is_used = (counter <= number[-1]) & (places >= 0) & (places < rows)
        if skip_zeros:
            is_used &= jnp.any(values != 0, axis=tuple(range(1, values.ndim)))
        return cls(values, jnp.where(is_used, places, beyond), is_unique=True)

    def added(self, array: jax.Array, updates: jax.Array) -> jax.Array:
        """The array with something added to these rows."""
        rows: Any = array.at[self.places]
        how: dict[str, Any] = {"mode": "drop", "wrap_negative_indices": False}
        if not self.is_unique:
            added: jax.Array = rows.add(updates.astype(array.dtype), **how)
            return added
        new = _parts([array], [self])[0] + updates
        written: jax.Array = rows.set(new.astype(array.dtype), unique_indices=True, **how)
        return written

    def slices(self, values: jax.Array, shape: Sequence[int]) -> IndexedSlices:
        """New values of these rows as a part of an array. Of rows beyond it, nothing is left."""
        is_used = (self.places >= 0) & (self.places < shape[0])
        kept = jnp.where(is_used.reshape(-1, *[1] * (values.ndim - 1)), values, _nothing(values))
        places = jnp.where(is_used, self.places, 0)
        return IndexedSlices(kept.astype(values.dtype), places, tuple(shape))


def _from_start(slices: IndexedSlices, rows: int) -> jax.Array:
    """The indices, counted from the start."""
    indices: jax.Array = jnp.where(slices.indices < 0, slices.indices + rows, slices.indices)
    return indices


def _nothing(values: Any) -> jax.Array:
    """What changes no number that it is added to: 0.0 would make 0.0 of -0.0."""
    return jnp.asarray(-0.0, jnp.result_type(values))


def _parts(arrays: Sequence[Any], rows: Sequence[_Rows | None]) -> list[Any]:
    return [
        x if r is None else x.at[r.places].get(mode="clip", wrap_negative_indices=False)
        for x, r in zip(arrays, rows, strict=True)
    ]


def _written(arrays: Sequence[Any], rows: Sequence[_Rows | None], new: Sequence[Any]) -> list[Any]:
    """The arrays with new rows, each there once; where all of it is new, what is new."""
    return [
        y
        if r is None
        else x.at[r.places].set(y, mode="drop", unique_indices=True, wrap_negative_indices=False)
        for x, r, y in zip(arrays, rows, new, strict=True)
    ]


def _not_lazy(reason: str) -> errors.UnimplementedError:
    return errors.UnimplementedError(
        errors.describe(
            "rx.Optimizer with `sparse_rows='lazy'` was given a transformation that does not treat "
            "each element by itself.",
            why=f"Of some rows alone it would make other numbers: {reason}.",
            fix="Leave that part out of the transformation (clip with `rx.clip_by_global_norm` "
            "before), or leave `sparse_rows` out: then the gradient is made dense.",
        )
    )
