"""`explain`: from a step and its arguments to what there is to know of its programs."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from replicax import _compilation_cache
from replicax.collectives import (
    WIRE_BYTES,
    Entry,
    ReduceOp,
    collectives_in,
    is_narrow,
    looking_ahead,
)
from replicax.errors import ContextError, InvalidArgumentError, describe
from replicax.input import DistributedIterator, InputPlan
from replicax.step import Function, function
from replicax.step._looking import ArgumentFacts, Look, look
from replicax.step._methods import BoundFunction
from replicax.step._run_facts import Crossing, RunFacts
from replicax.values import Variable
from replicax.values._imagined import imagined

from ._costs import Fabric
from ._explanation import Explanation, Memory, Pack, Program, Request, Sent, Value
from ._reasons import reasons

_KEY_BYTES = 8


def explain(
    step: Function | Callable[..., Any],
    *args: Any,
    replicas: int | None = None,
    remainder: bool | None = None,
    fabric: Fabric | None = None,
    compute_seconds: float | None = None,
    **kwargs: Any,
) -> Explanation:
    """Shows what a step is, without running it. Context: cross-replica or outside. Not collective.

    What runs on each replica, what crosses between them and why the rest is equal, the
    collectives with their keys, bytes and packing, what is donated, memory and times.

    Args:
        step: An `rx.function`; a plain function is made one.
        *args: Its arguments. An iterator of a distributed dataset is only looked at: its batches
            are put back.
        replicas: Show the step for that many replicas, none of which need be there, each with as
            many rows as now. It is traced and proved, not compiled.
        remainder: Whether to show the program of a padded batch too. None: where an iterator among
            the arguments will give one.
        fabric: The network that times are predicted for.
        compute_seconds: Seconds that one replica computes in a step, measured or estimated; with
            it, efficiencies are predicted.
        **kwargs: Named arguments of the step.

    Returns:
        An `Explanation`: print it, or take `to_json()` and `to_svg()`.

    Raises:
        ContextError: `replicas` is given, and the step runs on no strategy.
        InvalidArgumentError: `replicas` is not a number above 0.
        ReplicaxError: What a call with these arguments would raise while it traces.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> @rx.function
        ... def total(x):
        ...     def replica_fn(x):
        ...         return rx.get_replica_context().all_reduce("sum", x)
        ...     return strategy.run(replica_fn, args=(x,))
        >>> shown = rx.explain(total, rx.PerReplica([jnp.ones(3), jnp.ones(3)]), replicas=1024)
        >>> shown.replicas, shown.programs[0].bytes_sent
        (1024, 12)
    """
    if replicas is not None and (type(replicas) is not int or replicas < 1):
        raise InvalidArgumentError(
            describe(f"`replicas={replicas!r}` is not accepted.", fix="pass a number above 0.")
        )
    made: Any = step if isinstance(step, (Function, BoundFunction)) else function(step)
    fabric = fabric or Fabric()
    if remainder is None:
        remainder = any(_has_remainder(each) for each in (*args, *kwargs.values()))
    with looking_ahead(), _imagined(made, args, kwargs, replicas):
        first = look(made, args, kwargs)
        looks = [first]
        if remainder and not any(run.is_padded for run in first.traced.runs):
            looks.append(look(made, args, kwargs, padded=True))
        programs = tuple(_program(each, fabric) for each in looks)
        traced = first.traced
        count = traced.strategy.num_replicas_in_sync if traced.strategy is not None else 1
    return Explanation(
        function=made.__name__,
        strategy=traced.strategy.name if traced.strategy is not None else None,
        replicas=count,
        is_imagined=replicas is not None,
        arguments=tuple(map(_argument, first.arguments)),
        variables=tuple(_variable(v, v in traced.written) for v in _used(first)),
        programs=programs,
        fabric=fabric,
        compute_seconds=compute_seconds,
    )


@contextlib.contextmanager
def _imagined(step: Function, args: Any, kwargs: Any, replicas: int | None) -> Iterator[None]:
    """While inside, the step's strategy has that many replicas, if a number is given."""
    if replicas is None:
        yield
        return
    strategy = look(step, args, kwargs).traced.strategy
    if strategy is None:
        raise _no_strategy(step.__name__, replicas)
    with imagined(strategy, replicas):
        yield


def _no_strategy(name: str, replicas: int) -> ContextError:
    return ContextError(
        describe(
            f"`{name}` cannot be shown for {replicas} replicas: it runs on none.",
            why="it calls no `strategy.run`, and uses no variable of a strategy.",
            fix="leave `replicas` out, or explain the step that calls `strategy.run`.",
        )
    )


def _has_remainder(value: Any) -> bool:
    """Whether an argument is an iterator that will give a padded batch, or may."""
    plan = getattr(value, "plan", None)
    if not isinstance(value, DistributedIterator) or not isinstance(plan, InputPlan):
        return False
    if plan.remainder != "mask":
        return False
    rows = plan.rows(plan.num_steps - 1) if plan.num_steps else None
    return rows is None or len({len(each) for each in rows}) > 1


# -- one program -----------------------------------------------------------------------------------


