"""The compiled runner: `strategy.run` inside `rx.function`.

The replica function is traced once to a jaxpr, proved (`_proof`), and then becomes one
`jax.shard_map` over the mesh axis ``"replica"``. Mirrored values go in and out replicated,
per-replica values as one array ``[num_replicas, ...]`` sharded along its first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from replicax import errors
from replicax.collectives import Entry, ReduceOp, mapped
from replicax.collectives._sites import site_of_traceback
from replicax.step._access import FunctionTrace, TracedVariables, require_same_strategy
from replicax.step._arguments import (
    Leaf,
    check_components,
    flatten_arguments,
    stack_components,
)
from replicax.step._context import Collective, ReplicaContext
from replicax.step._padding import Padding, check_alignment, padding_of
from replicax.step._proof import Source, prove
from replicax.step._rows import LocalRows
from replicax.values import AXIS, Frame, PerReplica, StrategyLike, Variable, entered


class ReplicaVariables(TracedVariables):
    """Variables as a traced replica function sees them."""

    def __init__(self, parent: FunctionTrace, strategy: StrategyLike) -> None:
        super().__init__(parent)
        self._strategy = strategy

    def read(self, variable: Variable) -> jax.Array:
        """Return this replica's copy."""
        require_same_strategy(variable, self._strategy, "read")
        return super().read(variable)

    def store(self, variable: Variable, value: Any, call_site: errors.CallSite | None) -> None:
        """Record a write on this replica."""
        require_same_strategy(variable, self._strategy, "written")
        super().store(variable, value, call_site)


