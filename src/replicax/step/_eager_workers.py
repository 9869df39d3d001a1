"""The other processes of a run in the eager runner.

Each process runs the replicas that it has. Where these meet, the processes meet as well: they tell
each other what their replicas ask for, exchange the arrays, and each serves its own replicas with
what all together make. So a process computes the numbers that a run in one process has.

A process sends one message for each meeting and one at the end, whatever happens; one that fails
says so in the next message. So the processes stay in step, also where the exception is caught.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax import errors
from replicax.cluster import Failure, gather
from replicax.collectives import Entry, Request
from replicax.collectives import _reports as reports
from replicax.step._collective import Collective
from replicax.step._eager_context import check_same_variable
from replicax.step._eager_variables import EagerVariables
from replicax.values import StrategyLike, Variable, same_bits
from replicax.values._exchange import exchanged
from replicax.values._workers import digest

_MEETING, _FINISHED, _WRITING, _FAILED = "meeting", "finished", "writing variables", "failed"


class EagerWorkers:
    """The processes of one run.

    Args:
        strategy: The strategy, whose replicas lie in several processes.
        function: The name of the replica function.

    Attributes:
        devices: A device of this process for each replica of all; that of the replica if it is
            one of this process.
    """

    def __init__(self, strategy: StrategyLike, function: str) -> None:
        self._function = function
        self._mesh = strategy.replica_mesh
        self._name = strategy.name
        owner: Any = strategy
        self._timeout: float | None = owner.communication_options.timeout_seconds
        own = dict(zip(self._mesh.local_replicas, self._mesh.local_devices, strict=True))
        home = self._mesh.local_devices[0]
        self.devices = tuple(own.get(i, home) for i in range(self._mesh.num_replicas))
        self._meetings = 0
        self._is_over = False

    # -- messages ------------------------------------------------------------------

    def _exchange(self, state: str, **facts: Any) -> list[dict[str, Any]]:
        """Send where this process is, and get where all are.

        Raises:
            WorkerFailedError: Another one has failed.
            CollectiveMismatchError: Another one is elsewhere, or runs another function.
        """
        self._is_over = True  # Unless all goes well, nobody waits for another message.
        told = {"state": state, "meetings": self._meetings, "function": self._function}
        record = {**told, **facts}
        records = gather("eager run", record, timeout=self._timeout)
        self._is_over = any(record["state"] == _FAILED for record in records)
        if state == _FAILED:
            return records
        for record in records:
            if record["state"] == _FAILED:
                raise Failure.from_json(record["failure"]).to_error(
                    f"It was in the same `strategy.run` of {self._name}; no variable was changed."
                )
        if any(record["function"] != self._function for record in records):
            raise _other_function([record["function"] for record in records])
        if any(record["state"] != state for record in records):
            raise _elsewhere(records)
        return records

    def failed(self, error: BaseException) -> None:
        """Tell the others that the run fails here, unless they know."""
        if self._is_over or not isinstance(error, Exception):
            return
        record = Failure.of_exception(error, rank=jax.process_index()).to_json()
        with contextlib.suppress(errors.ReplicaxError):  # There is an error to raise already.
            self._exchange(_FAILED, failure=record)

    # -- meetings ------------------------------------------------------------------

    def together(self, requests: Sequence[Request]) -> list[Request]:
        """What all replicas ask for, given what those of this process do.

        Of a merge call or a variable that is created, they are those of this process alone.

        Raises:
            CollectiveMismatchError: Replicas of different processes disagree.
        """
        records = self._exchange(_MEETING, asked=[_told(request) for request in requests])
        asked = [one for record in records for one in record["asked"]]
        entries = [_entry(one) for one in asked]
        names = [f"replica {i}" for i in range(len(entries))]
        reports.check_same_collective(names, entries, self._meetings)
        self._meetings += 1
        kind = entries[0].kind
        if kind == "create_variable":
            facts = [(None, one["facts"]) for one in asked]
            check_same_variable([Request(e, f) for e, f in zip(entries, facts, strict=True)])
        if kind in {"create_variable", "merge_call"}:
            return list(requests)
        arrays = exchanged(self._mesh, [request.payload[1] for request in requests])
        mine: Collective = requests[0].payload[0]
        return [
            Request(
                entry,
                (
                    dataclasses.replace(
                        mine, axis=one["axis"], source=one["source"], structure=one["structure"]
                    ),
                    values,
                ),
            )
            for entry, one, values in zip(entries, asked, arrays, strict=True)
        ]

    def own(self, answers: Sequence[Any]) -> list[Any]:
        """The answers for the replicas of this process."""
        return [answers[i] for i in self._mesh.local_replicas]

    # -- the end -------------------------------------------------------------------

    def verdicts(self, results: Sequence[Any]) -> Callable[[], Verdict]:
        """Compare the results of all replicas.

        Args:
            results: Those of this process's replicas, of one structure.

        Returns:
            A function that gives the verdict on each leaf in turn.

        Raises:
            StructureMismatchError: They have different structures.
        """
        flat = [jax.tree.leaves(result) for result in results]
        structure = str(jax.tree.structure(results[0]))
        columns = list(zip(*flat, strict=True))
        leaves = [[_kinds(column), _common(column)] for column in columns]
        records = self._exchange(_FINISHED, structure=structure, leaves=leaves)
        if any(record["structure"] != structure for record in records):
            raise errors.StructureMismatchError(
                errors.describe(
                    "The replicas' values have different structures.",
                    table=errors.Table(
                        ("worker", "structure"),
                        [(i, record["structure"]) for i, record in enumerate(records)],
                    ),
                    why="They are combined leaf by leaf into one structure.",
                    fix="Return the same keys, lengths and types on every replica.",
                )
            )
        found = iter(
            [_verdict([record["leaves"][i] for record in records]) for i in range(len(leaves))]
        )
        return lambda: next(found)

    def check_writes(self, replicas: Sequence[EagerVariables]) -> None:
        """Make sure that the processes wrote the same to mirrored variables.

        Raises:
            VaryingWriteError: They did not; no variable was changed.
        """
        written = list(dict.fromkeys(v for one in replicas for v in one.stored))
        told = [_told_write(variable, replicas) for variable in written]
        records = self._exchange(_WRITING, writes=told)
        if all(record["writes"] == told for record in records):
            return
        if any(is_differing for *_, is_differing in told):
            return  # `commit` says more: it has the copies of this process.
        raise _different_writes([record["writes"] for record in records])


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is known of one result on all replicas.

    Attributes:
        is_common: Whether it is the same on all.
        is_alike: Whether it is an array of one shape and dtype on all.
    """

    is_common: bool
    is_alike: bool


