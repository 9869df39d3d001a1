"""optax transformations of packed parameters."""

from __future__ import annotations

from typing import Any

import jax

from replicax import errors
from replicax.step._element_rule import check_transformation
from replicax.step._pack_rule import PackRule
from replicax.step._sharded_optimizer import ShardedTransformation
from replicax.step._sharded_update import not_packed
from replicax.values._packed import holds_packed


def pack_optimizer(transformation: Any) -> PackedTransformation:
    """An optax transformation that takes packed parameters (`rx.pack`), with the same numbers.

    A transformation that was given an `rx.Packed` itself would take each part for one leaf: masks
    by name or by axes, norms of a leaf and labels would mean something else. This one is asked what
    it does to the leaves of the unpacked parameters. If it treats each element by itself, and the
    leaves of one pack alike, each pack is updated as one array; else it is an error.

    What it does is read once for parameters of one structure, as `jax.jit` would. So what it reads
    from elsewhere, such as a Python variable in a schedule, keeps the value of that moment; numbers
    that are to change belong in the state (`optax.inject_hyperparams`).

    Parameters may hold packed trees anywhere; without one it is the transformation itself.
    `rx.Optimizer` does this by itself.

    Args:
        transformation: An optax transformation, such as `optax.adam(1e-3)`.

    Returns:
        A transformation with `init` and `update`.

    Raises:
        ArgumentTypeError: No transformation.
        UnimplementedError: One of `rx.shard_optimizer`.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import replicax as rx
        >>> params = rx.pack({"b": jnp.zeros(2), "w": jnp.ones((2, 2))})
        >>> tx = rx.pack_optimizer(optax.sgd(0.25, momentum=0.5))
        >>> state = tx.init(params)
        >>> gradients = jax.grad(lambda p: (p.unpack()["w"] ** 2).sum())(params)
        >>> updates, state = tx.update(gradients, state, params)
        >>> print(optax.apply_updates(params, updates).unpack()["w"])
        [[0.5 0.5]
         [0.5 0.5]]
    """
    check_transformation(transformation, "rx.pack_optimizer", "optax.adam(1e-3)")
    if isinstance(transformation, ShardedTransformation):
        raise not_packed("rx.pack_optimizer was given a transformation of rx.shard_optimizer.")
    return PackedTransformation(transformation)


class PackedTransformation:
    """What `rx.pack_optimizer` returns: an optax transformation for packed parameters.

    Attributes:
        transformation: The transformation itself.
    """

    def __init__(self, transformation: Any) -> None:
        self.transformation = transformation
        self._rules: dict[Any, PackRule] = {}

    def init(self, params: Any) -> Any:
        """The state for some parameters. Context: any.

        Returns:
            The state of the transformation. In the place of the first leaf of a pack it has an
            `rx.Packed` with the state of all of them, and None in the places of the others.

        Raises:
            UnimplementedError: The transformation does not treat each element by itself.
            InvalidArgumentError: It treats leaves of one pack in different ways.
        """
        if not holds_packed(params):
            return self.transformation.init(params)
        return self._rule(params, {}).init(params)

    def update(
        self, gradients: Any, state: Any, params: Any = None, **extra: Any
    ) -> tuple[Any, Any]:
        """The updates of the parameters, and the next state. Context: any. Collective: no.

        Args:
            gradients: The combined gradients, in the structure of the parameters. Sparse rows
                become dense.
            state: What `init` or the last `update` gave.
            params: The parameters. They are needed where something is packed.
            **extra: Handed on.

        Returns:
            The updates, for `optax.apply_updates`, and the state.

        Raises:
            UnimplementedError: The transformation does not treat each element by itself.
            InvalidArgumentError: No `params`; leaves of one pack are treated in different ways; or
                the state is one of another packing.
        """
        if params is None and holds_packed(gradients):
            raise errors.InvalidArgumentError(
                errors.describe(
                    "The update of a packed optimizer was given no parameters.",
                    fix="Pass them: `tx.update(gradients, state, params)`.",
                )
            )
        if not holds_packed(params):
            updates: tuple[Any, Any] = self.transformation.update(gradients, state, params, **extra)
            return updates
        return self._rule(params, extra).update(gradients, state, params)

    def unpack_state(self, state: Any, params: Any) -> Any:
        """The state with whole leaves: what the transformation itself has for the unpacked tree.

        It is for a checkpoint, which can then be restored in another packing, or without.

        Context: any. Collective: no.

        Raises:
            InvalidArgumentError: It is no state for parameters packed like this.
        """
        return self._rule(params, {}).unpack_state(state) if holds_packed(params) else state

    def pack_state(self, state: Any, params: Any) -> Any:
        """The packed state, from one with whole leaves; the inverse of `unpack_state`.

        Context: any. Collective: no.

        Raises:
            InvalidArgumentError: It is no state of the transformation for these parameters.
        """
        return self._rule(params, {}).pack_state(state) if holds_packed(params) else state

    def _rule(self, params: Any, extra: dict[str, Any]) -> PackRule:
        if extra:
            return PackRule(self.transformation, params, extra)
        leaves, structure = jax.tree.flatten(params)
        key = (structure, *((x.shape, x.dtype) for x in leaves))
        rule = self._rules.get(key)
        if rule is None:
            rule = self._rules[key] = PackRule(self.transformation, params, {})
        return rule
