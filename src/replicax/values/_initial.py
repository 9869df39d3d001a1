"""What a variable starts from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.values._combine import as_array
from replicax.values._distributed import PerReplica
from replicax.values._kinds import VariableAggregation, VariableSynchronization
from replicax.values._operators import ArrayLike


def initial_array(
    name: str, initial_value: Any, dtype: Any, aggregation: VariableAggregation
) -> jax.Array:
    """The value that all copies of a variable start from, as an array of its own.

    Raises:
        InvalidArgumentError: A per-replica value, or a dtype that the aggregation cannot combine.
        ContextError: The value exists only while JAX traces.
    """
    if callable(initial_value):
        initial_value = initial_value()
    if isinstance(initial_value, PerReplica):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"Variable `{name}` cannot start from {initial_value!r}.",
                why="All copies of a variable start from one value.",
                fix="Pass one array. To give the copies of an ON_READ variable different values, "
                "assign the per-replica value afterwards.",
            )
        )
    if isinstance(initial_value, ArrayLike):
        initial_value = initial_value.value
    given = as_array(initial_value, f"The initial value of variable `{name}`")
    if isinstance(given, jax.core.Tracer):
        raise errors.ContextError(
            errors.describe(
                f"Variable `{name}` was created from a value that exists only while JAX traces.",
                why="The variable lives longer than the trace, and is made before the step runs.",
                fix="Pass a function of no arguments that makes the value "
                "(`rx.Variable(lambda: jnp.zeros(shape))`), compute it under `with "
                "jax.ensure_compile_time_eval():`, or start from NumPy's zeros and `assign` what "
                "was computed.",
            )
        )
    array: jax.Array = jnp.array(given, dtype=dtype, copy=True)
    if aggregation is VariableAggregation.MEAN and not jnp.issubdtype(array.dtype, jnp.inexact):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"Variable `{name}` of dtype {array.dtype} cannot have MEAN aggregation.",
                why="The mean of integers is not an integer.",
                fix="Use a floating dtype, or SUM or ONLY_FIRST_REPLICA.",
            )
        )
    return array


def check_on_read(name: str, dtype: Any, aggregation: VariableAggregation) -> None:
    """Check that copies of this dtype can be aggregated when they are read.

    Raises:
        InvalidArgumentError: They are to be summed, and are no numbers.
    """
    if aggregation is VariableAggregation.SUM and not jnp.issubdtype(dtype, np.number):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"Variable `{name}` of dtype {dtype} cannot have SUM aggregation when it is read.",
                why="Values of this dtype have no sum.",
                fix="Count in an integer dtype, such as int32.",
            )
        )


def facts_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What the replicas must agree on when they create a variable together."""
    initial = args[0] if args else kwargs.get("initial_value")
    facts = {key: value for key, value in kwargs.items() if key != "initial_value"}
    for key, kind in (
        ("synchronization", VariableSynchronization),
        ("aggregation", VariableAggregation),
    ):
        if key in facts:
            facts[key] = kind.parse(facts[key]).name
    if facts.get("dtype") is not None:
        facts["dtype"] = jnp.dtype(facts["dtype"])
    if not callable(initial):
        facts["shape"], dtype = _kind_of(initial)
        facts.setdefault("dtype", dtype)
    return {key: str(value) for key, value in facts.items()}


def _kind_of(initial: Any) -> tuple[tuple[int, ...] | None, Any]:
    """Shape and dtype of an initial value; None for what the variable will refuse."""
    value: Any = initial.value if isinstance(initial, ArrayLike) else initial
    try:
        array = value if hasattr(value, "dtype") else np.asarray(value)
        is_key = jnp.issubdtype(array.dtype, jax.dtypes.extended)
        dtype = array.dtype if is_key else jax.dtypes.canonicalize_dtype(array.dtype)
        return tuple(array.shape), dtype
    except (TypeError, ValueError):
        return None, None
