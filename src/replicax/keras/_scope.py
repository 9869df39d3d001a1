"""Keras objects inside of steps: what they read and write goes through the step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import keras

from replicax import errors
from replicax.collectives import EXACT
from replicax.keras import _compat
from replicax.keras._distribution import distribution_of
from replicax.keras._lifted import LiftedVariable, lift
from replicax.keras._rules import Rule
from replicax.step._access import TracedVariables
from replicax.values import Frame
from replicax.values._workers import common_value

# An odd number, so that the seeds of 2**32 replicas differ; replica 0 keeps its own.
_STRIDE = 0x9E3779B1


class StepScope(keras.StatelessScope):  # type: ignore[misc] # Keras has no types
    """Has Keras variables read and written in a context.

    Args:
        frame: The context, which has an access to variables.
    """

    def __init__(self, frame: Frame) -> None:
        self._owners: list[tuple[Any, Any]] = []
        super().__init__(collect_losses=True, initialize_variables=False)
        self._frame = frame

    @property
    def losses(self) -> list[Any]:
        """What layers added in this scope.

        A layer remembers which losses are its own. In the eager runner all replicas share the
        layer, and the others have made it forget those of this one in the meantime.
        """
        for layer, loss in self._owners:
            _compat.remember_loss(layer, loss)
        return self._losses

    @losses.setter
    def losses(self, losses: list[Any]) -> None:
        self._losses = losses

    def add_loss(self, loss: Any) -> None:
        """Note a loss of a layer, such as that of an activity regulariser."""
        layer = _compat.layer_of_this_loss()
        if layer is not None:
            self._owners.append((layer, loss))
        self._losses.append(loss)

    def get_current_value(self, variable: Any) -> Any:
        """What the context sees of a variable."""
        if _compat.array_of(variable) is None and _compat.is_uninitialized(variable):
            self._initialize(variable)
        lifted = lift(variable, self._frame)
        self._check(lifted)
        access: Any = self._frame.access
        value = access.read(lifted)
        replica: Any = self._frame.replica
        if replica is None or lifted.rule not in (Rule.SHARES, Rule.SEED):
            return value
        if _is_written(lifted, access):
            return value
        return _start_of_replica(lifted.rule, value, replica.replica_id_in_sync_group)

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Write a variable in the context."""
        variable, value = update
        if _compat.array_of(variable) is None and _compat.is_uninitialized(variable):
            self._initialize(variable)
        lifted = lift(variable, self._frame)
        self._check(lifted)
        access: Any = self._frame.access
        access.store(lifted, jnp.asarray(value), errors.call_site())

    def _initialize(self, variable: Any) -> None:
        """Give variables that a layer or an optimizer has just created their values."""
        strategy: Any = self._frame.strategy
        waiting = [v for v in _compat.take_uninitialized() if _compat.is_uninitialized(v)]
        if all(v is not variable for v in waiting):
            waiting.append(variable)  # Another replica's thread created it.
        for each in waiting:
            if strategy is None:
                _compat.initialize(each, lambda value: value, None)
            else:
                place = functools.partial(_placed, strategy.replica_mesh, each.path)
                layout = distribution_of(strategy).get_variable_layout(each)
                _compat.initialize(each, place, layout)

    def _check(self, lifted: LiftedVariable) -> None:
        if self._frame.replica is not None and lifted.strategy is not self._frame.strategy:
            raise _not_in_scope(lifted, self._frame.strategy)


def _placed(mesh: Any, name: str, value: Any) -> Any:
    """A first value on the replicas; that of worker 0 where there are several."""
    if mesh.spans_processes:
        value = common_value(mesh, name, value)
    return mesh.place_mirrored(value)


def _is_written(lifted: LiftedVariable, access: Any) -> bool:
    """Whether a replica has written the variable in this run."""
    while access is not None:
        stored = getattr(access, "stored", {})
        if lifted in stored:
            return True
        # What surrounds the replica function is no part of the run.
        access = access.parent if type(access) is TracedVariables else None
    return False


def _start_of_replica(rule: Rule, value: Any, replica: Any) -> Any:
    """What a replica starts from: its share of a sum, or a seed of its own."""
    if rule is Rule.SHARES:
        return jnp.where(jnp.asarray(replica) == 0, value, jnp.zeros_like(value))
    first = jnp.asarray([1, 0], value.dtype)
    stride = jnp.asarray(_STRIDE, jnp.uint32).astype(value.dtype)
    return value + first * (stride * jnp.asarray(replica).astype(value.dtype))


@contextlib.contextmanager
def inside_step(frame: Frame) -> Iterator[None]:
    """Keras in a step; at the end of a replica function, what replicas wrote becomes one value."""
    with StepScope(frame):
        yield
        if frame.replica is not None and type(frame.access) is not TracedVariables:
            _combine(frame)


def _combine(frame: Frame) -> None:
    access: Any = frame.access
    replica: Any = frame.replica
    stored = dict(getattr(access, "stored", {}))
    by_rule: dict[Rule, list[LiftedVariable]] = {}
    for variable in stored:
        if isinstance(variable, LiftedVariable) and variable.rule is not None:
            rule = Rule.FIRST if variable.rule is Rule.SEED else variable.rule
            by_rule.setdefault(rule, []).append(variable)
    for rule in (Rule.SHARES, Rule.MEAN, Rule.FIRST):
        variables = by_rule.get(rule, [])
        if not variables:
            continue
        values = [access.read(variable) for variable in variables]
        if rule is Rule.FIRST:
            values = replica.broadcast(values)
        else:
            values = replica.all_reduce("sum" if rule is Rule.SHARES else "mean", values, EXACT)
        for variable, value in zip(variables, values, strict=True):
            access.store(variable, value, stored[variable])


def _not_in_scope(lifted: LiftedVariable, strategy: Any) -> errors.MixedStrategiesError:
    array = lifted._value
    where = ", ".join(sorted(str(d) for d in array.devices()))
    return errors.MixedStrategiesError(
        errors.describe(
            f"Keras variable `{lifted.name}` was used in a replica of {strategy.name}, but it was "
            "created outside of the strategy's scope.",
            table=errors.Table(("variable", "lies on"), [(lifted.name, where)]),
            why="It has one copy, and the replicas would have none of their own.",
            fix="Create the model, its optimizer and its metrics under `with strategy.scope():`; "
            "or bring over what exists: `with strategy.scope(): rx.keras.adopt(model)`.",
        )
    )
