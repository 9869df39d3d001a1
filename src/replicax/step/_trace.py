"""One trace of an `rx.function`: from a Python function to a jaxpr and what surrounds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import Entry
from replicax.step._access import FunctionTrace
from replicax.step._bound_objects import bound
from replicax.step._callbacks import Callbacks, with_caught_callbacks
from replicax.step._in_reach import lift_in_reach
from replicax.step._run_facts import RunFacts
from replicax.values import (
    Frame,
    Mirrored,
    PerReplica,
    StrategyLike,
    Variable,
    _deferred,
    current_frame,
    entered,
    live_variables,
)
from replicax.values._imagined import imagined_mesh


@dataclass(frozen=True)
class Traced:
    """A traced function.

    Attributes:
        jaxpr: Inputs are the values of `variables`, then the argument leaves; outputs are the
            values of `written`, then the result leaves.
        variables: Every variable that the trace could have used.
        used: Those that it read or wrote.
        written: Those that it wrote, in the order of the first write.
        result: The structure of the result.
        form: The result with shapes for leaves.
        created: Those that were created, which are constants in the jaxpr.
        strategy: The strategy whose replicas it runs on, or None.
        entries: The collectives that the replica functions asked for, in order.
        runs: The runs of replica functions, in order.
        callbacks: The host callbacks.
        objects: Objects of model libraries that may change how it would be traced, though it
            reads none of their variables.
        seconds: How long it took.
    """

    jaxpr: Any
    variables: tuple[Variable, ...]
    used: frozenset[Variable]
    written: tuple[Variable, ...]
    created: tuple[Variable, ...]
    result: Any
    form: Any
    strategy: StrategyLike | None
    entries: tuple[Entry, ...]
    runs: tuple[RunFacts, ...]
    callbacks: Callbacks
    objects: tuple[Any, ...]
    seconds: float

    def evaluate(self, values: dict[Variable, Any], leaves: Sequence[Any]) -> tuple[list[Any], Any]:
        """Emit the program into the current trace.

        Args:
            values: Values of the used variables.
            leaves: The argument leaves.

        Returns:
            The new values of `written`, and the result.
        """
        # Variables that are not used have no effect: any placeholder will do.
        inputs = [values.get(variable, 0) for variable in self.variables]
        outputs = jax.core.eval_jaxpr(self.jaxpr.jaxpr, self.jaxpr.consts, *inputs, *leaves)
        count = len(self.written)
        return outputs[:count], self.result.unflatten(outputs[count:])


def trace(
    fn: Callable[..., Any],
    structure: Any,
    leaves: Sequence[Any],
    *,
    function_id: int,
) -> Traced:
    """Trace ``fn`` on the shapes of ``leaves``, with all living variables within reach.

    Args:
        fn: The user's function.
        structure: Structure of `(args, kwargs)`.
        leaves: The argument leaves, or tracers for them.
        function_id: Marks per-replica results as coming from this function.
    """
    began = time.perf_counter()
    _deferred.settle()
    lift_in_reach(fn)
    variables = tuple(live_variables())
    facts: dict[str, Any] = {}

    def flat(values: list[Any], leaves: list[Any]) -> list[Any]:
        access = FunctionTrace(dict(zip(variables, values, strict=True)), function_id)
        frame = current_frame()
        strategy = frame.strategy if frame is not None else None
        args, kwargs = structure.unflatten(leaves)
        with entered(Frame(strategy, access=access)), bound(access):
            result = plain_result(fn(*args, **kwargs), access)
        _check_variables(access)
        result_leaves, result_structure = jax.tree.flatten(result)
        # Facts only: what holds a tracer must not outlive the trace.
        facts.update(
            used=frozenset(access.used),
            created=tuple(access.created),
            written=tuple(access.stored),
            result=result_structure,
            form=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), result),
            strategy=access.strategy or _strategy_of(access.used),
            entries=tuple(access.entries),
            runs=tuple(access.runs),
            callbacks=access.callbacks,
            objects=tuple(access.objects),
        )
        return [access.values[variable] for variable in access.stored] + result_leaves

    avals = [_state(variable) for variable in variables]
    jaxpr = jax.make_jaxpr(flat)(avals, list(leaves))
    _note_use_of_objects(jaxpr.jaxpr, variables, facts)
    jaxpr = with_caught_callbacks(jaxpr, facts["callbacks"], None)
    seconds = time.perf_counter() - began
    return Traced(jaxpr=jaxpr, variables=variables, seconds=seconds, **facts)


def _state(variable: Variable) -> Any:
    mesh = imagined_mesh(variable.strategy)
    if mesh is None or not variable.is_on_read:
        return variable._aval
    return jax.ShapeDtypeStruct(
        (mesh.num_replicas, *variable._copy_shape(mesh.num_replicas)), variable.dtype
    )


def _note_use_of_objects(jaxpr: Any, variables: Sequence[Variable], facts: dict[str, Any]) -> None:
    """Parts of objects are read without being asked for: the jaxpr tells whether they were."""
    parts = {
        invar: variable
        for invar, variable in zip(jaxpr.invars, variables, strict=False)
        if variable._owner is not None
    }
    if not parts:
        return
    taken = [x for equation in jaxpr.eqns for x in equation.invars] + list(jaxpr.outvars)
    used = {parts[x] for x in taken if not hasattr(x, "val") and x in parts}
    facts["used"] |= used
    facts["strategy"] = facts["strategy"] or _strategy_of(used)


def _check_variables(access: FunctionTrace) -> None:
    """Check that the variables of a function belong to the strategy that it runs on."""
    owners = {variable.strategy for variable in access.used}
    if access.strategy is not None:
        owners.add(access.strategy)
    if len(owners) <= 1:
        return
    rows = [
        (v.name, v.strategy.name if v.strategy is not None else "none: made outside of a scope")
        for v in sorted(access.used, key=lambda v: v.name)
    ]
    runs = f" It runs on the replicas of {access.strategy.name}." if access.strategy else ""
    raise errors.MixedStrategiesError(
        errors.describe(
            f"One rx.function uses variables of several strategies.{runs}",
            table=errors.Table(("variable", "strategy"), rows),
            why="It becomes one program over the devices of one strategy.",
            fix="Create all variables under `with strategy.scope():` of the strategy that runs.",
        )
    )


def _strategy_of(variables: set[Variable]) -> StrategyLike | None:
    return next((variable.strategy for variable in variables), None)


def plain_result(result: Any, access: FunctionTrace) -> Any:
    """Unwrap mirrored values and variables, and fix how results lie on the devices."""
    structure: Any
    with_paths, structure = jax.tree_util.tree_flatten_with_path(
        result, is_leaf=lambda value: isinstance(value, (PerReplica, Mirrored, Variable))
    )
    mesh = access.strategy.replica_mesh if access.strategy is not None else None
    leaves = []
    for path, leaf in with_paths:
        value = leaf
        if isinstance(value, (Mirrored, Variable)):
            value = value.value
        if isinstance(value, PerReplica):
            if mesh is not None and value.stacked is not None:
                value = jax.tree.map(
                    lambda x: jax.lax.with_sharding_constraint(x, mesh.stacked), value
                )
            leaves.append(value)
            continue
        if not isinstance(value, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"An rx.function returned {value!r} at `result{jax.tree_util.keystr(path)}`.",
                    why="A compiled step returns arrays and numbers, in any structure.",
                    fix="Return it from a plain Python function around the step.",
                )
            )
        array = jnp.asarray(value)
        if mesh is not None and not jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.lax.with_sharding_constraint(array, mesh.mirrored)
        leaves.append(array)
    return structure.unflatten(leaves)
