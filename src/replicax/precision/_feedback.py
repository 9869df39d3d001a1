"""Error feedback: what rounding takes from a replica's gradients goes into its next ones.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
Training of Speech DNNs", 2014; Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient
Compression Schemes", 2019.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import CommunicationOptions, ReduceOp, is_narrow, rounded
from replicax.step import ReplicaContext
from replicax.step._single_context import required_replica_context
from replicax.values import Variable
from replicax.values._sparse import is_sparse


def all_reduce_with_feedback(
    context: ReplicaContext,
    op: ReduceOp | str,
    tree: Any,
    residuals: Any,
    options: CommunicationOptions | None = None,
) -> tuple[Any, Any]:
    """Combine like `context.all_reduce`, with what was rounded off before added to the tree.

    Context: replica. Collective: yes.

    Args:
        context: `rx.get_replica_context()`.
        op: `"mean"` or `"sum"`.
        tree: A tree of arrays, such as gradients.
        residuals: A tree of the same structure: this replica's. Zeros at the start.
        options: With a `wire_dtype`; by default the strategy's options.

    Returns:
        The tree, mirrored; and the next residuals, varying. Where an array is not finite its
        residual stays.

    Raises:
        InvalidArgumentError: Nothing is rounded by these options, or MAX or MIN.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> options = rx.CommunicationOptions(wire_dtype="bfloat16")
        >>> def replica_fn(x, residual):
        ...     ctx = rx.get_replica_context()
        ...     return rx.precision.all_reduce_with_feedback(ctx, "sum", x, residual, options)
        >>> x = rx.PerReplica([jnp.array([1.01]), jnp.array([1.0])])
        >>> zeros = rx.PerReplica([jnp.zeros(1)] * 2)
        >>> total, residuals = strategy.run(replica_fn, args=(x, zeros))
        >>> print(total, residuals.values[0])
        [2.0078125] [0.00218749]
    """
    op = _checked(op)
    wire = _wire_dtype(context, options)
    structure: Any
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_sparse)
    before = structure.flatten_up_to(residuals)
    sent, after = list(leaves), list(before)
    for number, (leaf, residual) in enumerate(zip(leaves, before, strict=True)):
        if not is_sparse(leaf) and _is_fed(leaf):
            sent[number], after[number] = _fed(
                leaf, residual, wire if context.num_replicas_in_sync > 1 else None
            )
    combined = context.all_reduce(op, structure.unflatten(sent), options)
    return combined, structure.unflatten(after)


class ErrorFeedback:
    """Residuals of a reduction in half precision, in variables.

    Create it in `strategy.scope()`, and combine gradients with it. Each replica keeps the part of
    its gradients that was rounded off, and adds it to its next ones: so nothing is lost in the
    long run. It takes a float32 copy of the gradients on each replica.

    The residuals are sync-on-read variables. A checkpoint holds their aggregate, so on another
    number of replicas what is still to be added to the combined gradient is the same.

    Args:
        variables: A tree of variables or arrays, one for each gradient.
        options: With a `wire_dtype`; by default the strategy's options.
        op: `"mean"` or `"sum"`.

    Attributes:
        residuals: A list of variables; None where nothing is rounded.

    Raises:
        InvalidArgumentError: MAX or MIN.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> options = rx.CommunicationOptions(wire_dtype="bfloat16")
        >>> with strategy.scope():
        ...     w = rx.Variable(jnp.zeros(1))
        ...     feedback = rx.precision.ErrorFeedback([w], options)
        >>> def replica_fn():
        ...     w.assign_add(feedback.all_reduce([jnp.array([1.01])])[0])
        >>> for _ in range(3):
        ...     strategy.run(replica_fn)
        >>> print(w.value, feedback.residuals[0].value)
        [3.03125] [-0.00125003]
    """

    _holds_variables: ClassVar[bool] = True  # for checkpoints

    def __init__(
        self,
        variables: Any,
        options: CommunicationOptions | None = None,
        *,
        op: ReduceOp | str = "mean",
    ) -> None:
        self.op, self.options = _checked(op), options
        self.residuals = [
            _residual(leaf, number, self.op)
            for number, leaf in enumerate(jax.tree.leaves(variables, is_leaf=is_sparse))
        ]

    def all_reduce(self, gradients: Any) -> Any:
        """Combine this replica's gradients with those of the others.

        Context: replica, or outside of every strategy. Collective: yes.

        Args:
            gradients: A tree with a leaf for each variable.

        Returns:
            The tree, mirrored.

        Raises:
            ContextError: In cross-replica context.
            InvalidArgumentError: Another number of leaves, or nothing is rounded by the options.
        """
        context = required_replica_context(
            "`ErrorFeedback.all_reduce`", why="Each replica gives its gradients."
        )
        structure: Any
        leaves, structure = jax.tree.flatten(gradients, is_leaf=is_sparse)
        if len(leaves) != len(self.residuals):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`ErrorFeedback.all_reduce` was given {len(leaves)} gradients, but there are "
                    f"{len(self.residuals)} variables.",
                    fix="Give it one gradient for each variable that it was made with.",
                )
            )
        before = [0.0 if each is None else each.value for each in self.residuals]
        combined, after = all_reduce_with_feedback(context, self.op, leaves, before, self.options)
        for variable, value in zip(self.residuals, after, strict=True):
            if variable is not None:
                variable.assign(value)
        return structure.unflatten(combined)


def _residual(leaf: Any, number: int, op: ReduceOp) -> Variable | None:
    if is_sparse(leaf) or not _is_fed(leaf):
        return None
    return Variable(
        jnp.zeros(tuple(leaf.shape), jnp.float32),
        trainable=False,
        synchronization="on_read",
        aggregation=op.value.lower(),
        name=f"residual{number}",
    )


def _is_fed(leaf: Any) -> bool:
    """Whether something of an array may be rounded off."""
    shape, dtype = np.shape(leaf), getattr(leaf, "dtype", None)
    is_float32 = dtype is not None and jnp.dtype(dtype) == jnp.float32
    return is_float32 and is_narrow("bfloat16", ReduceOp.SUM, "float32", shape, num_replicas=2)


def _checked(op: ReduceOp | str) -> ReduceOp:
    op = ReduceOp.parse(op)
    if op in {ReduceOp.MAX, ReduceOp.MIN}:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"Error feedback has no meaning for {op.name}.",
                why="It travels as it is; nothing is rounded off.",
                fix='Pass "mean" or "sum".',
            )
        )
    return op


def _wire_dtype(context: ReplicaContext, options: CommunicationOptions | None) -> str | None:
    """In what the arrays travel."""
    wire = context._options(options).wire_dtype
    if wire in {None, "float32"} and context.num_replicas_in_sync > 1:
        raise errors.InvalidArgumentError(
            errors.describe(
                "Error feedback was asked for where nothing is rounded.",
                why=f"`wire_dtype` is {wire!r} in the options of the call, and of the strategy.",
                fix='Pass `rx.CommunicationOptions(wire_dtype="bfloat16")`, or reduce with '
                "`ctx.all_reduce`.",
            )
        )
    return wire


@functools.partial(jax.jit, static_argnums=2)
def _fed(array: jax.Array, residual: jax.Array, wire: str | None) -> tuple[jax.Array, jax.Array]:
    """What is sent, and what is left of it."""
    whole = array + residual
    sent = whole if wire is None else rounded(whole, wire)
    left = whole - sent
    return sent, jnp.where(jnp.isfinite(left), left, residual)
