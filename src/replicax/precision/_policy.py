"""Which dtype is used where."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors

_COMPUTE = {
    "float32": jnp.float32,
    "mixed_bfloat16": jnp.bfloat16,
    "mixed_float16": jnp.float16,
}


class Policy:
    """Compute in half precision, keep weights in float32.

    Context: any. Collective: no.

    Args:
        name: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`. The last one needs a
            `LossScale`: its smallest gradients are zero otherwise.

    Attributes:
        name: As given.
        compute_dtype: The dtype of activations and of the copies of weights that they meet.
        variable_dtype: The dtype of weights, of the state of optimizers, and of losses.
        needs_loss_scale: Whether gradients need scaling to be representable.

    Raises:
        InvalidArgumentError: There is no such policy.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> policy = rx.precision.Policy("mixed_bfloat16")
        >>> half = policy.to_compute({"w": jnp.ones(2), "step": jnp.int32(3)})
        >>> print(half["w"].dtype, half["step"].dtype)
        bfloat16 int32
    """

    def __init__(self, name: str) -> None:
        if name not in _COMPUTE:
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"rx.precision.Policy({name!r}): there is no such policy.",
                    fix=f"Pass one of {', '.join(map(repr, _COMPUTE))}.",
                )
            )
        self.name = name
        self.compute_dtype: Any = jnp.dtype(_COMPUTE[name])
        self.variable_dtype: Any = jnp.dtype(jnp.float32)

    @property
    def needs_loss_scale(self) -> bool:
        """True for float16, whose exponents end at 2**-24."""
        return bool(self.compute_dtype == jnp.float16)

    def to_compute(self, tree: Any) -> Any:
        """The tree with floating-point leaves in `compute_dtype`; others stay."""
        return _cast(tree, self.compute_dtype)

    def to_variable(self, tree: Any) -> Any:
        """The tree with floating-point leaves in `variable_dtype`; others stay."""
        return _cast(tree, self.variable_dtype)

    def __repr__(self) -> str:
        return f"Policy({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


def _cast(tree: Any, dtype: Any) -> Any:
    def one(leaf: Any) -> Any:
        is_array = hasattr(leaf, "dtype")
        return leaf.astype(dtype) if is_array and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, tree)
