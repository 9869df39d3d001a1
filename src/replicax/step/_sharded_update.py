"""The update of a sharded optimizer, and the optimizer's state in variables."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.step._element_evaluation import NotElementwise
from replicax.step._element_rule import ElementRule
from replicax.step._shares import Sharing, is_cut
from replicax.step._single_context import required_replica_context
from replicax.values import PerReplica, Variable, current_frame
from replicax.values._exchange import all_components
from replicax.values._packed import holds_packed
from replicax.values._sharded import ShardedVariable, from_shares, share_length, shares_on
from replicax.values._sparse import dense


class ShardedUpdate:
    """What an `rx.Optimizer` does with a sharded transformation.

    Args:
        transformation: The transformation itself.
        variables: A tree of variables.

    Attributes:
        state: The state: a tree whose leaves are variables.
    """

    def __init__(self, transformation: Any, variables: Any) -> None:
        self._transformation, self._variables = transformation, jax.tree.leaves(variables)
        self._like = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), variables)
        self._structure: Any = jax.tree.structure(self._like)
        self._rule = rule_of(transformation, self._like)
        paths = jax.tree_util.tree_flatten_with_path(self._rule.state)[0]
        starts = self._rule.start([v.value for v in self._variables])
        shapes = shapes_of_cut_state(self._rule, self._variables)
        leaves: list[Variable] = []
        for (path, aval), start, shape in zip(paths, starts, shapes, strict=True):
            name = f"optimizer{jax.tree_util.keystr(path)}"
            if shape is None:
                leaves.append(
                    Variable(jnp.broadcast_to(start, aval.shape), trainable=False, name=name)
                )
            else:
                leaves.append(ShardedVariable(start, shape=shape, name=name))
        self._states = leaves
        self.state = self._rule.in_structure(leaves)

    def apply(self, gradients: Any, apply_if: Any, extra: dict[str, Any]) -> None:
        """Change the variables and the state. Collective."""
        rule = self._rule if not extra else rule_of(self._transformation, self._like, extra)
        given = self._structure.flatten_up_to(dense(gradients))
        before = [variable.value for variable in self._variables]
        states = [variable.value for variable in self._states]
        updates, new_states = updated(rule, given, states, before, apply_if)
        for variable, old, update in zip(self._variables, before, updates, strict=True):
            variable.assign(_added(old, update))
        for variable, new in zip(self._states, new_states, strict=True):
            variable.assign(new)


def updated(
    rule: ElementRule,
    gradients: Sequence[Any],
    states: Sequence[Any],
    params: Sequence[Any],
    apply_if: Any = None,
) -> tuple[list[Any], list[Any]]:
    """The updates of whole leaves, and the new state of this replica's shares. Collective.

    Args:
        rule: The rule for elements.
        gradients: This replica's gradients.
        states: Its shares of the state.
        params: The parameters.
        apply_if: bool[]; where it is false, updates are zero and the state stays.

    Raises:
        ContextError: In cross-replica context.
        InvalidArgumentError: The state is for another number of replicas.
    """
    context = required_replica_context(
        "`update` of a sharded optimizer",
        why="Each replica gives its gradients and updates its share.",
    )
    count = context.num_replicas_in_sync
    sharing = Sharing.of(params, gradients, count, **_packing(context.strategy))
    _check_shares(rule, states, params, count)
    shares = sharing.scattered(context, gradients)
    own = sharing.own(params, context.replica_id_in_sync_group)
    updates, new = _update(rule, shares, list(states), own, apply_if)
    return sharing.gathered(context, updates), new


@functools.partial(jax.jit, static_argnums=0)
def _update(
    rule: ElementRule, shares: Any, states: Any, own: Any, apply_if: Any
) -> tuple[list[Any], list[Any]]:
    updates, new = rule.update(shares, states, own)
    if apply_if is None:
        return updates, new
    kept: tuple[list[Any], list[Any]] = jax.tree.map(
        lambda x, y: jnp.where(apply_if, x, y),
        (updates, new),
        ([jnp.zeros_like(x) for x in updates], states),
    )
    return kept


@jax.jit
def _added(before: Any, update: Any) -> Any:
    return jnp.asarray(before + update).astype(before.dtype)


def rule_of(transformation: Any, params: Any, extra: dict[str, Any] | None = None) -> ElementRule:
    """The rule of a transformation for each element.

    Raises:
        UnimplementedError: It has none, or the parameters are packed.
    """
    if holds_packed(params):
        raise not_packed("rx.shard_optimizer was given packed parameters.")
    try:
        return ElementRule(transformation, params, extra=extra)
    except NotElementwise as verdict:
        raise errors.UnimplementedError(
            errors.describe(
                "rx.shard_optimizer was given a transformation that does not treat each element by "
                "itself.",
                why=f"A replica that has a share of each leaf would make other numbers: "
                f"{verdict.reason}.",
                fix="Leave that part out. Clip before: `gradients = ctx.all_reduce('mean', "
                "gradients)`, then `gradients, norm = rx.clip_by_global_norm(gradients, limit)`.",
            )
        ) from None


def not_packed(what: str) -> errors.UnimplementedError:
    """The error of a sharded optimizer for packed parameters."""
    return errors.UnimplementedError(
        errors.describe(
            what,
            why="A sharded optimizer packs by itself what it sends.",
            fix="Give it the tree as it is: `rx.Optimizer(rx.shard_optimizer(tx), variables)`.",
        )
    )


def shapes_of_cut_state(rule: ElementRule, params: Sequence[Any]) -> list[tuple[int, ...] | None]:
    """The shape of each leaf of the state that is cut into shares; None of the others."""
    shapes = [None if leaf is None else tuple(params[leaf].shape) for leaf in rule.leaf_of]
    return [shape if shape is not None and is_cut(shape) else None for shape in shapes]


def cut(value: Any, shape: Sequence[int]) -> Any:
    """An array, or what all its elements are, in shares."""
    frame = current_frame()
    if frame is None or frame.strategy is None:
        return jnp.broadcast_to(value, shape).ravel()
    mesh = frame.strategy.replica_mesh
    return PerReplica.from_stacked(shares_on(mesh, jnp.asarray(value), shape))


def joined(value: Any, shape: Sequence[int]) -> Any:
    """The array of which there are shares."""
    if not isinstance(value, PerReplica):
        return from_shares(value, shape)
    frame = current_frame()
    if frame is None or frame.strategy is None:
        raise errors.ContextError(
            errors.describe(
                "The shares of a sharded optimizer were to be joined outside of every scope.",
                fix="Call `join_state` under `with strategy.scope():`.",
            )
        )
    shares = all_components(frame.strategy.replica_mesh, value).values
    return jnp.asarray(from_shares(np.stack([np.asarray(share) for share in shares]), shape))


def _check_shares(
    rule: ElementRule, states: Sequence[Any], params: Sequence[Any], count: int
) -> None:
    """Check that the state is that of one replica of `count`."""
    shapes = shapes_of_cut_state(rule, params)
    if len(states) != len(shapes):
        raise errors.InvalidArgumentError(
            errors.describe(
                f"A sharded optimizer was given a state of {len(states)} arrays instead of "
                f"{len(shapes)}.",
                fix="Pass the state that its `init` or `update` gave for these parameters.",
            )
        )
    for state, shape in zip(states, shapes, strict=True):
        if shape is not None and state.shape != (share_length(shape, count),):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"A sharded optimizer was given a state of shape {state.shape} for parameters "
                    f"of shape {shape}.",
                    why=f"With {count} replicas a share has {share_length(shape, count)} elements.",
                    fix="Make the state in the scope of the strategy that runs the step; take it "
                    "to another number of replicas with `join_state` and `cut_state`.",
                )
            )


def _packing(strategy: Any) -> dict[str, Any]:
    if strategy is None:
        return {}
    return {
        "bytes_per_pack": strategy.communication_options.bytes_per_pack,
        "transport": strategy.replica_mesh.transport,
    }


def check_outermost(state: Any) -> None:
    """Refuse a transformation with a sharded one inside of it, whose state this is.

    Raises:
        UnimplementedError: It is one.
    """
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, PerReplica))
    if any(isinstance(leaf, PerReplica) for leaf in leaves):
        raise errors.UnimplementedError(
            errors.describe(
                "rx.Optimizer was given a transformation with rx.shard_optimizer inside of it.",
                why="What stands around it would see one replica's gradients.",
                fix="Shard the whole: `rx.shard_optimizer(optax.chain(...))`.",
            )
        )
