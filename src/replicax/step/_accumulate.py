"""Gradients of a batch in several micro-batches, with one reduction at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import ReduceOp
from replicax.step._access import TracedVariables
from replicax.step._bound_objects import bound
from replicax.step._compiled_context import CompiledReplicaContext
from replicax.step._context import ReplicaContext
from replicax.step._gradients import value_and_grad
from replicax.step._rows import LocalRows, wide_enough
from replicax.step._single_context import required_replica_context
from replicax.values import Variable, VariableAccess, current_frame, entered
from replicax.values._sparse import dense


def accumulate(
    fn: Callable[..., Any], batch: Any, steps: int, variables: Any = None, *, params: Any = None
) -> tuple[jax.Array, Any]:
    """Loss and gradient of the global batch, from micro-batches that need less memory.

    Each replica cuts its rows into `steps` micro-batches and adds up the gradients of their sums;
    all meet once, at the end. The result is that of one device on the global batch, for every
    number of replicas and micro-batches, uneven ones and remainders included: the mean loss over
    all rows (or over all weights), and its gradient. It is combined already: clip and apply it.

    Gradients are dense, also those of `rx.embedding_lookup`.

    Terms that do not depend on rows, such as weight decay, are no part of `fn`: add their gradient
    once, afterwards.

    Context: replica, or outside of every strategy. Collective: yes, one reduction.

    Args:
        fn: `fn(micro_batch)`, or `fn(params, micro_batch)` with `params`. Returns the losses of
            the rows, f32[b, ...], or a pair of them and their weights, of the same shape: 1 for a
            token that counts, say, and 0 for one that does not. It may write variables; the next
            micro-batch sees what the last one wrote.
        batch: A tree of this replica's arrays `[B, ...]`.
        steps: How many micro-batches, at most; 1 to `B`.
        variables: A tree of variables to differentiate with respect to.
        params: Instead of `variables`: a tree of arrays.

    Returns:
        f32[], the mean loss of the global batch, and the gradients, in the structure of
        `variables` or `params`; both mirrored.

    Raises:
        InvalidArgumentError: `fn` returns a scalar, or `steps` is no positive integer.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> w = rx.Variable(1.0)
        >>> x = np.array([1.0, 2.0, 3.0], np.float32)
        >>> loss, (gradient,) = rx.accumulate(lambda x: (w.value * x) ** 2, x, 2, [w])
        >>> print(loss.round(4), gradient.round(4))
        4.6667 9.3333
    """
    context = _checked(steps, variables, params)
    plan = _Plan.of(context, batch, steps)

    def summed(*arguments: Any) -> Any:
        """Scalar: the sum of the losses of one micro-batch, and what divides it."""
        losses, weights = _as_pair(fn(*arguments))
        return _sums(context._rows, losses, weights)

    if params is None:
        compute = value_and_grad(summed, variables, has_aux=True)
        like = jax.tree.map(lambda variable: variable.value, variables)
    else:
        of_params = value_and_grad(summed, has_aux=True)
        like = params = jax.tree.map(jnp.asarray, params)

        def compute(rows: Any) -> Any:
            return of_params(params, rows)

    def one(total: Any, micro: Any, real: Any) -> Any:
        before = context._rows
        context._rows = _micro_rows(before, plan, real)
        try:
            (loss, weight), gradients = compute(micro)
            gradients = dense(gradients)
        finally:
            before.mask_was_used = True
            context._rows = before
        return jax.tree.map(lambda t, x: t + x.astype(t.dtype), total, (loss, weight, gradients))

    zero = jnp.zeros((), jnp.float32)
    start = (zero, zero, jax.tree.map(lambda x: jnp.zeros(x.shape, _wide(x.dtype)), like))
    is_traced = isinstance(context, CompiledReplicaContext)
    total = (_scanned if is_traced else _looped)(one, start, plan)
    loss, weight, gradients = context.all_reduce(ReduceOp.SUM, total)
    gradients = jax.tree.map(lambda x, w: (x / weight).astype(w.dtype), gradients, like)
    return loss / weight, gradients


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How one replica's rows are cut.

    Attributes:
        leaves: The arrays of the batch, padded to `count * size` rows.
        structure: Their structure.
        size: Rows of a micro-batch.
        count: Number of micro-batches.
        real: How many of the rows are real: an `int`, or traced.
    """

    leaves: Sequence[Any]
    structure: Any
    size: int
    count: int
    real: Any

    @classmethod
    def of(cls, context: ReplicaContext, batch: Any, steps: int) -> _Plan:
        structure: Any
        leaves, structure = jax.tree.flatten(batch)
        lengths = {np.shape(leaf)[:1] for leaf in leaves}
        if len(lengths) != 1 or lengths == {()}:
            rows = [(i, np.shape(leaf)) for i, leaf in enumerate(leaves)]
            raise errors.InvalidArgumentError(
                errors.describe(
                    "rx.accumulate: the arrays of `batch` do not have one number of rows.",
                    table=errors.Table(("array", "shape"), rows),
                    fix="Pass a tree of arrays whose first axis is the batch; use what has no "
                    "rows from outside.",
                )
            )
        rows = lengths.pop()[0]
        size = max(1, -(-rows // steps))
        real = context._rows.real
        return cls(leaves, structure, size, -(-rows // size), rows if real is None else real)


def _scanned(one: Callable[..., Any], start: Any, plan: _Plan) -> Any:
    """In a compiled step: a loop of the program, whatever the number of micro-batches."""

    def cut(leaf: Any) -> jax.Array:
        # Padding repeats a real row: nothing computed from it is infinite.
        missing = plan.count * plan.size - leaf.shape[0]
        tail = jnp.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))
        whole = jnp.concatenate([jnp.asarray(leaf), tail]) if missing else jnp.asarray(leaf)
        return whole.reshape(plan.count, plan.size, *leaf.shape[1:])

    micro_batches = [cut(leaf) for leaf in plan.leaves]
    frame = current_frame()
    assert frame is not None and frame.access is not None  # noqa: S101, PT018 - it is a replica
    outer: VariableAccess = frame.access
    sites: dict[Variable, Any] = {}

    def body(carry: Any, given: Any) -> Any:
        number, micro = given
        total, written = carry
        overlay = TracedVariables(outer, written)
        with entered(dataclasses.replace(frame, access=overlay)), bound(overlay):
            left = jnp.clip(plan.real - number * plan.size, 0, plan.size).astype(jnp.int32)
            total = one(total, plan.structure.unflatten(micro), left)
        sites.update(overlay.stored)
        return (total, {v: overlay.values[v] for v in {**written, **overlay.stored}}), None

    numbers = jnp.arange(plan.count)
    # What the function writes is known once it was traced; only then can a loop carry it.
    written: dict[Variable, Any] = {}
    first = (numbers[0], [leaf[0] for leaf in micro_batches])
    jax.eval_shape(lambda total, given: _total_of(body((total, {}), given)), start, first)
    written = {variable: outer.read(variable) for variable in sites}

    def flat(carry: Any, given: Any) -> Any:
        total, values = carry
        (total, after), _ = body((total, dict(zip(written, values, strict=True))), given)
        return (total, [after[variable] for variable in written]), None

    (total, values), _ = jax.lax.scan(
        flat, (start, list(written.values())), (numbers, micro_batches)
    )
    for variable, value in zip(written, values, strict=True):
        outer.store(variable, value, sites[variable])
    return total


def _total_of(result: Any) -> Any:
    (total, _), _ = result
    return total


def _looped(one: Callable[..., Any], total: Any, plan: _Plan) -> Any:
    """With concrete arrays: Python's loop; the last micro-batch may be shorter."""
    for number in range(plan.count):
        rows = slice(number * plan.size, (number + 1) * plan.size)
        micro = plan.structure.unflatten([jnp.asarray(leaf)[rows] for leaf in plan.leaves])
        total = one(total, micro, None)
    return total


def _micro_rows(whole: LocalRows, plan: _Plan, real: Any) -> LocalRows:
    """What a replica knows of the rows of one micro-batch."""
    is_full = whole.real is None and plan.count * plan.size == plan.real
    if real is None or is_full:
        return LocalRows(may_differ=whole.may_differ)
    return LocalRows(plan.size, real)


def _as_pair(result: Any) -> tuple[Any, Any]:
    if isinstance(result, tuple):
        if len(result) != 2:  # noqa: PLR2004 - losses and weights
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"rx.accumulate: the function returned {len(result)} values.",
                    fix="Return the losses of the rows, or `(losses, weights)`.",
                )
            )
        losses, weights = result
        return losses, weights
    return result, None