class CompiledReplicaContext(ReplicaContext):
    """The replica context while a replica function is traced."""

    def __init__(
        self,
        strategy: StrategyLike,
        rows: LocalRows,
        variables: ReplicaVariables,
        entries: list[Entry],
    ) -> None:
        super().__init__(strategy, rows)
        self._variables = variables
        self._entries = entries

    @property
    def replica_id_in_sync_group(self) -> jax.Array:
        """i32[], traced."""
        # Not kept: the same tracer must not appear at several levels of tracing.
        return jax.lax.axis_index(AXIS)

    def _communicate(self, collective: Collective, leaves: Sequence[Any]) -> list[Any]:
        where: dict[str, Any] = {"axis_name": AXIS, "num_replicas": self.num_replicas_in_sync}
        match collective.kind:
            case "all_reduce":
                assert collective.op is not None
                results = mapped.all_reduce(
                    collective.op, leaves, options=collective.options, **where
                )
            case "all_gather":
                results = [mapped.all_gather(x, collective.axis, **where) for x in leaves]
            case "reduce_scatter":
                assert collective.op is not None
                results = [
                    mapped.reduce_scatter(collective.op, x, collective.axis, **where)
                    for x in leaves
                ]
            case _:
                results = [mapped.broadcast(x, collective.source, **where) for x in leaves]
        self._record(collective, [jnp.asarray(leaf) for leaf in leaves])
        return results

    def _record(self, collective: Collective, arrays: Sequence[jax.Array]) -> None:
        keys = self.strategy.collective_keys
        group = self.strategy.group_key
        self._entries.append(
            Entry(
                group_key=group,
                instance_key=keys.instance_key(group),
                kind=collective.kind,
                op=collective.op.name if collective.op is not None else None,
                dtypes=tuple(str(array.dtype) for array in arrays),
                shapes=tuple(array.shape for array in arrays),
                call_site=errors.call_site(),
            )
        )

    def _merge(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        def outwards(leaf: Any) -> Any:
            return PerReplica.from_local(leaf) if isinstance(leaf, jax.Array) else leaf

        def inwards(leaf: Any) -> Any:
            if not isinstance(leaf, PerReplica):
                return leaf
            if leaf.local is not None:
                return leaf.local
            return jnp.stack(leaf.values)[self.replica_id_in_sync_group]

        args, kwargs = jax.tree.map(outwards, (args, kwargs))
        with entered(Frame(self.strategy, access=self._variables, merging=self)):
            result = merge_fn(self.strategy, *args, **kwargs)
        return jax.tree.map(inwards, result, is_leaf=lambda x: isinstance(x, PerReplica))

    def reduce_local(self, op: ReduceOp, local: Any, axes: tuple[int, ...]) -> Any:
        """Reduce a per-replica value of a merge call, and ``axes`` of its components."""
        if axes:
            over = {ReduceOp.MAX: jnp.max, ReduceOp.MIN: jnp.min, ReduceOp.SUM: jnp.sum}
            local = over.get(op, jnp.mean)(local, axis=axes)
        return self._communicate(Collective("all_reduce", op=op), [local])[0]

    def gather_local(self, local: Any, axis: int) -> Any:
        """Concatenate a per-replica value of a merge call."""
        return self._communicate(Collective("all_gather", axis=axis), [local])[0]


@dataclass
class _Outcome:
    """What tracing the replica function brought, besides its jaxpr."""

    structure: Any = None
    template: tuple[Any, ...] = ()  # result leaves; arrays are None
    paths: tuple[str, ...] = ()  # of the result's array leaves
    written: dict[Variable, errors.CallSite | None] | None = None
    mask_was_used: bool = False
    entries: tuple[Entry, ...] = ()


class _Body:
    """The replica function on flat lists of local arrays."""

    def __init__(
        self,
        strategy: StrategyLike,
        fn: Callable[..., Any],
        leaves: Sequence[Leaf],
        structure: Any,
        padding: Padding | None,
        surrounding: FunctionTrace,
    ) -> None:
        self.strategy, self.fn, self.leaves, self.structure = strategy, fn, leaves, structure
        self.padding, self.surrounding = padding, surrounding
        self.outcome = _Outcome()

    def __call__(self, arrays: Sequence[jax.Array], real_rows: jax.Array | None) -> list[Any]:
        """Run the function on tracers; the outputs are result arrays, then written variables."""
        remaining = iter(arrays)
        inputs = [
            next(remaining) if leaf.is_array or leaf.is_per_replica else leaf.value
            for leaf in self.leaves
        ]
        capacity = None
        if self.padding is not None:
            capacity = arrays[self.padding.position].shape[0]
        rows = LocalRows(capacity, real_rows)
        variables = ReplicaVariables(self.surrounding, self.strategy)
        entries: list[Entry] = []
        context = CompiledReplicaContext(self.strategy, rows, variables, entries)
        args, kwargs = self.structure.unflatten(inputs)
        with entered(Frame(self.strategy, replica=context, access=variables)):
            result = self.fn(*args, **kwargs)
        with_paths, structure = jax.tree_util.tree_flatten_with_path(
            result, is_leaf=lambda x: isinstance(x, (Variable, PerReplica))
        )
        values = [_result_leaf(path, leaf) for path, leaf in with_paths]
        arrays_out = [value for value in values if isinstance(value, jax.Array)]
        self.outcome = _Outcome(
            structure,
            tuple(None if isinstance(value, jax.Array) else value for value in values),
            tuple(
                jax.tree_util.keystr(path)
                for (path, _), value in zip(with_paths, values, strict=True)
                if isinstance(value, jax.Array)
            ),
            dict(variables.stored),
            rows.mask_was_used,
            tuple(entries),
        )
        return arrays_out + [variables.values[variable] for variable in variables.stored]


def _result_leaf(path: Any, leaf: Any) -> Any:
    if isinstance(leaf, PerReplica):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"The replica function returned {leaf!r} at `result{jax.tree_util.keystr(path)}`.",
                why="In replica context a replica holds its own component only.",
                fix="Return the component.",
            )
        )
    if isinstance(leaf, Variable):
        return leaf.value
    return jnp.asarray(leaf) if hasattr(leaf, "dtype") else leaf


