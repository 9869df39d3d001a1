"""The eager runner: `strategy.run` outside of `rx.function`.

Each replica has a thread; one runs at a time, in replica order, and they switch at collectives and
`merge_call` only. So breakpoints, prints and Python control flow work, and shapes may differ
between replicas. What the compiled runner proves is checked here by comparing bits.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.collectives import Entry, Meet, ReduceOp, Request, local, run_replicas
from replicax.step._access import require_same_strategy, trace_level, written_inside_transformation
from replicax.step._arguments import Leaf, check_components, flatten_arguments
from replicax.step._context import Collective, ReplicaContext
from replicax.step._jax_settings import current_settings, settings
from replicax.step._rows import LocalRows
from replicax.values import (
    Frame,
    PerReplica,
    StrategyLike,
    Variable,
    entered,
    regroup,
    same_bits,
)
from replicax.values._lending import mark_lent

_logger = logging.getLogger("replicax")


class EagerVariables:
    """Variables as one replica of the eager runner sees them: its own copies."""

    def __init__(self, strategy: StrategyLike, replica: int) -> None:
        self._strategy, self._replica = strategy, replica
        self._copies: dict[Variable, jax.Array] = {}
        self.stored: dict[Variable, errors.CallSite | None] = {}
        self._level = trace_level()

    def read(self, variable: Variable) -> jax.Array:
        """Return this replica's copy, on its device."""
        require_same_strategy(variable, self._strategy, "read")
        if variable not in self._copies:
            copies = self._strategy.replica_mesh.components(variable._value)
            mark_lent(variable)  # The user may keep what was read here, beyond the run.
            self._copies[variable] = copies[self._replica]
        return self._copies[variable]

    def store(self, variable: Variable, value: Any, call_site: errors.CallSite | None) -> None:
        """Record a write to this replica's copy."""
        require_same_strategy(variable, self._strategy, "written")
        if trace_level() != self._level:
            raise written_inside_transformation(variable, call_site)
        device = self._strategy.replica_mesh.devices[self._replica]
        self._copies[variable] = jax.device_put(value, device)
        self.stored[variable] = call_site

    def forget(self) -> None:
        """Drop copies and writes, after they were committed."""
        self._copies.clear()
        self.stored.clear()