def _sums(rows: LocalRows, losses: Any, weights: Any) -> tuple[jax.Array, jax.Array]:
    """The sum of the losses of real rows, and the sum of their weights."""
    array = wide_enough(rows.checked(losses, "rx.accumulate"))
    if weights is None:
        weights = jnp.ones(array.shape, jnp.float32)
    weights = wide_enough(jax.lax.stop_gradient(rows.checked(weights, "rx.accumulate")))
    if weights.shape != array.shape:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"rx.accumulate: losses of shape {array.shape} came with weights of shape "
                f"{weights.shape}.",
                fix="Return one weight for each loss: `jnp.broadcast_to(weights, losses.shape)`.",
            )
        )
    total = jnp.sum(rows.sum_of(array * weights)).astype(jnp.float32)
    return total, jnp.sum(rows.sum_of(weights)).astype(jnp.float32)


def _wide(dtype: Any) -> Any:
    """Gradients of half precision are added up, and travel, in float32."""
    return jnp.promote_types(dtype, jnp.float32)


def _checked(steps: Any, variables: Any, params: Any) -> ReplicaContext:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"rx.accumulate: `steps` = {steps!r} is no positive integer.",
                fix="Pass the number of micro-batches, such as 4.",
            )
        )
    if (variables is None) == (params is None):
        raise errors.InvalidArgumentError(
            errors.describe(
                "rx.accumulate takes either `variables` or `params`.",
                fix="Pass a tree of `rx.Variable`, or `params=` with a tree of arrays, which the "
                "function then takes as its first argument.",
            )
        )
    return required_replica_context("`rx.accumulate`", why="Each replica cuts its own rows.")