def _program(seen: Look, fabric: Fabric) -> Program:
    runs = seen.traced.runs
    strategy = seen.traced.strategy
    count = strategy.num_replicas_in_sync if strategy is not None else 1
    compiled, memory, flops, seconds, cache = _compiled(seen)
    proof = sum(run.proof_seconds for run in runs)
    return Program(
        batch="remainder" if any(run.is_padded for run in runs) else "full",
        functions=tuple(run.function for run in runs),
        inputs=tuple(_value(each, _origin(each)) for run in runs for each in run.inputs),
        outputs=tuple(
            _value(each, why)
            for run in runs
            for each, why in zip(run.outputs, reasons(run), strict=True)
        ),
        requests=tuple(_request(entry) for run in runs for entry in run.requested),
        sent=tuple(each for run in runs for each in _sent(run, fabric, count)),
        compiled=compiled,
        memory=memory,
        flops=flops,
        trace_seconds=seen.traced.seconds - proof,
        proof_seconds=proof,
        compile_seconds=seconds,
        compile_cache=cache,
    )


def _compiled(
    seen: Look,
) -> tuple[Any, Memory | None, float | None, float | None, str | None]:
    if seen.lowered is None:
        return None, None, None, None, None
    _compilation_cache.watch()
    start = time.perf_counter()
    compiled = seen.lowered.compile()
    seconds = time.perf_counter() - start
    cache = _compilation_cache.found()
    analysis = compiled.memory_analysis()
    memory = None
    if analysis is not None:
        memory = Memory(
            arguments=int(analysis.argument_size_in_bytes),
            results=int(analysis.output_size_in_bytes - analysis.alias_size_in_bytes),
            reused=int(analysis.alias_size_in_bytes),
            temporary=int(analysis.temp_size_in_bytes),
        )
    costs = compiled.cost_analysis()
    flops = costs.get("flops") if isinstance(costs, dict) else None
    return collectives_in(compiled.as_text() or ""), memory, flops, seconds, cache


def _sent(run: RunFacts, fabric: Fabric, count: int) -> Iterator[Sent]:
    for each in run.collectives:
        yield Sent(
            primitive=each.primitive,
            arrays=len(each.shapes),
            dtypes=tuple(dict.fromkeys(each.dtypes)),
            bytes=each.bytes,
            times=each.times,
            call_site=_line(each.call_site),
            seconds=fabric.seconds(each.primitive, each.bytes, replicas=count),
        )


def _request(entry: Entry) -> Request:
    sizes = list(map(_size, entry.shapes, entry.dtypes))
    names = entry.names or tuple(f"array {number}" for number in range(len(sizes)))
    return Request(
        kind=entry.kind,
        op=entry.op,
        group_key=entry.group_key,
        instance_key=entry.instance_key,
        leaves=len(entry.shapes),
        bytes=sum(sizes),
        call_site=_line(entry.call_site),
        packs=tuple(_pack(entry, pack, names, sizes) for pack in entry.packs),
    )


def _pack(entry: Entry, pack: Sequence[int], names: Sequence[str], sizes: Sequence[int]) -> Pack:
    dtype, size = entry.dtypes[pack[0]], sum(sizes[leaf] for leaf in pack)
    wire, shape = entry.wire_dtype, entry.shapes[pack[0]]
    if wire is not None and entry.op is not None:
        op, item = ReduceOp[entry.op], np.dtype(dtype).itemsize
        if is_narrow(wire, op, dtype, shape, num_replicas=2):
            dtype, size = f"{dtype} as {wire}", size * WIRE_BYTES // item
    return Pack(arrays=tuple(names[leaf] or "the value" for leaf in pack), dtype=dtype, bytes=size)


def _line(call_site: Any) -> str:
    return "unknown" if call_site is None else str(call_site)


# -- values ----------------------------------------------------------------------------------------


def _used(seen: Look) -> list[Variable]:
    return [v for v in seen.traced.variables if v in seen.traced.used]


def _argument(facts: ArgumentFacts) -> Value:
    note = "donated" if facts.is_donated else ""
    return Value(
        name=facts.name,
        shape=facts.shape,
        dtype=str(facts.dtype),
        bytes=_size(facts.shape, str(facts.dtype)),
        is_mirrored=not facts.is_per_replica,
        note=note,
    )


def _variable(variable: Variable, is_written: bool) -> Value:  # noqa: FBT001 - private
    note = "written, its memory is reused" if is_written else "read"
    return Value(
        name=variable.name,
        shape=tuple(variable.shape),
        dtype=str(variable.dtype),
        bytes=_size(tuple(variable.shape), str(variable.dtype)),
        is_mirrored=not variable.is_on_read,
        note=note,
    )


def _value(crossing: Crossing, note: str) -> Value:
    return Value(
        name=crossing.label,
        shape=crossing.shape,
        dtype=crossing.dtype,
        bytes=_size(crossing.shape, crossing.dtype),
        is_mirrored=crossing.cause is None,
        note=note,
    )


def _origin(crossing: Crossing) -> str:
    return "the same on every replica" if crossing.cause is None else "one for each replica"


def _size(shape: Sequence[int], dtype: str) -> int:
    """Bytes of an array; a random key counts as the two words of JAX's default generator."""
    item = _KEY_BYTES if dtype.startswith("key") else np.dtype(dtype).itemsize
    return math.prod(shape) * item
