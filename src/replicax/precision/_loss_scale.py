"""Loss scaling: gradients that half precision can hold, and steps that all replicas skip together.

The scale grows while all gradients are finite and is halved when one is not, as in Micikevicius
et al., "Mixed Precision Training" (2018).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.precision._finite import finite_if_mirrored
from replicax.step import apply_gradients
from replicax.step._optimizers import gradient_names
from replicax.values import Variable
from replicax.values._sparse import map_values

_DEFAULT_SCALE = 2.0**15
_DEFAULT_STEPS = 2000


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LossScaleState:
    """A loss scale as a tree of arrays, for the functional style.

    Attributes:
        scale: f32[], what losses are multiplied with.
        finite_steps: i32[], steps since the scale changed.
        growth_steps: After so many finite steps the scale is doubled.
        is_dynamic: Whether the scale changes at all.

    Examples:
        >>> import replicax as rx
        >>> state = rx.precision.LossScaleState.create(1024.0)
        >>> print(state.multiply(2.0), state.adjusted(False).scale)
        2048.0 512.0
    """

    scale: jax.Array
    finite_steps: jax.Array
    growth_steps: int = dataclasses.field(default=_DEFAULT_STEPS, metadata={"static": True})
    is_dynamic: bool = dataclasses.field(default=True, metadata={"static": True})

    @classmethod
    def create(
        cls,
        scale: float = _DEFAULT_SCALE,
        *,
        growth_steps: int = _DEFAULT_STEPS,
        is_dynamic: bool = True,
    ) -> LossScaleState:
        """Start from `scale`.

        Raises:
            InvalidArgumentError: `scale` is not a finite number above zero, or `growth_steps` is
                not above zero.
        """
        _check(scale, growth_steps)
        return cls(jnp.float32(scale), jnp.int32(0), growth_steps, is_dynamic)

    def multiply(self, loss: Any) -> jax.Array:
        """The loss times the scale, in float32 at least."""
        return _multiplied(loss, self.scale)

    def divide(self, tree: Any) -> Any:
        """Each leaf divided by the scale, in float32 at least."""
        return jax.tree.map(lambda x: _divided(x, self.scale), tree)

    def adjusted(self, is_finite: Any) -> LossScaleState:
        """The state after a step.

        Args:
            is_finite: bool[], mirrored: `rx.precision.all_finite(gradients)`.
        """
        if not self.is_dynamic:
            return self
        scale, steps = _adjusted(self.scale, self.finite_steps, is_finite, self.growth_steps)
        return dataclasses.replace(self, scale=scale, finite_steps=steps)


class LossScale:
    """A loss scale in variables.

    Create it in `strategy.scope()`. The check acts on gradients that the replicas have combined,
    so an overflow on one replica makes all of them skip the step.

    Args:
        scale: Where it starts: 2**15.
        growth_steps: After so many finite steps in a row the scale is doubled: 2,000. A step with
            a gradient that is not finite halves it, down to 1.
        is_dynamic: False keeps the scale as it is. Steps with infinite gradients are skipped all
            the same.

    Raises:
        InvalidArgumentError: `scale` is not a finite number above zero, or `growth_steps` is not
            above zero.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import replicax as rx
        >>> w = rx.Variable(1.0)
        >>> optimizer = rx.Optimizer(optax.sgd(0.5), [w])
        >>> scale = rx.precision.LossScale(8.0)
        >>> loss, gradients = rx.value_and_grad(lambda: scale.multiply(w.value**2), [w])()
        >>> print(scale.apply_gradients(optimizer, gradients), w.value, scale.divide(loss))
        True 0.0 1.0
        >>> print(scale.apply_gradients(optimizer, [jnp.inf]), w.value, scale.value)
        False 0.0 4.0
    """

    _holds_variables: ClassVar[bool] = True  # for checkpoints

    def __init__(
        self,
        scale: float = _DEFAULT_SCALE,
        *,
        growth_steps: int = _DEFAULT_STEPS,
        is_dynamic: bool = True,
    ) -> None:
        _check(scale, growth_steps)
        self.growth_steps, self.is_dynamic = growth_steps, is_dynamic
        self.scale = Variable(np.float32(scale), trainable=False, name="loss_scale")
        self.finite_steps = Variable(np.int32(0), trainable=False, name="loss_scale_finite_steps")

    @property
    def value(self) -> jax.Array:
        """f32[], the scale now."""
        return self.scale.value

    def multiply(self, loss: Any) -> jax.Array:
        """The loss times the scale, in float32 at least."""
        return _multiplied(loss, self.value)

    def divide(self, tree: Any) -> Any:
        """Each leaf divided by the scale, in float32 at least."""
        scale = self.value
        return map_values(lambda x: _divided(x, scale), tree)

    def apply_gradients(
        self, optimizer: Any, gradients: Any, variables: Any = None, **extra: Any
    ) -> jax.Array:
        """Undo the scaling, apply the gradients if all are finite, and adjust the scale.

        Context: any. Collective: as `rx.apply_gradients`.

        Args:
            optimizer: As in `rx.apply_gradients`.
            gradients: Gradients of the scaled loss that the replicas have combined.
            variables: As in `rx.apply_gradients`.
            **extra: Handed on.

        Returns:
            bool[], whether they were applied.

        Raises:
            VaryingWriteError: The gradients may differ between replicas.
        """
        names = gradient_names(optimizer, gradients, variables)
        is_finite = finite_if_mirrored(gradients, "LossScale.apply_gradients", names)
        apply_gradients(optimizer, self.divide(gradients), variables, apply_if=is_finite, **extra)
        if self.is_dynamic:
            scale, steps = _adjusted(
                self.value, self.finite_steps.value, is_finite, self.growth_steps
            )
            self.scale.assign(scale)
            self.finite_steps.assign(steps)
        return is_finite


def _multiplied(loss: Any, scale: jax.Array) -> jax.Array:
    loss = jnp.asarray(loss)
    scaled: jax.Array = loss.astype(jnp.promote_types(loss.dtype, jnp.float32)) * scale
    return scaled


def _divided(x: Any, scale: jax.Array) -> jax.Array:
    x = jnp.asarray(x)
    unscaled: jax.Array = x.astype(jnp.promote_types(x.dtype, jnp.float32)) / scale
    return unscaled


def _adjusted(
    scale: jax.Array, finite_steps: jax.Array, is_finite: Any, growth_steps: int
) -> tuple[jax.Array, jax.Array]:
    """The next scale and count; the scale stays between 1 and the largest power of two."""
    steps = jnp.where(is_finite, finite_steps + 1, 0)
    grows = steps >= growth_steps
    doubled = scale * 2
    grown = jnp.where(grows & jnp.isfinite(doubled), doubled, scale)
    smaller = jnp.minimum(scale, jnp.maximum(scale / 2, 1.0))
    return jnp.where(is_finite, grown, smaller), jnp.where(grows, 0, steps).astype(jnp.int32)


def _check(scale: Any, growth_steps: Any) -> None:
    is_number = isinstance(scale, (int, float, np.number)) and not isinstance(scale, bool)
    if not is_number or not np.isfinite(scale) or scale <= 0:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"A loss scale of {scale!r} is not a finite number above zero.",
                fix="Pass a power of two, such as 2.0**15.",
            )
        )
    if isinstance(growth_steps, bool) or not isinstance(growth_steps, int) or growth_steps < 1:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"`growth_steps` = {growth_steps!r} is no positive integer.",
                fix="Pass the number of finite steps after which the scale is doubled.",
            )
        )
