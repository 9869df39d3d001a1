"""Checks of what is written to a variable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from replicax import errors
from replicax.values._combine import as_array
from replicax.values._distributed import PerReplica
from replicax.values._mesh import own_part
from replicax.values._operators import ArrayLike

if TYPE_CHECKING:
    from replicax.values._variable import Variable

Update = Literal["assign", "assign_add", "assign_sub"]


def checked(variable: Variable, call: str, value: Any) -> jax.Array:
    """The value of a write as an array of the variable's dtype.

    Args:
        variable: The variable.
        call: The method, for messages.
        value: An array, a number, or another variable.

    Raises:
        ArgumentTypeError: A dtype that does not fit.
        InvalidArgumentError: The variable's dtype has no sums where one is asked for.
        VaryingWriteError: A per-replica value.
    """
    if isinstance(value, PerReplica):
        raise errors.VaryingWriteError(
            errors.describe(
                f"`{variable.name}.{call}` was given {value!r} in cross-replica context.",
                why="The components of a per-replica value may differ, and the copies of the "
                "variable would become different."
                if not variable.is_on_read
                else "Across replicas only `assign` gives each copy its component.",
                fix="Reduce the value first: `strategy.reduce('mean', value, axis=None)`.",
            )
        )
    if isinstance(value, ArrayLike):
        value = value.value
    given = getattr(value, "dtype", type(value).__name__)
    array = as_array(value, f"The value given to `{variable.name}.{call}`")
    if call != "assign" and not jnp.issubdtype(variable.dtype, np.number):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`{variable.name}.{call}`: the variable has dtype {variable.dtype}, which has no "
                "sums or differences.",
                fix="Compute the new value and use `assign`.",
            )
        )
    if not fits(array, variable.dtype):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"`{variable.name}.{call}` was given {given}, but the variable has dtype "
                f"{variable.dtype}.",
                why="The conversion would lose information in silence.",
                fix=f"Convert it where you mean to: `value.astype({str(variable.dtype)!r})`.",
            )
        )
    return array if array.dtype == variable.dtype else array.astype(variable.dtype)


def check_shape(variable: Variable, call: str, shape: tuple[int, ...]) -> None:
    """Refuse a value of another shape than the variable's.

    Raises:
        InvalidArgumentError: The shapes differ.
    """
    if shape != variable.shape:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`{variable.name}.{call}` was given shape {shape}, but the variable has shape "
                f"{variable.shape}.",
                fix="Shapes must be equal; use `jnp.broadcast_to` if you mean to broadcast.",
            )
        )


def fits(array: jax.Array, dtype: Any) -> bool:
    """Whether an array can become ``dtype`` without losing information."""
    if array.dtype == dtype:
        return True
    if any(jnp.issubdtype(d, jax.dtypes.prng_key) for d in (array.dtype, dtype)):
        return False
    return bool(jnp.result_type(array, dtype) == dtype)


def applied(update: Update, before: Any, operand: Any) -> Any:
    """The new value of an update of ``before``."""
    if update == "assign":
        return operand
    operand = beside(operand, before)
    return before + operand if update == "assign_add" else before - operand


def beside(operand: Any, state: Any) -> Any:
    """An operand on the devices of a state: `assign` takes values from anywhere, so others do."""
    if any(
        isinstance(x, jax.core.Tracer) or not isinstance(x, jax.Array) for x in (operand, state)
    ):
        return operand
    operand, sharding = own_part(operand), state.sharding
    if isinstance(sharding, NamedSharding):  # The copies of a sync-on-read variable are sharded.
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    if operand.sharding == sharding:
        return operand
    return jax.device_put(operand, sharding)
