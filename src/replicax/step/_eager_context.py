"""The replica context of the eager runner: collectives meet the threads of other replicas."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import Entry, Meet, ReduceOp, Request
from replicax.step._collective import Collective
from replicax.step._context import ReplicaContext
from replicax.step._rows import LocalRows
from replicax.values import StrategyLike, Variable
from replicax.values._combine import as_array


class EagerReplicaContext(ReplicaContext):
    """The replica context on a replica's thread."""

    def __init__(
        self, strategy: StrategyLike, rows: LocalRows, replica: int, meet: Meet, device: jax.Device
    ) -> None:
        super().__init__(strategy, rows)
        self._replica, self._meet, self._device = replica, meet, device
        self._received: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()

    @property
    def replica_id_in_sync_group(self) -> int:
        """This replica's number, from 0."""
        return self._replica

    def _communicate(self, collective: Collective, leaves: Sequence[Any]) -> list[Any]:
        arrays = [as_array(leaf, f"A value given to `{collective.kind}`") for leaf in leaves]
        site = errors.call_site()
        if any(isinstance(array, jax.core.Tracer) for array in arrays):
            return list(_differentiable(self, collective, site, tuple(arrays)))
        return self._exchange(collective, site, arrays)

    def _exchange(
        self, collective: Collective, site: errors.CallSite | None, arrays: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """Meet the other replicas with concrete arrays."""
        wire = collective.wire_dtype(arrays, self.num_replicas_in_sync)
        entry = self._entry(collective.kind, collective.op_name, arrays, site, wire)
        here = [jax.device_put(array, self._device) for array in arrays]
        jax.block_until_ready(here)  # An error in it is this replica's, and is raised here.
        answer: list[jax.Array] = self._meet(Request(entry, (collective, here)))
        self._received.update((id(array), array) for array in answer)
        return answer

    def has_received(self, value: jax.Array) -> bool:
        """Whether ``value`` is the result of a collective, as it came."""
        return self._received.get(id(value)) is value

    def _entry(
        self,
        kind: str,
        op: str | None,
        arrays: Sequence[jax.Array],
        site: errors.CallSite | None,
        wire_dtype: str | None = None,
    ) -> Entry:
        strategy: Any = self.strategy
        group = strategy.group_key
        device = strategy.extended.worker_devices[self._replica]
        return Entry(
            group_key=group,
            instance_key=strategy.collective_keys.instance_key(group, device),
            kind=kind,
            op=op,
            dtypes=tuple(str(array.dtype) for array in arrays),
            shapes=tuple(array.shape for array in arrays),
            call_site=site,
            wire_dtype=wire_dtype,
        )

    def create_variable(self, make: Callable[[], Variable], facts: dict[str, Any]) -> Variable:
        """Meet the other replicas and create one variable for all."""
        entry = self._entry("create_variable", None, (), errors.call_site())
        variable: Variable = self._meet(Request(entry, (make, facts)))
        return variable

    def _merge(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        inner = merge_fn.func if isinstance(merge_fn, functools.partial) else merge_fn
        name = getattr(inner, "__qualname__", type(inner).__name__)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            raise errors.UnimplementedError(
                errors.describe(
                    f"`merge_call` of `{name}` was given arrays that JAX transforms (`jax.grad`, "
                    "`rx.value_and_grad`, `jax.jit`, ...) in the eager runner.",
                    why="There the arrays of different replicas belong to different traces.",
                    fix="Use `ctx.all_reduce` or `ctx.all_gather`, which have gradients in both "
                    "runners, or call the step through `rx.function`.",
                )
            )
        entry = self._entry("merge_call", name, (), errors.call_site())
        jax.block_until_ready((args, kwargs))
        return self._meet(Request(entry, (merge_fn, args, kwargs)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _differentiable(
    context: EagerReplicaContext,
    collective: Collective,
    site: errors.CallSite | None,
    arrays: tuple[jax.Array, ...],
) -> tuple[jax.Array, ...]:
    """A collective on arrays that JAX differentiates; the primal values are concrete."""
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        raise _without_values(collective.kind, site)
    return tuple(context._exchange(collective, site, arrays))


def _without_values(call: str, site: errors.CallSite | None) -> errors.UnimplementedError:
    return errors.UnimplementedError(
        errors.describe(
            f"`{call}` was called inside `jax.jit`, `jax.lax.scan`, `jax.lax.cond`, `jax.vmap` or "
            f"a differentiated function in the eager runner{f' at {site}' if site else ''}.",
            why="There the arrays have no values yet, and the replicas meet with values. Only "
            "reverse differentiation of collectives other than `merge_call` is supported.",
            fix="Call the step through `rx.function`, where it may stand anywhere; or run this "
            "part without the transformation, for example under `with jax.disable_jit():`.",
        )
    )


def _forwards(
    context: EagerReplicaContext,
    collective: Collective,
    site: errors.CallSite | None,
    arrays: tuple[jax.Array, ...],
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    return _differentiable(context, collective, site, arrays), arrays


def _backwards(
    context: EagerReplicaContext,
    collective: Collective,
    site: errors.CallSite | None,
    inputs: tuple[jax.Array, ...],
    cotangents: tuple[jax.Array, ...],
) -> tuple[tuple[Any, ...]]:
    """The same collective of the cotangents."""
    floating = [jnp.issubdtype(x.dtype, jnp.inexact) for x in inputs]
    used = [i for i, is_floating in enumerate(floating) if is_floating]
    results = _transposed(
        context, collective, site, [inputs[i] for i in used], [cotangents[i] for i in used]
    )
    gradients: list[Any] = [np.zeros(x.shape, jax.dtypes.float0) for x in inputs]
    for i, result in zip(used, results, strict=True):
        gradients[i] = result.astype(inputs[i].dtype)
    return (tuple(gradients),)


_differentiable.defvjp(_forwards, _backwards)


def _transposed(
    context: EagerReplicaContext,
    collective: Collective,
    site: errors.CallSite | None,
    inputs: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
) -> list[jax.Array]:
    if not inputs:
        return []
    total = functools.partial(_differentiable, context)
    exact = dataclasses.replace(collective.options, wire_dtype=None)
    summed = Collective("all_reduce", op=ReduceOp.SUM, options=exact)
    if collective.kind == "all_reduce":
        if collective.op in {ReduceOp.SUM, ReduceOp.MEAN}:
            return list(total(collective, site, tuple(cotangents)))
        return _extremum_gradients(context, collective, site, inputs, cotangents)
    if collective.kind == "all_gather":
        return _own_slices(context, collective.axis, inputs, total(summed, site, tuple(cotangents)))
    if collective.kind == "reduce_scatter":
        if collective.op not in {ReduceOp.SUM, ReduceOp.MEAN}:
            raise errors.UnimplementedError(
                "reduce_scatter with MAX or MIN has no gradient in the eager runner."
            )
        gather = Collective("all_gather", axis=collective.axis, options=collective.options)
        joined = total(gather, site, tuple(cotangents))
        count = context.num_replicas_in_sync if collective.op is ReduceOp.MEAN else 1
        return [x / count for x in joined]
    sums = total(summed, site, tuple(cotangents))
    is_source = context.replica_id_in_sync_group == collective.source
    return [x if is_source else jnp.zeros_like(x) for x in sums]


def _own_slices(
    context: EagerReplicaContext,
    axis: int,
    inputs: Sequence[jax.Array],
    sums: Sequence[jax.Array],
) -> list[jax.Array]:
    """This replica's part of each joined array; the lengths may differ between replicas."""
    lengths = jnp.array([x.shape[axis] for x in inputs])[:, None]
    site = errors.call_site()
    all_lengths = context._exchange(Collective("all_gather", axis=1), site, [lengths])[0]
    starts = np.asarray(all_lengths)[:, : context.replica_id_in_sync_group].sum(axis=1)
    return [
        jax.lax.slice_in_dim(total, int(start), int(start) + x.shape[axis], axis=axis % x.ndim)
        for x, total, start in zip(inputs, sums, starts, strict=True)
    ]


def _extremum_gradients(
    context: EagerReplicaContext,
    collective: Collective,
    site: errors.CallSite | None,
    inputs: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
) -> list[jax.Array]:
    """As in `jnp.max`: the gradient goes to the replicas whose element won, in equal parts."""
    exact = dataclasses.replace(collective.options, wire_dtype=None)
    summed = Collective("all_reduce", op=ReduceOp.SUM, options=exact)
    best = context._exchange(collective, site, inputs)
    won = [(x == b).astype(x.dtype) for x, b in zip(inputs, best, strict=True)]
    winners = context._exchange(summed, site, won)
    totals = _differentiable(context, summed, site, tuple(cotangents))
    return [t * w / n for t, w, n in zip(totals, won, winners, strict=True)]


def check_same_parameters(requests: Sequence[Request]) -> None:
    """Check that the replicas ask for the same axis and source.

    Raises:
        CollectiveMismatchError: With a row a replica.
    """
    asked = [
        (r.payload[0].axis, r.payload[0].source, r.entry.wire_dtype or "as it is") for r in requests
    ]
    if len(set(asked)) == 1:
        return
    rows = [
        (i, axis, source, wire, r.entry.call_site or "?")
        for i, ((axis, source, wire), r) in enumerate(zip(asked, requests, strict=True))
    ]
    raise errors.CollectiveMismatchError(
        errors.describe(
            f"The replicas disagree on the parameters of one {requests[0].entry.kind}.",
            table=errors.Table(("replica", "axis", "source", "travels as", "at"), rows),
            why="They act together, so they must ask for the same.",
            fix="Use one axis, one source and one `wire_dtype` on all replicas.",
        )
    )


def check_same_variable(requests: Sequence[Request]) -> None:
    """Check that all replicas create the same variable.

    Raises:
        CollectiveMismatchError: With a row a replica.
    """
    facts = [request.payload[1] for request in requests]
    if all(other == facts[0] for other in facts[1:]):
        return
    rows = [
        (i, ", ".join(f"{k}={v}" for k, v in fact.items()), r.entry.call_site or "?")
        for i, (fact, r) in enumerate(zip(facts, requests, strict=True))
    ]
    raise errors.CollectiveMismatchError(
        errors.describe(
            "The replicas create different variables.",
            table=errors.Table(("replica", "variable", "at"), rows),
            why="A variable that is created in replica context is one variable for all replicas.",
            fix="Create the same variables in the same order on every replica, or before, under "
            "`with strategy.scope():`.",
        )
    )


def check_same_function(functions: Sequence[Any], requests: Sequence[Request]) -> None:
    """Check that all replicas came to a merge call with the same function.

    Raises:
        CollectiveMismatchError: With a row a replica.
    """
    # Lambdas and partials are made anew on each replica; what they run is the same.
    inner = [
        inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn) for fn in functions
    ]
    codes = [getattr(fn, "__code__", fn) for fn in inner]
    if all(code == codes[0] for code in codes[1:]):
        return
    rows = [
        (i, getattr(fn, "__qualname__", repr(fn)), r.entry.call_site or "?")
        for i, (fn, r) in enumerate(zip(functions, requests, strict=True))
    ]
    raise errors.CollectiveMismatchError(
        errors.describe(
            "The replicas met in `merge_call` with different functions.",
            table=errors.Table(("replica", "function", "at"), rows),
            why="The function is called once, for all replicas.",
            fix="Pass the same function on every replica.",
        )
    )