def run_compiled(
    strategy: StrategyLike,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    trace: FunctionTrace,
) -> Any:
    """Trace, prove and emit one `strategy.run`.

    Args:
        strategy: The strategy.
        fn: The replica function.
        args: Its arguments; per-replica values are unpacked.
        kwargs: Its named arguments.
        trace: The program that the run is part of.

    Returns:
        The function's result: mirrored parts as plain arrays, the others as `PerReplica`.

    Raises:
        VaryingWriteError: A mirrored variable is written with a value that may differ.
        VaryingControlFlowError: A collective or a Python branch depends on the replica.
        UnusedMaskError: The batch is padded, and the padding would count.
        UnprovenError: The program holds something that cannot be proved.
    """
    trace.runs_on(strategy)
    leaves, structure = flatten_arguments(fn, args, kwargs)
    operands = [_operand(strategy, leaf) for leaf in leaves if leaf.is_array or leaf.is_per_replica]
    padding = padding_of(leaves)
    body = _Body(strategy, fn, leaves, structure, padding, trace)
    single = strategy.num_replicas_in_sync == 1

    local = [operand.local_aval for operand in operands]
    rows_aval = None if padding is None else jax.ShapeDtypeStruct((), jnp.int32)
    program = _traced(body, local, rows_aval, strategy)
    outcome = body.outcome
    aligned: tuple[bool | None, ...] = ()
    if padding is not None:
        aligned = padding.row_aligned(body, local, rows_aval, program, strategy)

    sources = [None if single else operand.source for operand in operands]
    if padding is not None:
        sources.append(Source(f"the row count of {padding.label}", None))
    proof = prove(program, sources, axis_name=AXIS)
    causes = [None] * len(proof.outputs) if single else list(proof.outputs)
    _check_writes(outcome, causes)
    if padding is not None:
        if not outcome.mask_was_used:
            padding.require_mask(outcome.paths, aligned, causes, outcome.written or {}, proof)
        check_alignment(outcome.paths, aligned, causes)

    inputs = [operand.stacked_or_mirrored for operand in operands]
    specs = [operand.spec for operand in operands]
    if padding is not None:
        inputs.append(padding.rows)
        specs.append(PartitionSpec(AXIS))
    outputs = _emit(strategy, program, inputs, specs, causes)
    trace.entries.extend(outcome.entries)
    return _results(strategy, outcome, outputs, causes, aligned, padding, trace)


@dataclass(frozen=True)
class _Operand:
    """One array that goes into the mapped program."""

    stacked_or_mirrored: Any
    local_aval: Any
    spec: PartitionSpec
    source: Source | None


def _operand(strategy: StrategyLike, leaf: Leaf) -> _Operand:
    if not leaf.is_per_replica:
        array = jnp.asarray(leaf.value)
        aval = jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=array.weak_type)
        return _Operand(array, aval, PartitionSpec(), None)
    value: PerReplica = leaf.value
    check_components(strategy, leaf)
    stacked = value.stacked
    if stacked is None:
        stacked = stack_components(value.values, leaf.label)
    aval = jax.ShapeDtypeStruct(stacked.shape[1:], stacked.dtype)
    return _Operand(stacked, aval, PartitionSpec(AXIS), Source(leaf.label, None))


def _traced(body: _Body, local: Sequence[Any], rows_aval: Any, strategy: StrategyLike) -> Any:
    """The jaxpr of the replica function."""
    axis_env = [(AXIS, strategy.num_replicas_in_sync)]
    try:
        return jax.make_jaxpr(body, axis_env=axis_env)(list(local), rows_aval)
    except jax.errors.TracerBoolConversionError as error:
        raise _python_branch(error, body.fn) from error


