"""Reductions step by step, shared by the compiled and the eager collectives.

A reduction is: prepare each replica's leaf, combine the prepared leaves with a primitive
(sum, maximum or minimum), finish the total.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import ArgumentTypeError, InvalidArgumentError, describe

from ._reduce_op import ReduceOp

_WIDE_BYTES = 4


def as_array(value: object, name: str) -> jax.Array:
    """Returns `value` as an array, or raises an error that names it.

    Raises:
        ArgumentTypeError: `value` is neither an array nor a number.
    """
    if isinstance(value, jax.Array):
        return value
    numeric = isinstance(value, (bool, int, float, complex, np.ndarray, np.generic))
    if numeric or hasattr(value, "__jax_array__"):
        try:
            return jnp.asarray(value)
        except (TypeError, ValueError) as error:  # Strings, objects, ragged lists.
            raise ArgumentTypeError(_no_array(value, name)) from error
    raise ArgumentTypeError(_no_array(value, name))


def check_reducible(op: ReduceOp, leaf: jax.Array, name: str) -> None:
    """Raises an error where `op` has no meaning for the dtype of a leaf.

    Raises:
        ArgumentTypeError: A bool is summed, a complex number is compared, a PRNG key is reduced.
    """
    dtype = leaf.dtype
    what = f"`{op.name}` cannot reduce {name}, which is {short_type(leaf)}."
    if is_key(leaf):
        why, fix = "it holds PRNG keys.", "reduce numbers; to share a key, use broadcast."
    elif op in {ReduceOp.SUM, ReduceOp.MEAN} and dtype == jnp.bool_:
        why = "a sum of bools is not a bool."
        fix = "cast first: `x.astype(jnp.int32)` counts, `x.astype(jnp.float32)` gives a share."
    elif op in {ReduceOp.MAX, ReduceOp.MIN} and jnp.issubdtype(dtype, jnp.complexfloating):
        why, fix = "complex numbers have no order.", "reduce `jnp.abs(x)`, or the two parts."
    elif not (dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.number)):
        why, fix = "it holds no numbers.", "cast it first."
    else:
        return
    raise ArgumentTypeError(describe(what, why=why, fix=fix))


def prepare(op: ReduceOp, leaf: jax.Array, num_replicas: int) -> jax.Array:
    """Returns what a replica gives to the reduction.

    The mean of integers must not wrap: int8 100 and 100 have the mean 100. Narrow integers
    are widened. Wide ones become quotient and remainder, stacked in a new first axis: both
    sums fit, whatever the values are.
    """
    if op is not ReduceOp.MEAN or not jnp.issubdtype(leaf.dtype, jnp.integer):
        return leaf
    if leaf.dtype.itemsize < _WIDE_BYTES:
        return leaf.astype(jnp.int32)
    divisor = jnp.asarray(num_replicas, leaf.dtype)
    quotient = leaf // divisor
    return jnp.stack([quotient, leaf - quotient * divisor])


def finish(op: ReduceOp, total: jax.Array, dtype: np.dtype, num_replicas: int) -> jax.Array:
    """Returns the result of a reduction, from the combined prepared leaves.

    Args:
        op: The reduce op.
        total: The combined leaves.
        dtype: The dtype of the leaf before `prepare`.
        num_replicas: How many leaves were combined.
    """
    if op is not ReduceOp.MEAN:
        return total
    if not jnp.issubdtype(dtype, jnp.integer):
        return total / num_replicas
    mean_dtype = result_dtype(op, dtype)
    if dtype.itemsize < _WIDE_BYTES:
        return total.astype(mean_dtype) / num_replicas
    quotient, remainder = total[0], total[1]
    return quotient.astype(mean_dtype) + remainder.astype(mean_dtype) / num_replicas


def result_dtype(op: ReduceOp, dtype: np.dtype) -> np.dtype:
    """Returns the dtype of a reduced leaf: float32 (float64) for the mean of integers."""
    if op is ReduceOp.MEAN and jnp.issubdtype(dtype, jnp.integer):
        return np.dtype(np.float64 if dtype.itemsize > _WIDE_BYTES else np.float32)
    return dtype


def normalised_axis(axis: object, leaf: jax.Array, name: str) -> int:
    """Returns `axis` counted from the front.

    Raises:
        ArgumentTypeError: `axis` is no integer.
        InvalidArgumentError: The leaf is a scalar, or `axis` is out of range.
    """
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise ArgumentTypeError(
            describe(f"`axis={axis!r}` is no integer.", fix="pass the number of one axis.")
        )
    if leaf.ndim == 0:
        raise InvalidArgumentError(
            describe(
                f"`axis={axis}` does not exist: {name} is a scalar, {short_type(leaf)}.",
                fix="give it an axis first: `x[None]`.",
            )
        )
    if not -leaf.ndim <= axis < leaf.ndim:
        raise InvalidArgumentError(
            describe(
                f"`axis={axis}` is out of range for {name}, which is {short_type(leaf)}.",
                fix=f"pass a number from {-leaf.ndim} to {leaf.ndim - 1}.",
            )
        )
    return int(axis) % leaf.ndim


def check_divisible(leaf: jax.Array, axis: int, num_replicas: int, name: str) -> None:
    """Raises an error where an axis cannot be cut into one equal part a replica.

    Raises:
        InvalidArgumentError: The length is not divisible by the number of replicas.
    """
    length = leaf.shape[axis]
    if length % num_replicas:
        raise InvalidArgumentError(
            describe(
                f"reduce_scatter cannot cut axis {axis} of {name}, {short_type(leaf)}, "
                f"into {num_replicas} equal parts.",
                why=f"its length {length} is not divisible by {num_replicas} replicas.",
                fix="pad the axis, or use all_reduce.",
            )
        )


def check_source(source: object, num_replicas: int) -> int:
    """Returns the source of a broadcast as an int.

    Raises:
        ArgumentTypeError: `source` is no integer.
        InvalidArgumentError: There is no such replica.
    """
    fix = f"pass a replica id from 0 to {num_replicas - 1}."
    if isinstance(source, bool) or not isinstance(source, (int, np.integer)):
        raise ArgumentTypeError(describe(f"`source={source!r}` is no integer.", fix=fix))
    if not 0 <= source < num_replicas:
        what = f"`source={source}` is no replica: there are {num_replicas}."
        raise InvalidArgumentError(describe(what, fix=fix))
    return int(source)


def is_key(leaf: jax.Array) -> bool:
    """Whether a leaf holds typed PRNG keys."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def leaf_names(leaves: Sequence[object]) -> list[str]:
    """Returns how messages name each leaf: plainly if there is one, else by number."""
    if len(leaves) == 1:
        return ["the value"]
    return [f"leaf {number}" for number in range(len(leaves))]


def short_type(leaf: jax.Array) -> str:
    """Returns dtype and shape of a leaf as a reader finds it: `float32[2, 3]`."""
    return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"


def _no_array(value: object, name: str) -> str:
    return describe(
        f"{name[0].upper()}{name[1:]} is no array: {value!r} ({type(value).__name__}).",
        fix="pass jax arrays, numpy arrays or numbers.",
    )
