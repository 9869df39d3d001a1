"""Write the tables of docs/variables.md: what each operation on each kind of variable gives.

Every cell is an operation that is carried out here, on two replicas. `--check` changes nothing and
exits with 1 if the page does not say what the code does.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

PAGE = Path(__file__).resolve().parent.parent / "docs" / "variables.md"
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"


@dataclass(frozen=True)
class Kind:
    """What `rx.Variable` is told."""

    synchronization: str
    aggregation: str


KINDS = [
    Kind(synchronization, aggregation)
    for synchronization in ("ON_WRITE", "ON_READ")
    for aggregation in ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA")
]


@dataclass(frozen=True)
class Row:
    """One operation.

    Attributes:
        label: How it is written.
        act: Gets a strategy and a variable, and returns what the cell shows, if anything; it runs
            where the row's `where` says.
        where: `across`, or `replica` for a replica function; `nowhere` for what no program does.
        initial: The copies before; a mirrored variable has the first.
        dtype: The dtype of the variable.
        shows: `result` or `copies`, those after the operation.
        elsewhere: What tf.distribute does, and why it is not done here.
    """

    label: str
    act: Callable[..., Any]
    where: str = "across"
    initial: tuple[Any, Any] = (10, 20)
    dtype: str = "float32"
    shows: str = "copies"
    elsewhere: str = ""

    def cells(self) -> list[str]:
        """What comes out for each kind, in both runners where they differ."""
        eager = [self._alone(kind, _as_it_is) for kind in KINDS]
        if self.where == "nowhere":
            return eager
        compiled = self._together(eager) or [self._alone(kind, rx.function) for kind in KINDS]
        return [
            one if one == other else f"eager: {one}; compiled: {other}"
            for one, other in zip(eager, compiled, strict=True)
        ]

    def _alone(self, kind: Kind, runner: Callable[[Any], Any]) -> str:
        """One kind in one runner."""
        try:
            variable = variable_of(kind, self.initial, self.dtype)
        except rx.errors.ReplicaxError as error:
            return f"{named(error)} when it is made"
        before = strategy_of(2).local_results(variable)
        try:
            result = runner(self._step([variable]))()[0]
        except rx.errors.ReplicaxError as error:
            after = strategy_of(2).local_results(variable)
            same = all(np.array_equal(x, y) for x, y in zip(before, after, strict=True))
            return named(error) if same else f"{named(error)}, and changed to {shown(after)}"
        return self._text(variable, result)

    def _together(self, eager: Sequence[str]) -> list[str] | None:
        """All kinds in one compiled program, if it may be, but those that eager refuses."""
        texts = [
            self._alone(kind, rx.function) if "`" in text else ""
            for kind, text in zip(KINDS, eager, strict=True)
        ]
        left = [i for i, text in enumerate(texts) if not text]
        variables = [variable_of(KINDS[i], self.initial, self.dtype) for i in left]
        try:
            results = rx.function(self._step(variables))()
        except rx.errors.ReplicaxError:
            return None
        for i, variable, result in zip(left, variables, results, strict=True):
            texts[i] = self._text(variable, result)
        return texts

    def _step(self, variables: Sequence[rx.Variable]) -> Callable[[], list[Any]]:
        strategy = strategy_of(2)

        def act() -> list[Any]:
            return [self.act(strategy, variable) for variable in variables]

        return (lambda: strategy.run(act)) if self.where == "replica" else act

    def _text(self, variable: rx.Variable, result: Any) -> str:
        if self.shows == "copies":
            return shown(strategy_of(2).local_results(variable))
        if isinstance(result, rx.PerReplica):
            return shown(result.values)
        return result if isinstance(result, str) else shown(_entries(result))


def _as_it_is(step: Callable[[], Any]) -> Callable[[], Any]:
    return step


def _entries(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@functools.cache
def strategy_of(replicas: int) -> rx.Strategy:
    """The strategy of that many replicas."""
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])


def variable_of(kind: Kind, initial: Sequence[Any], dtype: str = "float32") -> rx.Variable:
    """A variable whose copies hold `initial`, where they may differ."""
    copies = [np.array(copy, dtype) for copy in initial]
    with strategy_of(len(copies)).scope():
        variable: rx.Variable = rx.Variable(
            copies[0],
            synchronization=kind.synchronization,
            aggregation=kind.aggregation,
            name="v",
        )
    if kind.synchronization == "ON_READ":
        variable.assign(rx.PerReplica(copies))
    return variable


def named(error: Exception) -> str:
    """The class of an error."""
    return f"`{type(error).__name__}`"


def shown(values: Sequence[Any]) -> str:
    """Values as text, one a replica; arrays that are equal on all replicas once."""
    texts = [" ".join(f"{x:g}" for x in np.atleast_1d(np.asarray(value))) for value in values]
    if np.ndim(values[0]) == 0:
        return ", ".join(texts)
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


# --- operations --------------------------------------------------------------------------------


def own(first: float, second: float) -> Any:
    """This replica's of two numbers, as a value that differs between the replicas."""
    number = rx.get_replica_context().replica_id_in_sync_group
    return jnp.array([first, second], jnp.float32)[number]


