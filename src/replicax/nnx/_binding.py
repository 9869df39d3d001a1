"""How modules see the values of a level of tracing, or of one replica."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.collectives import EXACT
from replicax.nnx._compat import (
    attributes_of,
    current_level,
    level_of,
    level_of_node,
    nnx,
    set_level,
    set_level_of_node,
    set_value,
    value_of,
)
from replicax.nnx._model_variable import BY_PART, ModelVariable, Rule, changed_shape
from replicax.nnx._owner import not_adopted, parts_of
from replicax.step import peek, register_objects, surrounding_trace
from replicax.values import StrategyLike, VariableAccess, current_frame, live_variables
from replicax.values._foreign import register_holder


def is_object(value: Any) -> bool:
    """Whether a value is a module, optimizer, metric or random stream."""
    return isinstance(value, nnx.Pytree)


def parts(value: Any) -> list[tuple[str, ModelVariable]] | None:
    """The variables of an object or of an `nnx.Variable`; None if not all of it was adopted."""
    if isinstance(value, nnx.Variable):
        variable = BY_PART.get(id(value))
        return None if variable is None else [("", variable)]
    if not is_object(value):
        return None
    start = len(type(value).__name__)
    found = [(name[start:], BY_PART.get(id(part))) for name, part in parts_of(value)]
    known = [(name, variable) for name, variable in found if variable is not None]
    return known if len(known) == len(found) else None


class _Objects:
    """The objects of Flax NNX, for the runners."""

    def is_object(self, value: Any) -> bool:
        return is_object(value)

    def check_known(self, value: Any, strategy: StrategyLike) -> None:
        """Check that all parts of an object are variables of the strategy.

        Raises:
            ContextError: One is none.
            InvalidArgumentError: One holds an array of another shape than before.
            MixedStrategiesError: One is a variable of another strategy.
        """
        for name, part in parts_of(value):
            variable = BY_PART.get(id(part))
            if variable is None:
                raise not_adopted(name, part)
            if not variable.has_form(value_of(part)):
                raise changed_shape(name, variable._last, value_of(part))
            if variable.strategy is not strategy:
                raise errors.MixedStrategiesError(
                    errors.describe(
                        f"`{name}` was adopted by {variable.strategy.name} and is used in a "
                        f"replica of {strategy.name}.",
                        why="Its copies lie on the devices of its own strategy.",
                        fix="Make a module for each strategy: `nnx.clone(module)`, then adopt it.",
                    )
                )

    @contextlib.contextmanager
    def bound(self, access: VariableAccess, replica: Any = None) -> Iterator[None]:
        """Let modules hold what `access` sees; at the end, store in it what they hold."""
        variables = _within_reach(replica)
        before = _Held(variables)
        given = [_seen(access, variable, replica) for variable in variables]
        before.replace(given)
        try:
            yield
            held = [value_of(variable.part) for variable in variables]
            before.check_structure()
            changes = [
                (variable, old, _checked(variable, new))
                for variable, old, new in zip(variables, given, held, strict=True)
                if new is not old
            ]
            for variable, new in _combined(changes, replica):
                access.store(variable, new, errors.call_site())
        finally:
            before.restore()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Let modules hold their own arrays for a while; another replica runs meanwhile."""
        variables = _within_reach(None)
        before = _Held(variables)
        before.replace([variable._last for variable in variables])
        try:
            yield
        finally:
            before.restore()