class EagerReplicaContext(ReplicaContext):
    """The replica context on a replica's thread."""

    def __init__(
        self, strategy: StrategyLike, rows: LocalRows, replica: int, meet: Meet, device: jax.Device
    ) -> None:
        super().__init__(strategy, rows)
        self._replica, self._meet, self._device = replica, meet, device

    @property
    def replica_id_in_sync_group(self) -> int:
        """This replica's number, from 0."""
        return self._replica

    def _communicate(self, collective: Collective, leaves: Sequence[Any]) -> list[Any]:
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        site = errors.call_site()
        if any(isinstance(array, jax.core.Tracer) for array in arrays):
            return list(_differentiable(self, collective, site, tuple(arrays)))
        return self._exchange(collective, site, arrays)

    def _exchange(
        self, collective: Collective, site: errors.CallSite | None, arrays: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """Meet the other replicas with concrete arrays."""
        entry = self._entry(collective.kind, collective.op, arrays, site)
        here = [jax.device_put(array, self._device) for array in arrays]
        answer: list[jax.Array] = self._meet(Request(entry, (collective, here)))
        return answer

    def _entry(
        self,
        kind: str,
        op: ReduceOp | str | None,
        arrays: Sequence[jax.Array],
        site: errors.CallSite | None,
    ) -> Entry:
        strategy: Any = self.strategy
        group = strategy.group_key
        device = strategy.extended.worker_devices[self._replica]
        return Entry(
            group_key=group,
            instance_key=strategy.collective_keys.instance_key(group, device),
            kind=kind,
            op=op.name if isinstance(op, ReduceOp) else op,
            dtypes=tuple(str(array.dtype) for array in arrays),
            shapes=tuple(array.shape for array in arrays),
            call_site=site,
        )

    def _merge(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        name = getattr(merge_fn, "__qualname__", repr(merge_fn))
        entry = self._entry("merge_call", name, (), errors.call_site())
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
        raise errors.UnimplementedError(
            errors.describe(
                f"`{collective.kind}` was called inside `jax.jit`, `jax.lax.scan`, `jax.lax.cond` "
                f"or `jax.vmap` in the eager runner{f' at {site}' if site else ''}.",
                why="There the arrays have no values yet, and the replicas meet with values.",
                fix="Call the step through `rx.function`, where collectives may stand anywhere; or "
                "run this part without the transformation, for example under "
                "`with jax.disable_jit():`.",
            )
        )
    return tuple(context._exchange(collective, site, arrays))


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
    summed = Collective("all_reduce", op=ReduceOp.SUM, options=collective.options)
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
    summed = Collective("all_reduce", op=ReduceOp.SUM, options=collective.options)
    best = context._exchange(collective, site, inputs)
    won = [(x == b).astype(x.dtype) for x, b in zip(inputs, best, strict=True)]
    winners = context._exchange(summed, site, won)
    totals = _differentiable(context, summed, site, tuple(cotangents))
    return [t * w / n for t, w, n in zip(totals, won, winners, strict=True)]


class _Run:
    """One `strategy.run` in the eager runner."""

    def __init__(self, strategy: StrategyLike, fn: Callable[..., Any], args: Any, kwargs: Any):
        self.strategy, self.fn = strategy, fn
        self.mesh = strategy.replica_mesh
        self.leaves, self.structure = flatten_arguments(fn, args, kwargs)
        for leaf in self.leaves:
            if leaf.is_per_replica:
                check_components(strategy, leaf)
        self.components = [
            leaf.value.values if leaf.is_per_replica else None for leaf in self.leaves
        ]
        self.variables = [EagerVariables(strategy, i) for i in range(len(self.mesh.devices))]
        self.settings = current_settings()

    def execute(self) -> Any:
        """Run all replicas and combine their results."""
        strategy: Any = self.strategy
        bodies = [functools.partial(self._replica, i) for i in range(len(self.mesh.devices))]
        results = run_replicas(
            bodies,
            self._serve,
            timeout_seconds=strategy.communication_options.timeout_seconds,
            names=[f"replica {i}" for i in range(len(bodies))],
        )
        combined = regroup(results, self._combined)
        self._commit()
        return combined

    def _replica(self, replica: int, meet: Meet) -> Any:
        device = self.mesh.devices[replica]
        context = EagerReplicaContext(
            self.strategy, LocalRows(may_differ=True), replica, meet, device
        )
        frame = Frame(self.strategy, replica=context, access=self.variables[replica])
        with settings(self.settings), jax.default_device(device), entered(frame):
            inputs = [
                self._input(leaf, components, replica, device)
                for leaf, components in zip(self.leaves, self.components, strict=True)
            ]
            args, kwargs = self.structure.unflatten(inputs)
            result = self.fn(*args, **kwargs)
            return jax.tree.map(_result_leaf, result, is_leaf=_is_variable)

    def _input(self, leaf: Leaf, components: Any, replica: int, device: jax.Device) -> Any:
        value = components[replica] if components is not None else leaf.value
        if isinstance(value, jax.Array) and self.mesh.holds_mirrored(value):
            return self.mesh.components(value)[replica]
        if isinstance(value, (jax.Array, np.ndarray, np.generic)):
            return jax.device_put(jnp.asarray(value), device)
        return value

    def _combined(self, values: Sequence[Any]) -> Any:
        """One result from the replicas' results at one place."""
        if any(not isinstance(value, jax.Array) for value in values):
            same = all(type(v) is type(values[0]) and v == values[0] for v in values)
            return values[0] if same else PerReplica(tuple(values))
        if not all(same_bits(values[0], other) for other in values[1:]):
            return PerReplica(tuple(values))
        return self._mirrored(values)

    def _mirrored(self, values: Sequence[jax.Array]) -> jax.Array:
        placed = [
            jax.device_put(x, device) for x, device in zip(values, self.mesh.devices, strict=True)
        ]
        return self.mesh.from_components(placed)

    # -- writes -------------------------------------------------------------------

    def _commit(self) -> None:
        """Check that the replicas wrote equal values, then write them; all or none."""
        written = list(dict.fromkeys(v for one in self.variables for v in one.stored))
        new: dict[Variable, jax.Array] = {}
        for variable in written:
            copies = [one.read(variable) for one in self.variables]
            if not all(same_bits(copies[0], other) for other in copies[1:]):
                raise self._differing_write(variable, copies)
            new[variable] = self._mirrored(copies)
        for variable, value in new.items():
            variable._value = value
            variable._lent = False
            mark_lent(variable)  # The copies may have been returned to the user as results.
        for one in self.variables:
            one.forget()

    def _differing_write(
        self, variable: Variable, copies: Sequence[jax.Array]
    ) -> errors.VaryingWriteError:
        first = np.asarray(copies[0])
        rows = []
        for i, (one, copy) in enumerate(zip(self.variables, copies, strict=True)):
            wrote = one.stored.get(variable, "did not write it")
            host = np.asarray(copy)
            gap = np.abs(host.astype(np.float64) - first.astype(np.float64)).max(initial=0.0)
            rows.append((i, wrote, f"{gap:.3g}"))
        return errors.VaryingWriteError(
            errors.describe(
                f"Mirrored variable `{variable.name}` was written with different values on "
                "different replicas. No variable was changed.",
                table=errors.Table(
                    ("replica", "written at", "largest difference to replica 0"), rows
                ),
                why="Each replica would keep a value of its own. Most often a gradient was not "
                "all-reduced.",
                fix="Combine the value first: `ctx.all_reduce('mean', value)`, or give the "
                "variable an aggregation (`rx.Variable(..., aggregation='mean')`).",
            )
        )

    # -- meetings -------------------------------------------------------------------

    def _serve(self, requests: list[Request]) -> list[Any]:
        if requests[0].entry.kind == "merge_call":
            return self._serve_merge(requests)
        collective: Collective = requests[0].payload[0]
        per_replica = [request.payload[1] for request in requests]
        check_same_parameters(requests)
        sites = [request.entry.call_site for request in requests]
        devices = self.mesh.devices
        match collective.kind:
            case "all_reduce":
                op = collective.op or ReduceOp.SUM
                return local.all_reduce(op, per_replica, devices, call_sites=sites)
            case "all_gather":
                return local.all_gather(per_replica, collective.axis, devices, call_sites=sites)
            case "reduce_scatter":
                op = collective.op or ReduceOp.SUM
                return local.reduce_scatter(
                    op, per_replica, collective.axis, devices, call_sites=sites
                )
            case _:
                return local.broadcast(per_replica, collective.source, devices, call_sites=sites)

    def _serve_merge(self, requests: list[Request]) -> list[Any]:
        """Call the merge function once, in cross-replica context, on committed variables."""
        functions = [request.payload[0] for request in requests]
        check_same_function(functions, requests)
        args, kwargs = regroup([request.payload[1:] for request in requests], self._merge_argument)
        self._commit()
        with entered(Frame(self.strategy)):
            result = functions[0](self.strategy, *args, **kwargs)

        def select(replica: int, device: jax.Device) -> Any:
            def one(leaf: Any) -> Any:
                leaf = leaf.values[replica] if isinstance(leaf, PerReplica) else leaf
                if self.mesh.holds_mirrored(leaf):
                    return self.mesh.components(leaf)[replica]
                return jax.device_put(leaf, device) if isinstance(leaf, jax.Array) else leaf

            return jax.tree.map(one, result, is_leaf=lambda x: isinstance(x, PerReplica))

        return [select(i, device) for i, device in enumerate(self.mesh.devices)]

    def _merge_argument(self, values: Sequence[Any]) -> Any:
        is_array = any(isinstance(value, (jax.Array, np.ndarray)) for value in values)
        return PerReplica(tuple(values)) if is_array else self._combined(values)


def _is_variable(value: Any) -> bool:
    return isinstance(value, (Variable, PerReplica))


def _result_leaf(leaf: Any) -> Any:
    if isinstance(leaf, PerReplica):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"The replica function returned {leaf!r}.",
                why="In replica context a replica holds its own component only.",
                fix="Return the component.",
            )
        )
    if isinstance(leaf, Variable):
        return leaf.value
    return jnp.asarray(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else leaf


def check_same_parameters(requests: Sequence[Request]) -> None:
    """Check that the replicas ask for the same axis and source.

    Raises:
        CollectiveMismatchError: With a row a replica.
    """
    asked = [(r.payload[0].axis, r.payload[0].source) for r in requests]
    if len(set(asked)) == 1:
        return
    rows = [
        (i, axis, source, r.entry.call_site or "?")
        for i, ((axis, source), r) in enumerate(zip(asked, requests, strict=True))
    ]
    raise errors.CollectiveMismatchError(
        errors.describe(
            f"The replicas disagree on a {requests[0].entry.kind}.",
            table=errors.Table(("replica", "axis", "source", "at"), rows),
            fix="Use one axis and one source on all replicas.",
        )
    )


def check_same_function(functions: Sequence[Any], requests: Sequence[Request]) -> None:
    """Check that all replicas came to a merge call with the same function.

    Raises:
        CollectiveMismatchError: With a row a replica.
    """
    codes = [getattr(fn, "__code__", fn) for fn in functions]
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


@functools.cache
def _hint_once() -> None:
    _logger.info(
        "strategy.run was called outside of rx.function: replicas run one after the other in "
        "Python, which is meant for debugging. Decorate the training step with @rx.function to "
        "compile it. This is said once."
    )


def run_eager(
    strategy: StrategyLike, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Run ``fn`` once a replica, one replica at a time.

    Returns:
        The combined results: arrays that agree in every bit are mirrored and come as one array,
        others as `PerReplica`.

    Raises:
        VaryingWriteError: The replicas wrote different values to a mirrored variable.
        CollectiveMismatchError: The replicas disagree in a collective, or in their number.
        StructureMismatchError: The results have different structures.
    """
    _hint_once()
    return _Run(strategy, fn, args, kwargs).execute()
