"""The eager runner: `strategy.run` outside of `rx.function`.

Each replica has a thread; one runs at a time, in replica order, and they switch at collectives and
`merge_call` only. So breakpoints, prints and Python control flow work, and shapes may differ
between replicas. What the compiled runner proves is checked here by comparing bits.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax._log import logger
from replicax._threads import current_settings, settings
from replicax.collectives import Meet, Request, local, run_replicas
from replicax.recording import RECORDER
from replicax.step._arguments import Leaf, check_components, flatten_arguments
from replicax.step._bound_objects import bound, check_objects, suspending
from replicax.step._callbacks import raising_themselves
from replicax.step._collective import Collective
from replicax.step._eager_context import (
    EagerReplicaContext,
    check_same_function,
    check_same_parameters,
    check_same_variable,
)
from replicax.step._eager_variables import EagerVariables, commit
from replicax.step._eager_workers import EagerWorkers, Verdict
from replicax.step._one_at_a_time import ONE_AT_A_TIME, held_if_free
from replicax.step._recorded import subject_of_meeting
from replicax.step._results import flatten_result, remember, remember_rows
from replicax.step._rows import LocalRows
from replicax.step._state import check_fed_back
from replicax.values import (
    Frame,
    PerReplica,
    Provenance,
    StrategyLike,
    Variable,
    _deferred,
    entered,
    live_variables,
    regroup,
    same_bits,
)
from replicax.values._lending import mark_lent

_logger = logger("step")


class _Run:
    """One `strategy.run` in the eager runner."""

    def __init__(
        self,
        strategy: StrategyLike,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        *,
        updating: bool,
    ) -> None:
        self.strategy, self.fn, self.updating = strategy, fn, updating
        self.mesh = strategy.replica_mesh
        self.leaves, self.structure = flatten_arguments(fn, args, kwargs)
        check_objects(fn, [leaf.value for leaf in self.leaves], strategy)
        self.memory = _memory_of(fn)
        for leaf in self.leaves:
            if leaf.is_per_replica:
                check_components(strategy, leaf)
                check_fed_back(
                    leaf.value, leaf.name, self.memory.number, self.memory.plain, _name_of(fn)
                )
        self.memory.plain.update(leaf.name for leaf in self.leaves if leaf.is_array)
        self.components = [
            leaf.value.values if leaf.is_per_replica else None for leaf in self.leaves
        ]
        # A remainder of a dataset: replicas hold different numbers of rows.
        self.uneven = next(
            (leaf for leaf in self.leaves if leaf.is_per_replica and leaf.value.rows is not None),
            None,
        )
        self.has_met = False
        self.row_counts = {
            np.shape(array)[:1]
            for parts in self.components
            if parts is not None
            for array in jax.tree.leaves(parts[0])[:1]
        }
        self.plain = {(leaf.value.shape, leaf.value.dtype) for leaf in self.leaves if leaf.is_array}
        self.devices = self.mesh.local_devices
        self.variables = [EagerVariables(strategy, i) for i in range(len(self.devices))]
        spans_processes = self.mesh.spans_processes
        self.workers = EagerWorkers(strategy, _name_of(fn)) if spans_processes else None
        self.contexts: dict[int, EagerReplicaContext] = {}
        self.before_merges: dict[Variable, jax.Array] = {}
        self.settings = current_settings()

    def execute(self) -> Any:
        """Run all replicas and combine their results."""
        strategy: Any = self.strategy
        bodies = [functools.partial(self._replica, i) for i in range(len(self.devices))]
        try:
            results = run_replicas(
                bodies,
                self._serve,
                timeout_seconds=strategy.communication_options.timeout_seconds,
                names=[f"replica {i}" for i in self.mesh.local_replicas],
            )
            self._check_rows_were_counted(results)
            combined = self._combined_results(results)
            self._commit()
        except BaseException as error:
            self._undo_merges()
            if self.workers is not None:
                self.workers.failed(error)
            raise
        return combined

    def _combined_results(self, results: Sequence[Any]) -> Any:
        if self.workers is None:
            return regroup(results, self._combined)
        regroup(results, lambda values: values[0])  # Refuses different structures.
        verdict = self.workers.verdicts(results)
        return regroup(results, lambda values: self._combined(values, verdict()))

    def _commit(self) -> None:
        if self.workers is not None:
            self.workers.check_writes(self.variables)
        with ONE_AT_A_TIME:  # Objects that another thread has bound hold its values.
            commit(self.variables)

    def _check_rows_were_counted(self, results: Sequence[Any]) -> None:
        """Refuse a step that combines replicas with different numbers of rows as if all were alike.

        Raises:
            UnusedMaskError: It does, and never asked how many rows are real.
        """
        asked = any(context._rows.mask_was_used for context in self.contexts.values())
        if self.uneven is None or asked:
            return
        counts = self.uneven.value.row_counts
        has_written = any(variables.stored for variables in self.variables)
        if self.has_met or has_written or _lost_rows(results, counts):
            raise _rows_not_counted(self.uneven, counts)

    def _undo_merges(self) -> None:
        """Give variables back what they held before the first merge call of a failed run."""
        if not self.before_merges:
            return
        # A replica that was given up may hold it for ever, and binds only its own values again.
        with held_if_free(timeout_seconds=1.0):
            for variable, value in self.before_merges.items():
                if not value.is_deleted():
                    variable._value = value
                    mark_lent(variable)  # The user may have read it before the run.

    def _replica(self, place: int, meet: Meet) -> Any:
        device = self.devices[place]
        replica = self.mesh.local_replicas[place]
        context = EagerReplicaContext(
            self.strategy, LocalRows(may_differ=True), replica, suspending(meet), device
        )
        self.contexts[place] = context
        frame = Frame(
            self.strategy,
            replica=None if self.updating else context,
            access=self.variables[place],
            updating=self.updating,
        )
        where = jax.default_device(device)
        with settings(self.settings), where, entered(frame), raising_themselves():
            inputs = [
                self._input(leaf, components, place, device)
                for leaf, components in zip(self.leaves, self.components, strict=True)
            ]
            args, kwargs = self.structure.unflatten(inputs)
            # An update is given the copies of one variable, and sees no objects.
            with nullcontext() if self.updating else bound(self.variables[place], context):
                _, values, structure = flatten_result(self.fn(*args, **kwargs))
            jax.block_until_ready((values, self.variables[place].written()))
            return structure.unflatten(values)

    def _input(self, leaf: Leaf, components: Any, place: int, device: jax.Device) -> Any:
        if components is None:
            return self._placed(leaf.value, place, device)
        # Numbers become arrays, as they are in compiled steps.
        return jax.tree.map(
            lambda x: self._placed(jnp.asarray(x) if _is_number(x) else x, place, device),
            components[place],
        )

    def _placed(self, value: Any, place: int, device: jax.Device) -> Any:
        if isinstance(value, jax.Array) and self.mesh.holds_mirrored(value):
            return self.mesh.components(value)[place]
        if isinstance(value, (jax.Array, np.ndarray, np.generic)):
            return jax.device_put(jnp.asarray(value), device)
        return value

    def _combined(self, values: Sequence[Any], verdict: Verdict | None = None) -> Any:
        """One result from the replicas' results at one place, and what is known of others'."""
        if any(not isinstance(value, jax.Array) for value in values):
            same = all(type(v) is type(values[0]) and v == values[0] for v in values)
            same = same if verdict is None else verdict.is_common
            return values[0] if same else PerReplica(tuple(values))
        is_common = verdict.is_common if verdict is not None else _are_same(values)
        if not is_common:
            cause = Provenance(self.memory.number, "the replicas' bits differ")
            if verdict is not None and verdict.is_alike:
                return PerReplica.from_stacked(self.mesh.from_rows(values), None, cause)
            return PerReplica(tuple(values)).came_from(cause)
        mirrored = self.mesh.from_components(values)
        if not self.contexts[0].has_received(values[0]):
            remember(mirrored)
            # Not state that went in and comes back, nor what a variable holds.
            is_state = (mirrored.shape, mirrored.dtype) in self.plain
            is_state = is_state or self.variables[0].holds(values[0])
            if mirrored.ndim and mirrored.shape[:1] in self.row_counts and not is_state:
                remember_rows(mirrored)
        return mirrored

    # -- meetings -------------------------------------------------------------------

    def _serve(self, requests: list[Request]) -> list[Any]:
        with RECORDER.recorded(subject_of_meeting(requests[0].entry, self.mesh)):
            return self._serve_all(requests)

    def _serve_all(self, requests: list[Request]) -> list[Any]:
        self.has_met = self.has_met or requests[0].entry.kind != "create_variable"
        devices = self.devices
        if self.workers is not None:
            requests = self.workers.together(requests)
            devices = self.workers.devices
        if requests[0].entry.kind == "merge_call":
            return self._serve_merge(requests)
        if requests[0].entry.kind == "create_variable":
            check_same_variable(requests)
            with entered(Frame(self.strategy)):
                return [requests[0].payload[0]()] * len(requests)
        collective: Collective = requests[0].payload[0]
        per_replica = [request.payload[1] for request in requests]
        check_same_parameters(requests)
        sites = [request.entry.call_site for request in requests]
        trees = [request.payload[0].structure for request in requests]
        common: dict[str, Any] = {"call_sites": sites, "structures": trees}
        wire: dict[str, Any] = {"wire_dtype": requests[0].entry.wire_dtype}
        match collective.kind:
            case "all_reduce":
                answers = local.all_reduce(collective.op, per_replica, devices, **wire, **common)
            case "all_gather":
                answers = local.all_gather(per_replica, collective.axis, devices, **common)
            case "reduce_scatter":
                answers = local.reduce_scatter(
                    collective.op, per_replica, collective.axis, devices, **wire, **common
                )
            case _:
                answers = local.broadcast(per_replica, collective.source, devices, **common)
        return answers if self.workers is None else self.workers.own(answers)

    def _serve_merge(self, requests: list[Request]) -> list[Any]:
        """Call the merge function once, in cross-replica context, on committed variables."""
        functions = [request.payload[0] for request in requests]
        check_same_function(functions, requests)
        args, kwargs = regroup([request.payload[1:] for request in requests], self._merge_argument)
        if not self.before_merges:
            with ONE_AT_A_TIME:
                self.before_merges = {variable: variable._value for variable in live_variables()}
        self._commit()
        with entered(Frame(self.strategy, merging=self.contexts[0])):
            result = functions[0](self.strategy, *args, **kwargs)

        def select(place: int, device: jax.Device) -> Any:
            def one(leaf: Any) -> Any:
                if isinstance(leaf, PerReplica):
                    check_components(self.strategy, Leaf(leaf, "merge_call's result"))
                leaf = leaf.values[place] if isinstance(leaf, PerReplica) else leaf
                if self.mesh.holds_mirrored(leaf):
                    return self.mesh.components(leaf)[place]
                return jax.device_put(leaf, device) if isinstance(leaf, jax.Array) else leaf

            return jax.tree.map(one, result, is_leaf=lambda x: isinstance(x, PerReplica))

        return [select(i, device) for i, device in enumerate(self.devices)]

    def _merge_argument(self, values: Sequence[Any]) -> Any:
        is_array = any(isinstance(value, (jax.Array, np.ndarray)) for value in values)
        return PerReplica(tuple(values)) if is_array else self._combined(values)


def _are_same(values: Sequence[jax.Array]) -> bool:
    return all(same_bits(values[0], other) for other in values[1:])


def _lost_rows(results: Sequence[Any], counts: Sequence[int]) -> bool:
    """Whether a result differs between replicas and has not one entry a row."""
    columns = zip(*map(jax.tree.leaves, results), strict=False)
    return any(
        any(np.shape(value)[:1] != (count,) for value, count in zip(column, counts, strict=True))
        and not all(isinstance(v, jax.Array) and same_bits(column[0], v) for v in column)
        for column in columns
    )


def _rows_not_counted(leaf: Leaf, counts: Sequence[int]) -> errors.UnusedMaskError:
    return errors.UnusedMaskError(
        errors.describe(
            f"{leaf.label[0].upper()}{leaf.label[1:]} is the remainder of a dataset, and the step "
            "never asked how many rows each replica has. No variable was changed.",
            table=errors.Table(("replica", "rows"), list(enumerate(counts))),
            why="A mean of the replicas' means weighs replicas, not rows, and the mean of no rows "
            "is NaN. A compiled step is refused, too.",
            fix="Take means with `ctx.global_mean(per_row)` and sums with `ctx.global_sum(...)` or "
            "`ctx.local_sum(...)`; or let the dataset drop the remainder: "
            "`rx.InputOptions(remainder='drop')`.",
        )
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex))


class _Memory:
    """What earlier runs of a replica function were given.

    Attributes:
        number: Marks results as coming from the function; compiled ones have positive numbers.
        plain: Paths of arguments that were plain arrays, the same on every replica.
    """

    def __init__(self) -> None:
        self.number = next(_NUMBERS)
        self.plain: set[str] = set()


_NUMBERS = itertools.count(-1, -1)
# A function that is defined anew in every step has one code object.
_MEMORIES: weakref.WeakKeyDictionary[Any, _Memory] = weakref.WeakKeyDictionary()


def _memory_of(fn: Callable[..., Any]) -> _Memory:
    code = getattr(fn, "__code__", None)
    return _Memory() if code is None else _MEMORIES.setdefault(code, _Memory())


def _name_of(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


@functools.cache
def _hint_once() -> None:
    _logger.warning(
        "strategy.run was called outside of rx.function: replicas run one after the other in "
        "Python, which is meant for debugging. Decorate the training step with @rx.function to "
        "compile it. This is said once."
    )


def run_eager(
    strategy: StrategyLike,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    updating: bool = False,
) -> Any:
    """Run ``fn`` once a replica, one replica at a time.

    Args:
        strategy: The strategy.
        fn: The replica function, or that of `extended.update`.
        args: Its arguments; per-replica values are unpacked.
        kwargs: Its named arguments.
        updating: Whether it is an `extended.update`.

    Returns:
        The combined results: arrays that agree in every bit are mirrored and come as one array,
        others as `PerReplica`.

    Raises:
        VaryingWriteError: The replicas wrote different values to a mirrored variable.
        CollectiveMismatchError: The replicas disagree in a collective, or in their number.
        StructureMismatchError: The results have different structures.
    """
    if not updating:
        _hint_once()
    _deferred.settle()
    return _Run(strategy, fn, args, kwargs, updating=updating).execute()
