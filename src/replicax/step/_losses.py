"""Scale losses so that the sum over replicas is the mean over the global batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import EXACT, ReduceOp
from replicax.step._context import ReplicaContext
from replicax.step._rows import mean_dtype, wide_enough
from replicax.step._single_context import required_replica_context


def compute_average_loss(per_example: Any, global_batch_size: Any = None) -> jax.Array:
    """This replica's part of the mean loss over the global batch, as in `tf.nn`.

    The parts of all replicas sum up to the mean over the rows of the global batch, so gradients
    of it are combined with `ctx.all_reduce("sum", gradients)`. Replicas may hold different numbers
    of rows, and rows that pad the remainder of a dataset do not count. `ctx.global_mean` gives
    the mean itself, and goes with `ctx.all_reduce("mean", gradients)`.

    Context: replica, or outside of every strategy. Collective: yes without `global_batch_size`
    (nothing travels while all rows of a compiled step's batch are real).

    Args:
        per_example: f32[B] losses of this replica's rows. If there are more axes, the entries of
            a row are summed.
        global_batch_size: What to divide by: a positive integer. By default the number of real
            rows that the replicas hold together in this step.

    Returns:
        f32[], varying: a sum over this replica's real rows, divided.

    Raises:
        InvalidArgumentError: A scalar, not one value a row, or a batch size that is no positive
            integer.
        ContextError: In cross-replica context.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> losses = rx.PerReplica([np.array([1.0, 2.0]), np.array([6.0])])
        >>> parts = strategy.run(rx.compute_average_loss, args=(losses,))
        >>> print(parts, strategy.reduce("sum", parts, axis=None))
        PerReplica(1.0, 2.0) 3.0
    """
    context = _checked_context()
    rows = context._rows
    array = rows.checked(per_example, "compute_average_loss")
    wide = wide_enough(array)
    total = jnp.sum(rows.sum_of(wide))
    if global_batch_size is not None:
        count = _checked_size(global_batch_size)
    else:
        count = rows.static_total(wide.shape[0], context.num_replicas_in_sync)
        if count is None:
            count = context.all_reduce(ReduceOp.SUM, rows.count(wide.shape[0]), EXACT)
    average: jax.Array = total / count
    return average.astype(mean_dtype(array.dtype))


def _checked_context() -> ReplicaContext:
    return required_replica_context(
        "`rx.compute_average_loss`",
        why="It divides the losses of one replica's rows by the rows of all replicas.",
        fix="Across replicas, `strategy.reduce('mean', losses, axis=0)` is the mean over all rows.",
    )


def _checked_size(size: Any) -> Any:
    """The batch size; a traced integer passes, its value is not known.

    Raises:
        InvalidArgumentError: It is no positive integer.
    """
    is_number = isinstance(size, (int, np.ndarray, np.generic, jax.Array))
    is_integer = is_number and jnp.issubdtype(jnp.result_type(size), jnp.integer)
    if is_integer and np.shape(size) == () and (isinstance(size, jax.core.Tracer) or size > 0):
        return size
    raise errors.InvalidArgumentError(
        errors.describe(
            f"compute_average_loss: `global_batch_size` = {size!r} is not a positive integer.",
            fix="Pass the number of rows that all replicas together take in a step, or leave it "
            "out: then the rows are counted.",
        )
    )