def _python_branch(error: Exception, fn: Callable[..., Any]) -> errors.VaryingControlFlowError:
    site = site_of_traceback(error.__traceback__)
    return errors.VaryingControlFlowError(
        errors.describe(
            f"Python branched on a traced value in `{getattr(fn, '__name__', fn)}`"
            + (f" at {site}." if site is not None else "."),
            why="In rx.function the function is traced once for all replicas: the replica id and "
            "the data have no value yet, and a branch that differs between replicas could leave "
            "some of them waiting in a collective.",
            fix="Use `jnp.where` (compute both sides) or `jax.lax.cond` without collectives in its "
            "branches; or call the step outside of `rx.function`, where Python control flow works.",
        )
    )


def _check_writes(outcome: _Outcome, causes: Sequence[Source | None]) -> None:
    """Refuse varying writes to mirrored variables."""
    written = outcome.written or {}
    bad = [
        (variable, site, cause)
        for (variable, site), cause in zip(
            written.items(), causes[len(outcome.paths) :], strict=True
        )
        if cause is not None
    ]
    if not bad:
        return
    names = ", ".join(f"`{variable.name}`" for variable, _, _ in bad[:5])
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    rows = [
        (v.name, site if site is not None else "?", describe_source(cause))
        for v, site, cause in bad[:20]
    ]
    raise errors.VaryingWriteError(
        errors.describe(
            f"Mirrored variable {names}{more} is written with a value that may differ between "
            "replicas.",
            table=errors.Table(("variable", "written at", "varies because it depends on"), rows),
            why="Each replica would keep a weight of its own. Most often a gradient was not "
            "all-reduced.",
            fix="Combine the value first: `ctx.all_reduce('mean', value)` for gradients, or give "
            "the variable an aggregation (`rx.Variable(..., aggregation='mean')`).",
        )
    )


def describe_source(source: Source) -> str:
    """Say why a value varies, with the line if it is known."""
    at = f" at {source.call_site}" if source.call_site is not None else ""
    return source.description + at


def _emit(
    strategy: StrategyLike,
    program: Any,
    inputs: Sequence[Any],
    specs: Sequence[PartitionSpec],
    causes: Sequence[Source | None],
) -> list[Any]:
    """Write the proved jaxpr into the surrounding program as a mapped one."""

    def local_program(constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        local = [
            jax.lax.squeeze(x, (0,)) if spec == PartitionSpec(AXIS) else x
            for x, spec in zip(inputs, specs, strict=True)
        ]
        outputs = jax.core.eval_jaxpr(program.jaxpr, constants, *local)
        return [
            jax.lax.expand_dims(x, (0,)) if cause is not None else x
            for x, cause in zip(outputs, causes, strict=True)
        ]

    out_specs = [PartitionSpec(AXIS) if cause is not None else PartitionSpec() for cause in causes]
    mapped_program = jax.shard_map(
        local_program,
        mesh=strategy.replica_mesh.mesh,
        in_specs=(PartitionSpec(), list(specs)),
        out_specs=out_specs,
        check_vma=False,
    )
    outputs: list[Any] = mapped_program(list(program.consts), list(inputs))
    return outputs


def _results(
    strategy: StrategyLike,
    outcome: _Outcome,
    outputs: Sequence[Any],
    causes: Sequence[Source | None],
    aligned: Sequence[bool | None],
    padding: Padding | None,
    trace: FunctionTrace,
) -> Any:
    """Turn flat outputs into the user's result, and write variables back."""
    count = len(outcome.paths)
    for (variable, site), value in zip(
        (outcome.written or {}).items(), outputs[count:], strict=True
    ):
        trace.store(variable, value, site)
    wrapped = []
    aligned = aligned or (False,) * count
    for value, cause, has_rows in zip(outputs[:count], causes, aligned, strict=False):
        if cause is None:
            trace.mirrored[id(value)] = value
            wrapped.append(value)
            continue
        rows = padding.rows if padding is not None and has_rows else None
        wrapped.append(trace.per_replica(value, rows, describe_source(cause)))
    arrays = iter(wrapped)
    leaves = [next(arrays) if leaf is None else leaf for leaf in outcome.template]
    return outcome.structure.unflatten(leaves)
