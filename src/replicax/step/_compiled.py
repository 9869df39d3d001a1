"""The compiled runner: `strategy.run` inside `rx.function`.

The replica function is traced once to a jaxpr, proved (`_proof`), and then becomes one
`jax.shard_map` over the mesh axis ``"replica"``. Mirrored values go in and out replicated,
per-replica values as one array ``[num_replicas, ...]`` sharded along its first axis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from replicax.collectives import LIMITS
from replicax.step._access import FunctionTrace
from replicax.step._arguments import (
    Leaf,
    check_components,
    flatten_arguments,
    stack_components,
)
from replicax.step._body import Body, Outcome, traced
from replicax.step._bound_objects import check_objects, is_object
from replicax.step._callbacks import with_caught_callbacks
from replicax.step._constant_sums import without_constant_sums
from replicax.step._joined_sums import with_joined_sums
from replicax.step._padding import Padding, check_alignment, padding_of
from replicax.step._proof import Proof, Source, prove
from replicax.step._results import combined_outputs
from replicax.step._row_count import check_row_count
from replicax.step._run_facts import Crossing, RunFacts
from replicax.step._unplaced import unplaced, without_places
from replicax.step._unused_keys import used_constants
from replicax.step._written import check_writes, describe_source
from replicax.values import (
    AXIS,
    PerReplica,
    StrategyLike,
    Variable,
    VariableAccess,
    live_variables,
    spread,
)


def run_compiled(
    strategy: StrategyLike,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    trace: FunctionTrace,
    variables: VariableAccess,
    *,
    updating: bool = False,
) -> Any:
    """Trace, prove and emit one `strategy.run`.

    Args:
        strategy: The strategy.
        fn: The replica function.
        args: Its arguments; per-replica values are unpacked.
        kwargs: Its named arguments.
        trace: The program that the run is part of.
        variables: Variables as they are seen at the place of the call.
        updating: Whether it is an `extended.update`.

    Returns:
        The function's result: mirrored parts as plain arrays, the others as `PerReplica`.

    Raises:
        VaryingWriteError: A mirrored variable is written with a value that may differ.
        VaryingControlFlowError: A collective or a Python branch depends on the replica.
        UnusedMaskError: The batch is padded, and the padding would count.
        UnprovenError: The program holds something that cannot be proved.
    """
    trace.runs_on(strategy)
    args, kwargs = spread((tuple(args), kwargs), keep=is_object)
    leaves, structure = flatten_arguments(fn, args, kwargs)
    check_objects(fn, [leaf.value for leaf in leaves], strategy)
    operands = [_operand(strategy, leaf) for leaf in leaves if leaf.is_array or leaf.is_per_replica]
    padding = padding_of(leaves)
    on_read = [v for v in live_variables() if v.is_on_read and v.strategy is strategy]
    body = Body(strategy, fn, leaves, structure, padding, variables, on_read, updating=updating)

    local = [operand.local_aval for operand in operands]
    count = strategy.num_replicas_in_sync
    local += [jax.ShapeDtypeStruct(v._copy_shape(count), v.dtype) for v in on_read]
    rows_aval = None if padding is None else jax.ShapeDtypeStruct((), jnp.int32)
    axis = (AXIS, strategy.num_replicas_in_sync)
    program = traced(body, local, rows_aval, strategy)
    began = time.perf_counter()
    outcome = body.outcome
    sent = _as_sent(program, outcome, padding, strategy)
    operands += [_copy(v, variables, count, is_used=v in outcome.used_copies) for v in on_read]
    aligned: tuple[bool | None, ...] = ()
    wider = None
    if padding is not None:
        aligned, wider = padding.row_aligned(body, local, rows_aval, program, strategy)

    proof = _proved(strategy, sent, operands, padding)
    causes = _causes(proof, outcome)
    count = len(outcome.paths)
    check_writes(outcome.written, causes[count:])
    labels = [f"result{path}" for path in outcome.paths]
    labels += [f"variable `{variable.name}`" for variable in outcome.written]
    if padding is not None:
        padding.require_mask(
            program,
            [operand.source for operand in operands],
            list(zip(labels, causes, aligned, strict=True)),
            strategy,
            mask_was_used=outcome.mask_was_used,
        )
        if wider is not None:
            check_row_count(padding.label, program, wider)
        check_alignment(outcome.paths, aligned, causes)
    proof_seconds = time.perf_counter() - began

    inputs = [operand.stacked_or_mirrored for operand in operands]
    specs = [operand.spec for operand in operands]
    if padding is not None:
        inputs.append(padding.rows)
        specs.append(PartitionSpec(AXIS))
    emitted = with_caught_callbacks(sent, trace.callbacks, axis)
    outputs = _emit(strategy, without_places(emitted, axis), inputs, specs, causes)
    trace.entries.extend(outcome.entries)
    trace.runs.append(
        RunFacts(
            function=getattr(fn, "__name__", repr(fn)),
            inputs=tuple(Crossing.of(x.label, x.local_aval, x.source) for x in operands),
            outputs=tuple(map(Crossing.of, labels, program.out_avals, causes)),
            requested=outcome.entries,
            collectives=proof.collectives,
            is_padded=padding is not None,
            jaxpr=sent.jaxpr,
            proof_seconds=proof_seconds,
        )
    )
    for (variable, site), value in zip(outcome.written.items(), outputs[count:], strict=True):
        variables.store(variable, value, site)
    is_combined = combined_outputs(program)
    for value, cause, counts_once in zip(outputs[:count], causes, is_combined, strict=False):
        if cause is None:
            trace.mirrored[id(value)] = (value, counts_once)
    return _results(outcome, outputs[:count], causes, aligned, padding, trace)


def _as_sent(
    program: Any, outcome: Outcome, padding: Padding | None, strategy: StrategyLike
) -> Any:
    """The program with fewer messages, and the same numbers."""
    count = strategy.num_replicas_in_sync
    sent = program
    if padding is None:  # Else the number of rows may be among the constants.
        sent = without_constant_sums(program, AXIS, count)
    if count > 1 and not outcome.chooses_packs:
        sent = with_joined_sums(sent, AXIS, count, LIMITS[strategy.replica_mesh.transport])
    return sent


def _causes(proof: Proof, outcome: Outcome) -> list[Source | None]:
    """Why each result and each written variable varies."""
    causes = list(proof.outputs)
    count = len(outcome.paths)
    # A sync-on-read variable has one value a replica, whether they differ or not.
    causes[count:] = [
        (cause or _OWN_VALUE) if variable.is_on_read else cause
        for variable, cause in zip(outcome.written, causes[count:], strict=True)
    ]
    return causes


def _proved(
    strategy: StrategyLike, program: Any, operands: Sequence[_Operand], padding: Padding | None
) -> Proof:
    """Why each output varies."""
    if strategy.num_replicas_in_sync == 1:  # Nothing can differ, and nothing is sent.
        return Proof((None,) * len(program.out_avals), ())
    sources = [operand.source for operand in operands]
    if padding is not None:
        sources.append(Source(f"the row count of {padding.label}", None))
    return prove(program, sources, axis_name=AXIS)


@dataclass(frozen=True)
class _Operand:
    """One array that goes into the mapped program."""

    label: str
    stacked_or_mirrored: Any  # None if the program does not use it
    local_aval: Any
    spec: PartitionSpec
    source: Source | None


def _operand(strategy: StrategyLike, leaf: Leaf) -> _Operand:
    if not leaf.is_per_replica:
        array = jnp.asarray(leaf.value)
        aval = jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=array.weak_type)
        return _Operand(leaf.label, array, aval, PartitionSpec(), None)
    value: PerReplica = leaf.value
    check_components(strategy, leaf, is_compiled=True)
    stacked = value.stacked
    if stacked is None:
        stacked = stack_components(value.values, leaf.label)
    aval = jax.ShapeDtypeStruct(stacked.shape[1:], stacked.dtype)
    return _Operand(leaf.label, stacked, aval, PartitionSpec(AXIS), Source(leaf.label, None))


_OWN_VALUE = Source("what each replica writes to its own copy", None)


def _copy(variable: Variable, variables: VariableAccess, count: int, *, is_used: bool) -> _Operand:
    """The copies of a sync-on-read variable, one a replica."""
    stacked = jnp.asarray(variables.read(variable)) if is_used else None
    aval = jax.ShapeDtypeStruct(variable._copy_shape(count), variable.dtype)
    source = Source(f"variable `{variable.name}`, which has one value a replica (ON_READ)", None)
    return _Operand(f"variable `{variable.name}`", stacked, aval, PartitionSpec(AXIS), source)


def _emit(
    strategy: StrategyLike,
    program: Any,
    inputs: Sequence[Any],
    specs: Sequence[PartitionSpec],
    causes: Sequence[Source | None],
) -> list[Any]:
    """Write the proved jaxpr into the surrounding program as a mapped one.

    Inputs that are None are not used by it.
    """
    used = [(x, spec) for x, spec in zip(inputs, specs, strict=True) if x is not None]
    are_used = used_constants(program)
    used_values = [x for x, is_used in zip(program.consts, are_used, strict=True) if is_used]

    def local_program(constants: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        rows = [
            jax.lax.squeeze(x, (0,)) if spec == PartitionSpec(AXIS) else x
            for x, (_, spec) in zip(arrays, used, strict=True)
        ]
        remaining = iter(rows)
        local = [0 if x is None else next(remaining) for x in inputs]
        given = iter(constants)
        consts = [next(given) if is_used else 0 for is_used in are_used]
        outputs = jax.core.eval_jaxpr(program.jaxpr, consts, *local)
        return [
            jax.lax.expand_dims(x, (0,)) if cause is not None else x
            for x, cause in zip(outputs, causes, strict=True)
        ]

    out_specs = [PartitionSpec(AXIS) if cause is not None else PartitionSpec() for cause in causes]
    mapped_program = jax.shard_map(
        local_program,
        mesh=strategy.replica_mesh.mesh,
        in_specs=(PartitionSpec(), [spec for _, spec in used]),
        out_specs=out_specs,
        check_vma=False,
    )
    return [unplaced(x) for x in mapped_program(used_values, [x for x, _ in used])]


def _results(
    outcome: Outcome,
    outputs: Sequence[Any],
    causes: Sequence[Source | None],
    aligned: Sequence[bool | None],
    padding: Padding | None,
    trace: FunctionTrace,
) -> Any:
    """Turn flat outputs into the user's result."""
    wrapped = []
    aligned = aligned or (False,) * len(outputs)
    for value, cause, has_rows in zip(outputs, causes, aligned, strict=False):
        if cause is None:
            wrapped.append(value)
            continue
        rows = padding.rows if padding is not None and has_rows else None
        wrapped.append(trace.per_replica(value, rows, describe_source(cause)))
    arrays = iter(wrapped)
    leaves = [next(arrays) if leaf is None else leaf for leaf in outcome.template]
    return outcome.structure.unflatten(leaves)
