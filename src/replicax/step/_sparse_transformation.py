"""optax transformations that take sparse rows, for state of the functional style."""

from __future__ import annotations

from typing import Any

from replicax import errors
from replicax.step._element_rule import check_transformation
from replicax.step._row_updates import RowUpdates, check_rows
from replicax.step._sparse import holds_sparse_rows


def sparse_rows(transformation: Any, *, lazy: bool = False) -> SparseTransformation:
    """An optax transformation that takes gradients with sparse rows, and updates those rows alone.

    For state that is passed from step to step; `rx.Optimizer` does it for variables. A gradient of
    `rx.embedding_lookup` goes in as it comes out of `rx.value_and_grad` and `ctx.all_reduce`, the
    update of the table is an `rx.IndexedSlices` too, and `optax.apply_updates` adds it. With
    donated state nothing of the table's size is copied.

    Where a zero gradient changes nothing (SGD, Adagrad), the numbers are those of the dense
    gradient. Elsewhere (momentum, Adam, weight decay) the gradient is made dense, unless `lazy`.

    Wrap the whole: `rx.sparse_rows(optax.chain(...))`.

    Args:
        transformation: An optax transformation, such as `optax.adagrad(0.1)`.
        lazy: Whether rows without a gradient are left alone although the rule changes them: lazy
            Adam, which is not Adam.

    Returns:
        A transformation with `init` and `update`.

    Raises:
        ArgumentTypeError: No transformation.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import replicax as rx
        >>> table, tx = jnp.ones((4, 2)), rx.sparse_rows(optax.adagrad(0.1))
        >>> state = tx.init(table)
        >>> def loss(table):
        ...     return (rx.embedding_lookup(table, jnp.array([3, 3])) ** 2).sum()
        >>> value, gradient = rx.value_and_grad(loss)(table)
        >>> updates, state = tx.update(gradient, state, table)
        >>> updates
        IndexedSlices(values=float32[2, 2], indices=int32[2], dense_shape=(4, 2))
        >>> print(optax.apply_updates(table, updates)[:, 0].round(2))
        [1.  1.  1.  0.9]
    """
    check_transformation(transformation, "rx.sparse_rows", "optax.adagrad(0.1)")
    return SparseTransformation(transformation, lazy=lazy)


class SparseTransformation:
    """What `rx.sparse_rows` returns: an optax transformation for gradients with sparse rows.

    Attributes:
        transformation: The transformation itself.
    """

    def __init__(self, transformation: Any, *, lazy: bool) -> None:
        self.transformation = transformation
        self._rows = RowUpdates(transformation, is_lazy=lazy)

    def init(self, params: Any) -> Any:
        """The state of the transformation for some parameters. Context: any."""
        return self.transformation.init(params)

    def update(
        self, gradients: Any, state: Any, params: Any = None, **extra: Any
    ) -> tuple[Any, Any]:
        """The updates of the parameters, and the next state. Context: any. Collective: no.

        Args:
            gradients: The combined gradients, in the structure of the parameters.
            state: What `init` or the last `update` gave.
            params: The parameters. They are needed where gradients have sparse rows.
            **extra: Handed on.

        Returns:
            The updates, with an `rx.IndexedSlices` where only rows change; and the state.

        Raises:
            InvalidArgumentError: Sparse rows without `params`, or rows that those do not have.
            UnimplementedError: `lazy` was asked for, and the transformation joins elements.
        """
        if holds_sparse_rows(gradients):
            if params is None:
                raise _no_params()
            check_rows(gradients, params)
            gradients, rule = self._rows.prepared(gradients, params, extra)
            if rule is not None:
                return self._rows.updates(rule, gradients, state, params)
        updates: tuple[Any, Any] = self.transformation.update(gradients, state, params, **extra)
        return updates


def _no_params() -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(
        errors.describe(
            "A transformation of rx.sparse_rows was given sparse rows, but no parameters.",
            why="The rule is read off for their shapes, and needs the rows as they are.",
            fix="Call `tx.update(gradients, state, params)`.",
        )
    )