class _Held:
    """What modules hold at one moment, and at which level of tracing they may be changed."""

    def __init__(self, variables: Sequence[ModelVariable]) -> None:
        self._parts = [
            (variable.part, value_of(variable.part), level_of(variable.part))
            for variable in variables
        ]
        owners = dict.fromkeys(variable._owner for variable in variables)
        self._nodes = [
            (node, level_of_node(node), attributes_of(node))
            for owner in owners
            for node in owner.nodes()
        ]

    def replace(self, values: Sequence[Any]) -> None:
        """Let them hold other values, and be changed by code that runs now."""
        level = current_level()
        for (part, _, _), value in zip(self._parts, values, strict=True):
            set_value(part, value)
            set_level(part, level)
        for node, _, _ in self._nodes:
            set_level_of_node(node, level)

    def check_structure(self) -> None:
        """Check that modules have the attributes that they had.

        Raises:
            ContextError: A step set or deleted one.
        """
        for node, _, attributes in self._nodes:
            now = attributes_of(node)
            changed = [
                name
                for name in {**attributes, **now}
                if name not in now or name not in attributes or now[name] is not attributes[name]
            ]
            if changed:
                raise _changed_structure(type(node).__name__, changed)

    def restore(self) -> None:
        """Let them be as they were."""
        for part, value, level in self._parts:
            set_value(part, value)
            set_level(part, level)
        for node, level, attributes in self._nodes:
            for name in attributes_of(node).keys() - attributes.keys():
                vars(node).pop(name)
            vars(node).update(attributes)
            set_level_of_node(node, level)


def _changed_structure(kind: str, names: Sequence[str]) -> errors.ContextError:
    return errors.ContextError(
        errors.describe(
            f"A step set or deleted attributes of a {kind}: {', '.join(names)}.",
            why="The step is traced once, so a later call would not do it again, and what it sets "
            "may be a value that exists only while JAX traces.",
            fix="Change modules between steps (`model.train()`, `model.eval()`); return what a "
            "step computes, or keep it in an nnx.Variable that exists before. What a module keeps "
            "for inspection must be taken out again: `nnx.pop(model, nnx.Intermediate)`.",
        )
    )


def _within_reach(replica: Any) -> list[ModelVariable]:
    frame = current_frame()
    strategy = replica.strategy if replica is not None else None
    if strategy is None and frame is not None and frame.sees_one_copy:
        strategy = frame.strategy
    return [
        variable
        for variable in live_variables()
        if isinstance(variable, ModelVariable)
        and (strategy is None or variable.strategy is strategy)
        # Another module that holds something else is no business of this step.
        and variable.has_form(value_of(variable.part))
    ]


def _seen(access: Any, variable: ModelVariable, replica: Any) -> Any:
    """What a module holds at the level of an access."""
    if replica is None:  # An inner level sees what the one around it sees, but for its own.
        return access.values.get(variable, value_of(variable.part))
    value = peek(access, variable)
    if value is None:
        return value_of(variable.part)
    if variable.rule is Rule.KEY and replica.num_replicas_in_sync > 1:
        trace = surrounding_trace(access)
        if trace is not None:
            trace.objects[variable._owner] = None
        return _own_key(value, replica.replica_id_in_sync_group)
    return value


def _own_key(key: Any, replica: Any) -> Any:
    fold = jax.random.fold_in
    for _ in range(key.ndim):
        fold = jax.vmap(fold, in_axes=(0, None))
    return fold(key, replica)


def _combined(
    changes: Sequence[tuple[ModelVariable, Any, Any]], replica: Any
) -> Iterator[tuple[ModelVariable, Any]]:
    """What the replicas' writes mean together: two reductions at most."""
    if replica is None or replica.num_replicas_in_sync == 1:
        yield from ((variable, new) for variable, _, new in changes)
        return
    means = [(v, new) for v, _, new in changes if v.rule is Rule.MEAN]
    sums = [(v, old, new) for v, old, new in changes if v.rule is Rule.SUM_OF_CHANGES]
    if means:
        combined = replica.all_reduce("mean", [new for _, new in means], EXACT)
        yield from zip([v for v, _ in means], combined, strict=True)
    if sums:
        total = replica.all_reduce("sum", [new - old for _, old, new in sums], EXACT)
        yield from ((v, old + x) for (v, old, _), x in zip(sums, total, strict=True))
    for variable, _, new in changes:
        if variable.rule in (Rule.MIRRORED, Rule.KEY):
            yield variable, new


def _checked(variable: ModelVariable, new: Any) -> Any:
    """What was written, as an array of the variable's shape and dtype."""
    if isinstance(new, (bool, int, float, complex)):
        new = jnp.asarray(new, variable.dtype)
    if not variable.has_form(new):
        raise changed_shape(variable.name, variable._last, new)
    return new


register_objects(_Objects())
register_holder(parts)
