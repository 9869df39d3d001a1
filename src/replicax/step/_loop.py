"""Several steps as a loop of the compiled program.

A step is traced once, as a function of its state, of all variables and of its batches; what it
writes and uses is then read off the trace. So it can become the body of a loop that carries the
state and the written variables, without tracing the user's code again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.step._access import FunctionTrace, TracedVariables
from replicax.step._bound_objects import bound
from replicax.step._state import check_returned_state, split_off_state
from replicax.step._trace import plain_result
from replicax.values import PerReplica, Variable, VariableAccess, current_frame, entered

Step = Callable[[dict[str, Any], Sequence[Any]], Any]


class Loop:
    """The steps of one call.

    Args:
        trace: The program that they are part of.
        step: Runs one step: a function of the state, by name, and its batches.
        state: What goes from step to step, by the name of its argument.
        check: Looks at what the first step returned.
        name: Name of the function, for messages.
    """

    def __init__(
        self,
        trace: FunctionTrace,
        step: Step,
        state: Mapping[str, Any],
        check: Callable[[Any], None],
        name: str,
    ) -> None:
        self._trace, self._step, self._check, self._name = trace, step, check, name
        self._structure: Any
        self._names = tuple(state)
        leaves, self._structure = jax.tree.flatten(tuple(state.values()))
        # A Python number is one in the first step only.
        self._state = [_strong(leaf) for leaf in leaves]
        self._stretches: list[tuple[_Body, list[Any]]] = []
        trace.callbacks.count_calls()

    def run(self, batches: Sequence[Any], count: int) -> None:
        """Run `count` steps on batches `[num_replicas, count, B, ...]`."""
        body = self._traced(batches)
        access = self._trace
        written = list(body.sites)
        start = [access.read(variable) for variable in written]
        read = {v: access.read(v) for v in body.used if v not in body.sites}
        leaves = jax.tree.leaves(batches)

        def one(carry: Any, number: Any) -> Any:
            state, values = carry
            here = {**read, **dict(zip(written, values, strict=True))}
            rows = [jax.lax.dynamic_index_in_dim(x, number, 1, keepdims=False) for x in leaves]
            # Variables that are not used have no effect: any placeholder will do.
            inputs = [*state, *(here.get(v, 0) for v in body.variables), *rows]
            outputs = jax.core.eval_jaxpr(body.jaxpr.jaxpr, body.jaxpr.consts, *inputs)
            state, values, rest = _cut(outputs, len(state), len(written))
            return ([_strong(x) for x in state], values), rest

        carry, results = jax.lax.scan(one, (self._state, start), jnp.arange(count))
        self._state, values = carry
        for variable, value in zip(written, values, strict=True):
            access.store(variable, value, body.sites[variable])
        self._stretches.append((body, results))

    def result(self) -> Any:
        """What the call returns: state as it is at the end, and the other results of all steps.

        Mirrored results are `[steps, ...]`, per-replica ones `[num_replicas, steps, ...]`.

        Raises:
            InvalidArgumentError: The results of the steps differ in structure or shape, or have one
                entry a row of a padded batch.
        """
        body, _ = self._stretches[0]
        joined = []
        for i, result in enumerate(body.results):
            self._check_alike(i)
            axis = 0 if result.provenance is None else 1
            parts = [ys[i] if axis == 0 else jnp.moveaxis(ys[i], 0, 1) for _, ys in self._stretches]
            value: Any = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)
            if result.provenance is not None:
                value = PerReplica.from_stacked(value, None, result.provenance)
            joined.append(value)
        state = self._structure.unflatten(self._state)
        return body.joined(list(state), body.structure.unflatten(joined))

    def _check_alike(self, number: int) -> None:
        """Check that a result can be stacked over the steps."""
        first = self._stretches[0][0]
        for body, _ in self._stretches:
            is_one_tree = body.structure == first.structure
            one = body.results[number] if is_one_tree else None
            if one is not None and one.form == first.results[number].form and not one.is_padded:
                continue
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"`result{first.results[number].path}` of `{self._name}` cannot be stacked "
                    "over the steps of a call.",
                    why="It has one entry a row, and batches have different numbers of rows."
                    if is_one_tree
                    else "The steps of this call return different trees.",
                    fix="Reduce it in the step, as with `ctx.global_mean` or `ctx.global_sum`; "
                    "use `rx.InputOptions(remainder='drop')`; or leave `steps_per_execution` out.",
                )
            )

    def _traced(self, batches: Sequence[Any]) -> _Body:
        """One step as a jaxpr of flat lists: state, variables, batches."""
        frame = current_frame()
        assert frame is not None  # noqa: S101 - a function is being traced
        outer: VariableAccess = self._trace
        variables = tuple(self._trace.values)
        of_batches: Any
        stacked, of_batches = jax.tree.flatten(batches)
        facts: dict[str, Any] = {}

        def flat(state: list[Any], values: list[Any], rows: list[Any]) -> list[Any]:
            overlay = TracedVariables(outer, dict(zip(variables, values, strict=True)))
            given = dict(zip(self._names, self._structure.unflatten(state), strict=True))
            with entered(dataclasses.replace(frame, access=overlay)), bound(overlay):
                self._trace.taking = overlay
                try:
                    result = self._step(given, of_batches.unflatten(rows))
                finally:
                    self._trace.taking = None
                result = plain_result(result, self._trace)
            new, rest, joined = self._parted(given, result)
            leaves, structure, results = _flatten(rest)
            facts.update(
                structure=structure, results=results, joined=joined, sites=dict(overlay.stored)
            )
            return [*new, *(overlay.values[v] for v in overlay.stored), *leaves]

        rows = [jax.ShapeDtypeStruct((x.shape[0], *x.shape[2:]), x.dtype) for x in stacked]
        values = [self._trace.values[variable] for variable in variables]
        jaxpr = jax.make_jaxpr(flat)(self._state, values, rows)
        given = jaxpr.jaxpr.invars[len(self._state) :][: len(variables)]
        taken = [x for equation in jaxpr.jaxpr.eqns for x in equation.invars]
        found = {x for x in [*taken, *jaxpr.jaxpr.outvars] if not hasattr(x, "val")}
        used = [v for v, invar in zip(variables, given, strict=True) if invar in found]
        return _Body(jaxpr=jaxpr, variables=variables, used=used, **facts)

    def _parted(self, state: dict[str, Any], result: Any) -> tuple[list[Any], Any, Any]:
        """The leaves of the new state, what else was returned, and how both become one again."""
        names = list(state)
        check_returned_state(list(state.values()), result, names, names, self._name)
        if not self._stretches:
            self._check(result)
        new, rest, joined = split_off_state(state, result, self._name)
        return jax.tree.leaves(new), rest, joined


@dataclasses.dataclass(frozen=True)
class _Result:
    """One result of a step: a leaf of its tree, or a per-replica value."""

    path: str
    form: Any
    provenance: Any
    is_padded: bool


@dataclasses.dataclass(frozen=True)
class _Body:
    """One traced step.

    Attributes:
        jaxpr: From state, values of `variables` and batches to state, values of `sites`, results.
        variables: Every variable that it could have used.
        used: Those whose values it uses.
        sites: Those that it wrote, and where.
        structure: The tree of its results, per-replica values being leaves.
        results: What is known of each.
        joined: Makes one result of the new state and the results.
    """

    jaxpr: Any
    variables: tuple[Variable, ...]
    used: list[Variable]
    sites: dict[Variable, Any]
    structure: Any
    results: list[_Result]
    joined: Callable[[list[Any], Any], Any]


def _flatten(tree: Any) -> tuple[list[Any], Any, list[_Result]]:
    """The arrays of a step's results, their tree, and what is known of each."""
    structure: Any
    with_paths, structure = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: isinstance(x, PerReplica)
    )
    leaves, results = [], []
    for path, value in with_paths:
        is_varying = isinstance(value, PerReplica)
        array = value.stacked if is_varying else value
        provenance = value.provenance if is_varying else None
        is_padded = is_varying and value.rows is not None
        form = (array.shape, array.dtype, is_varying)
        leaves.append(array)
        results.append(_Result(jax.tree_util.keystr(path), form, provenance, is_padded))
    return leaves, structure, results


def _cut(outputs: list[Any], first: int, second: int) -> tuple[list[Any], list[Any], list[Any]]:
    return outputs[:first], outputs[first : first + second], outputs[first + second :]


def _strong(value: Any) -> jax.Array:
    """An array whose dtype is fixed, also where a Python number was given."""
    array = jnp.asarray(value)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return array
    return jax.lax.convert_element_type(array, array.dtype)