def slices() -> rx.IndexedSlices:
    """In replica `i`, the value `5 + i` in row `1 + i`; across replicas, that of replica 0."""
    context = rx.get_replica_context()
    number = 0 if context is None else jnp.asarray(context.replica_id_in_sync_group)
    return rx.IndexedSlices(jnp.full(1, 5.0) + number, jnp.full(1, 1) + number)


def in_merge(act: Callable[[Any], Any]) -> Callable[..., Any]:
    """`act` on the variable in a merge call."""
    return lambda _, v: rx.get_replica_context().merge_call(lambda _: act(v))


def in_update(act: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """`act` on each copy in `extended.update`."""
    return lambda strategy, v: strategy.extended.update(v, act, args=args)


def in_other_scope(_: rx.Strategy, v: rx.Variable) -> Any:
    """Read in the scope of another strategy."""
    with strategy_of(3).scope():
        return v.value


def in_other_replica(_: rx.Strategy, v: rx.Variable) -> Any:
    """Read in a replica of another strategy."""
    return strategy_of(3).run(lambda: v.value)


def assigned_sum(strategy: rx.Strategy, v: rx.Variable) -> None:
    """Assign a variable whose copies 10 and 20 are summed."""
    other = OTHERS[strategy.num_replicas_in_sync]
    v.assign(other)


OTHERS: dict[int, rx.Variable] = {}


def reads() -> list[Row]:
    """The rows of the table of reads."""
    result = functools.partial(Row, shows="result")
    return [
        result("`type(v).__name__`", lambda _, v: type(v).__name__, "nowhere"),
        result("`v.value`, across replicas", lambda _, v: v.value),
        result("`v + 1`, across replicas", lambda _, v: v + 1),
        result("`v.value` in a replica", lambda _, v: v.value, "replica"),
        result("`2 * v` in a replica", lambda _, v: 2 * v, "replica"),
        result("`v.value` in `extended.update`", in_update(lambda v: v.value)),
        result("`v.value` in `merge_call`", in_merge(lambda v: v.value), "replica"),
        result(
            "`strategy.reduce('sum', v, axis=None)`",
            lambda strategy, v: strategy.reduce("sum", v, axis=None),
            elsewhere="ON_WRITE: an AssertionError without a message",
        ),
        result(
            "`strategy.reduce('mean', v, axis=None)`",
            lambda strategy, v: strategy.reduce("mean", v, axis=None),
        ),
        result("`strategy.local_results(v)`", lambda strategy, v: strategy.local_results(v)),
        result(
            "`v.value` in another strategy's scope",
            in_other_scope,
            elsewhere="RuntimeError for `read_value`, but none for a conversion to a tensor; here "
            "it is read, since the value does not depend on the scope",
        ),
        result(
            "`v.value` in another strategy's replica",
            in_other_replica,
            elsewhere="RuntimeError for `read_value`, but none for a conversion to a tensor",
        ),
    ]


def writes_across() -> list[Row]:
    """The rows of the table of writes in cross-replica context."""
    parts = rx.PerReplica([np.float32(30), np.float32(40)])
    steps = rx.PerReplica([np.float32(1), np.float32(2)])
    read_back = "ON_READ, NONE: the copies are written, then ValueError as the result is read back"
    return [
        Row("`v.assign(6.0)`", lambda _, v: v.assign(6.0), elsewhere=read_back),
        Row(
            "`v.assign(7)`, int32",
            lambda _, v: v.assign(7),
            dtype="int32",
            elsewhere="ON_READ, SUM: 3, 3, which reads as 6: what was written is lost",
        ),
        Row("`v.assign_add(1.0)`", lambda _, v: v.assign_add(1.0), elsewhere=read_back),
        Row("`v.assign_sub(1.0)`", lambda _, v: v.assign_sub(1.0), elsewhere=read_back),
        Row(
            "`v.assign(PerReplica(30, 40))`",
            lambda _, v: v.assign(parts),
            elsewhere="ON_WRITE: the copies become different in silence; ON_READ: AttributeError "
            "or TypeError, though each copy may have its own value",
        ),
        Row(
            "`v.assign_add(PerReplica(1, 2))`",
            lambda _, v: v.assign_add(steps),
            elsewhere="not known; of `assign` see above",
        ),
        Row("`v.assign(w)`, `w` ON_READ, SUM of 10 and 20", assigned_sum, elsewhere=read_back),
        Row("`v.assign(6.0)` in `merge_call`", in_merge(lambda v: v.assign(6.0)), "replica"),
        Row(
            "`v.assign(x)` in `extended.update`, x = 6",
            in_update(lambda v, x: v.assign(x), jnp.float32(6)),
        ),
        Row(
            "`v.assign_add(x)` in `extended.update`, x = PerReplica(1, 2)",
            in_update(lambda v, x: v.assign_add(x), steps),
            elsewhere="ON_WRITE: the copies become different in silence",
        ),
    ]


def writes_in_replicas() -> list[Row]:
    """The rows of the table of writes in replica context; `x` is 10 and 20."""
    each = functools.partial(Row, where="replica", initial=(1, 1))
    diverge = "NONE: the copies become different in silence"
    return [
        each("`v.assign(x)`", lambda _, v: v.assign(own(10, 20)), elsewhere=diverge),
        each("`v.assign_add(x)`", lambda _, v: v.assign_add(own(10, 20)), elsewhere=diverge),
        each("`v.assign_sub(x)`", lambda _, v: v.assign_sub(own(10, 20)), elsewhere=diverge),
        each(
            "`v.assign(3.0)`",
            lambda _, v: v.assign(3.0),
            elsewhere="SUM: ValueError for a Python number, though a tensor is summed",
        ),
        each("`v.assign(array)`, 4 on both", lambda _, v: v.assign(jnp.float32(4))),
        each(
            "`v.assign(y)`, `y` is 4 on both, but may differ",
            lambda _, v: v.assign(own(4, 4)),
            elsewhere="NONE: 4, 4, as nothing is checked; a compiled step is refused here because "
            "the values are equal by chance, and may differ in the next step",
        ),
        each(
            "`v.assign(ctx.all_reduce('mean', x))`",
            lambda _, v: v.assign(rx.get_replica_context().all_reduce("mean", own(10, 20))),
        ),
        each(
            "`extended.update(v, assign_add, args=(x,))`",
            lambda strategy, v: strategy.extended.update(
                v, lambda v, x: v.assign_add(x), args=(own(10, 20),)
            ),
            elsewhere="ON_WRITE: the copies become different in silence",
        ),
    ]


def indexed() -> list[Row]:
    """The rows of the table of indexed updates of four rows."""
    of_on_read = "ON_READ: NotImplementedError"
    diverge = f"NONE: the copies become different in silence; {of_on_read}"
    refused = "SUM, MEAN: NotImplementedError, though nothing has to be combined; "
    table = []
    for op in ("add", "sub", "mul", "div", "min", "max", "update"):
        call, start = functools.partial(_scattered, op), 8 if op == "min" else 2
        rows = functools.partial(Row, initial=([start] * 4, [start] * 4))
        label = f"`v.scatter_{op}(slices)`"
        extra = refused if op in {"min", "max", "update"} else ""
        table.append(rows(f"{label} in a replica", call, "replica", elsewhere=diverge))
        table.append(rows(f"{label} across", call, elsewhere=extra + of_on_read))
    only_first = "has no `at`; `v[1:2].assign` changes replica 0's copy only, in silence"
    for op in ("add", "multiply", "set"):
        call = functools.partial(_indexed, op)
        rows = functools.partial(Row, initial=([2] * 4, [2] * 4))
        label = f"`v.at[1].{op}(x)`"
        table.append(rows(f"{label} in a replica", call, "replica", elsewhere="has no `at`"))
        table.append(rows(f"{label} across", call, elsewhere=only_first))
    return table


def _scattered(op: str, _: rx.Strategy, v: rx.Variable) -> None:
    getattr(v, f"scatter_{op}")(slices())


def _indexed(op: str, _: rx.Strategy, v: rx.Variable) -> None:
    x = own(5, 6) if rx.get_replica_context() is not None else 5.0
    getattr(v.at[1], op)(x)


# --- checkpoints -------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointRow:
    """Where copies 10 and 20 (or 7 across replicas, as integers) arrive after a restore."""

    label: str
    replicas: int
    dtype: str = "float32"
    elsewhere: str = ""

    def cells(self) -> list[str]:
        """What comes out for each kind."""
        return [self._cell(kind) for kind in KINDS]

    def _cell(self, kind: Kind) -> str:
        """Save, and restore into a variable of the kind; 0 replicas are a plain variable."""
        try:
            saved = variable_of(kind, (10, 20), self.dtype)
        except rx.errors.ReplicaxError as error:
            return f"{named(error)} when it is made"
        if self.dtype == "int32":
            saved.assign(7)
        target = (
            variable_of(kind, [0] * self.replicas, self.dtype)
            if self.replicas
            else rx.Variable(np.zeros((), self.dtype), name="v")
        )
        with tempfile.TemporaryDirectory() as folder:
            try:
                rx.checkpoint.Checkpoint(v=saved).save(f"{folder}/saved")
                rx.checkpoint.Checkpoint(v=target).restore(f"{folder}/saved")
            except rx.errors.ReplicaxError as error:
                return named(error)
        return shown(strategy_of(self.replicas or 1).local_results(target))


def checkpoints() -> list[CheckpointRow]:
    """The rows of the table of checkpoints."""
    fails = "ON_READ, NONE: ValueError when it is saved"
    return [
        CheckpointRow("a plain variable", 0, elsewhere=fails),
        CheckpointRow("the same kind on 2 replicas", 2, elsewhere=fails),
        CheckpointRow("the same kind on 4 replicas", 4, elsewhere=fails),
        CheckpointRow(
            "the same kind, int32, 7 assigned before",
            2,
            "int32",
            "ON_READ, SUM: 3, 3, which reads as 6",
        ),
    ]


# --- the page ----------------------------------------------------------------------------------

TABLES: dict[str, Callable[[], Sequence[Row | CheckpointRow]]] = {
    "reads": reads,
    "writes-across": writes_across,
    "writes-in-replicas": writes_in_replicas,
    "indexed": indexed,
    "checkpoints": checkpoints,
}


def table(rows: Sequence[Row | CheckpointRow]) -> str:
    """The rows as a Markdown table; kinds of which all cells are equal share a column."""
    columns: dict[tuple[str, ...], list[Kind]] = {}
    for kind, cells in zip(KINDS, zip(*(row.cells() for row in rows), strict=True), strict=True):
        columns.setdefault(cells, []).append(kind)
    heads = ["", *map(_head, columns.values()), "tf.distribute"]
    lines = [heads, ["---"] * len(heads)]
    for i, row in enumerate(rows):
        lines.append([row.label, *(cells[i] for cells in columns), row.elsewhere or "same"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _head(kinds: Sequence[Kind]) -> str:
    parts = []
    for when in dict.fromkeys(kind.synchronization for kind in kinds):
        names = [kind.aggregation for kind in kinds if kind.synchronization == when]
        every = len(names) == len(KINDS) // 2
        parts.append(when if every else f"{when} {', '.join(names)}")
    return "; ".join(parts)


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"some of {', '.join(TABLES)}")
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"no table is called {', '.join(sorted(unknown))}")
    jax.config.update("jax_platforms", "cpu")
    rx.devices.logical(cpu=4)
    OTHERS[2] = variable_of(Kind("ON_READ", "SUM"), (10, 20))
    text = page = PAGE.read_text(encoding="utf-8")
    for name in options.tables or TABLES:
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            print(f"{PAGE} has no place for the table: {begin} ... {end}")
            return 1
        page = f"{before}{begin}\n\n{table(TABLES[name]())}\n\n{end}{after}"
    if page == text:
        return 0
    if options.check:
        print(f"{PAGE.name} is not what the code gives; run `python tools/variable_tables.py`.")
        old = text.splitlines()
        print("\n".join(f"+ {line}" for line in page.splitlines() if line not in old))
        return 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
