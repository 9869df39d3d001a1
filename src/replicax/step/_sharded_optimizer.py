"""Weight-update sharding (ZeRO-1): each replica keeps and updates a share of the optimizer state.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020;
Xu et al., "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training", 2020.
"""

from __future__ import annotations

from typing import Any

import jax

from replicax import errors
from replicax.step._element_rule import check_transformation
from replicax.step._sharded_update import cut, joined, rule_of, shapes_of_cut_state, updated
from replicax.values import PerReplica
from replicax.values._sparse import dense


def shard_optimizer(transformation: Any) -> ShardedTransformation:
    """An optax transformation of whose state each replica keeps a share (ZeRO-1).

    The gradients of the replicas are combined with MEAN, and each replica gets its share of them;
    it updates its share, and all gather the updates. The numbers are those of the transformation
    itself. Its state needs a replica's share of the memory, up to padding; the time of a step may
    be longer.

    Give it the gradients as `rx.value_and_grad` made them on each replica. Gradients that were
    combined before (to clip them, say) give the same numbers, for one more reduction.

    The transformation must treat each element by itself, as SGD, Adam, AdamW, Adagrad, RMSProp and
    Lion do, with schedules, masks and injected hyperparameters. This is checked on its program.

    Args:
        transformation: An optax transformation, such as `optax.adam(1e-3)`.

    Returns:
        A transformation for `rx.Optimizer`, or to be called in functional style.

    Raises:
        ArgumentTypeError: No transformation.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable(jnp.zeros((3, 4)))
        ...     optimizer = rx.Optimizer(rx.shard_optimizer(optax.adam(0.1)), [w])
        >>> mu = optimizer.state[0].mu[0]
        >>> mu.shape, [share.shape for share in mu.values]
        ((3, 4), [(6,), (6,)])
    """
    check_transformation(transformation, "rx.shard_optimizer", "optax.adam(1e-3)")
    return ShardedTransformation(transformation)


class ShardedTransformation:
    """What `rx.shard_optimizer` returns: an optax transformation with a state in shares.

    Attributes:
        transformation: The transformation itself.
    """

    def __init__(self, transformation: Any) -> None:
        self.transformation = transformation

    def init(self, params: Any) -> Any:
        """The state for some parameters, in shares.

        Context: cross-replica, in the strategy's scope; outside of all scopes there is one share.

        Args:
            params: A tree of arrays.

        Returns:
            The state of the transformation; each leaf that has one number for each parameter is an
            `rx.PerReplica` of shares.

        Raises:
            UnimplementedError: The transformation does not treat each element by itself.
        """
        rule, leaves = rule_of(self.transformation, params), jax.tree.leaves(params)
        return rule.in_structure(
            [
                start if shape is None else cut(start, shape)
                for start, shape in zip(
                    rule.start(leaves), shapes_of_cut_state(rule, leaves), strict=True
                )
            ]
        )

    def update(
        self, gradients: Any, state: Any, params: Any = None, **extra: Any
    ) -> tuple[Any, Any]:
        """The updates of the parameters, and the next state.

        Context: replica, or outside of every strategy. Collective: yes.

        Args:
            gradients: This replica's gradients, in the structure of the parameters.
            state: This replica's part of what `init` or the last `update` gave.
            params: The parameters. They are needed.
            **extra: Handed on.

        Returns:
            The updates, mirrored, for `optax.apply_updates`; and the state, of which each replica
            has its share.

        Raises:
            InvalidArgumentError: `params` are missing, or the state is for another number of
                replicas.
        """
        if params is None:
            raise errors.InvalidArgumentError(
                errors.describe(
                    "The update of a sharded optimizer was given no parameters.",
                    fix="Pass them: `tx.update(gradients, state, params)`.",
                )
            )
        structure: Any
        leaves, structure = jax.tree.flatten(params)
        rule = rule_of(self.transformation, params, extra)
        given = structure.flatten_up_to(dense(gradients))
        updates, new = updated(rule, given, jax.tree.leaves(state), leaves)
        return structure.unflatten(updates), rule.in_structure(new)

    def join_state(self, state: Any, params: Any) -> Any:
        """The state with whole arrays: what the transformation itself would have.

        It is for a checkpoint, which can then be restored with any number of replicas, or without
        sharding.

        Context: cross-replica, in the strategy's scope. Collective: over several workers.
        """
        rule = rule_of(self.transformation, params)
        shapes = shapes_of_cut_state(rule, jax.tree.leaves(params))
        states = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, PerReplica))
        return rule.in_structure(
            [
                x if shape is None else joined(x, shape)
                for x, shape in zip(states, shapes, strict=True)
            ]
        )

    def cut_state(self, state: Any, params: Any) -> Any:
        """The state in shares, from one with whole arrays; the inverse of `join_state`.

        Context: cross-replica, in the strategy's scope.
        """
        rule = rule_of(self.transformation, params)
        shapes = shapes_of_cut_state(rule, jax.tree.leaves(params))
        return rule.in_structure(
            [
                x if shape is None else cut(x, shape)
                for x, shape in zip(jax.tree.leaves(state), shapes, strict=True)
            ]
        )