def _verdict(leaves: Sequence[Any]) -> Verdict:
    kinds = [kind for kinds, _ in leaves for kind in kinds]
    common = [number for _, number in leaves]
    return Verdict(
        is_common=common[0] is not None and all(number == common[0] for number in common),
        is_alike=kinds[0] is not None and all(kind == kinds[0] for kind in kinds),
    )


def _kinds(column: Sequence[Any]) -> list[str | None]:
    return [f"{x.dtype}{x.shape}" if isinstance(x, jax.Array) else None for x in column]


def _common(column: Sequence[Any]) -> str | None:
    """What the replicas of this process have in common; None if they differ."""
    first = column[0]
    if all(isinstance(value, jax.Array) for value in column):
        return digest(first) if all(same_bits(first, other) for other in column[1:]) else None
    is_same = all(type(value) is type(first) and value == first for value in column)
    return f"{type(first).__name__} {first!r}" if is_same else None


def _told(request: Request) -> dict[str, Any]:
    entry, site = request.entry, request.entry.call_site
    told: dict[str, Any] = dataclasses.asdict(entry)
    told["call_site"] = None if site is None else [site.file, site.line, site.function]
    if entry.kind == "create_variable":
        told["facts"] = request.payload[1]
    elif entry.kind != "merge_call":
        collective: Collective = request.payload[0]
        told |= {
            "axis": collective.axis,
            "source": collective.source,
            "structure": str(collective.structure),
        }
    return told


def _entry(told: dict[str, Any]) -> Entry:
    site = told["call_site"]
    return Entry(
        group_key=told["group_key"],
        instance_key=told["instance_key"],
        kind=told["kind"],
        op=told["op"],
        dtypes=tuple(told["dtypes"]),
        shapes=tuple(map(tuple, told["shapes"])),
        call_site=None if site is None else errors.CallSite(*site),
        wire_dtype=told["wire_dtype"],
    )


def _told_write(variable: Variable, replicas: Sequence[EagerVariables]) -> list[Any]:
    if variable.is_on_read:
        return [variable.name, None, False]
    copies = [one.read(variable) for one in replicas]
    is_same = all(same_bits(copies[0], other) for other in copies[1:])
    return [variable.name, digest(copies[0]) if is_same else None, not is_same]


def _different_writes(writes: Sequence[Sequence[Any]]) -> errors.VaryingWriteError:
    """The error of mirrored variables that workers would leave different.

    Args:
        writes: For each worker, the name of each variable, a digest of the value, and whether its
            own replicas differ.
    """
    names = [[name for name, *_ in told] for told in writes]
    rows: list[tuple[Any, ...]]
    if any(other != names[0] for other in names):
        what, column = "Different variables were written", "variables"
        rows = [(i, ", ".join(told) or "none") for i, told in enumerate(names)]
    else:
        places = list(zip(*writes, strict=True))
        same_place = next(place for place in places if len(set(map(str, place))) > 1)
        what = f"Mirrored variable `{same_place[0][0]}` was written with different values"
        column = "digest of the value"
        rows = [
            (i, "its replicas differ" if is_differing else number)
            for i, (_, number, is_differing) in enumerate(same_place)
        ]
    return errors.VaryingWriteError(
        errors.describe(
            f"{what} on different workers. No variable was changed.",
            table=errors.Table(("worker", column), rows),
            why="Each worker would keep a value of its own. Most often a gradient was not "
            "all-reduced.",
            fix="Combine the value first: `ctx.all_reduce('mean', value)`, or give the variable an "
            "aggregation (`rx.Variable(..., aggregation='mean')`).",
        )
    )


def _other_function(names: Sequence[str]) -> errors.CollectiveMismatchError:
    return errors.CollectiveMismatchError(
        errors.describe(
            "The workers run different replica functions.",
            table=errors.Table(("worker", "function"), list(enumerate(names))),
            why="All workers must run the same functions in the same order.",
            fix="Do not choose the function by what only one worker knows, such as its rank.",
        )
    )


def _elsewhere(records: Sequence[dict[str, Any]]) -> errors.CollectiveMismatchError:
    rows = []
    for worker, record in enumerate(records):
        asked = record.get("asked") or [{}]
        site = asked[0].get("call_site")
        kind = asked[0].get("kind", "-")
        rows.append(
            (
                worker,
                record["state"],
                record["meetings"],
                kind,
                errors.CallSite(*site) if site else "-",
            )
        )
    return errors.CollectiveMismatchError(
        errors.describe(
            "The workers made different numbers of collectives in one run.",
            table=errors.Table(("worker", "state", "collectives", "next", "at"), rows),
            why="All replicas must call the same collectives in the same order.",
            fix="Call the collective on every replica, also where one has no rows.",
        )
    )
