"""The programs of one `rx.function`: which one takes some arguments, and how it is built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax

from replicax import errors
from replicax.step._arguments import argument_name, parameter_names, stack_components
from replicax.step._bound_objects import check_no_objects
from replicax.step._callbacks import Callbacks
from replicax.step._program import Program, check_leaf, signature
from replicax.step._state import check_fed_back, check_returned_state
from replicax.step._trace import Traced, trace
from replicax.values import PerReplica, ReplicaMesh, StrategyLike, Variable, regroup

if TYPE_CHECKING:
    from replicax.step._function import Function


class Programs:
    """The programs of a function, by the scope of a call and the structure of its arguments.

    Args:
        function: What is compiled.
        donate: Names of the arguments that are donated.
        function_id: Its number, which what it returns is marked with.
    """

    def __init__(self, function: Function, donate: Sequence[str], function_id: int) -> None:
        self._function, self._donate, self._id = function, donate, function_id
        # Several where objects of model libraries are built now in one way, now in another.
        self._programs: dict[tuple[StrategyLike | None, Any], list[Program]] = {}
        self._plain_arguments: set[str] = set()

    def __iter__(self) -> Iterator[Program]:
        """All of them."""
        for some in self._programs.values():
            yield from some

    def forget(self, program: Program) -> None:
        """Build it anew when it is needed again."""
        for programs in self._programs.values():
            programs[:] = [one for one in programs if one is not program]

    def names(self, args: Sequence[Any]) -> list[str]:
        """What the arguments are called."""
        return parameter_names(self._function.fn, len(args))

    def trace(self, structure: Any, leaves: Sequence[Any]) -> Traced:
        """Trace the function and check what the trace returns.

        A trace that creates variables is made anew with them: as in tf.function, the Python code
        is expected to create them the first time only.
        """
        traced = trace(self._function.fn, structure, leaves, function_id=self._id)
        if traced.created:
            traced = trace(self._function.fn, structure, leaves, function_id=self._id)
        if traced.created:
            raise _created_again(traced.created, self._function.__name__)
        args, _ = structure.unflatten(leaves)
        check_returned_state(
            args, traced.form, self._donate, self.names(args), self._function.__name__
        )
        return traced

    def find(self, scope: StrategyLike | None, args: Any, kwargs: Any) -> tuple[Program, Any, Any]:
        """The program for the structure of these arguments, and the arguments as it takes them."""
        mesh = scope.replica_mesh if scope is not None else None
        check_no_objects(args, kwargs, self.names(args))
        args, kwargs = stacked((args, kwargs), self.names(args), mesh)
        self._check_arguments(args, kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))
        programs = self._programs.setdefault((scope, structure), [])
        program = next((program for program in programs if program.fits()), None)
        if program is None:
            traced = self.trace(structure, leaves)
            read = [v for v in traced.variables if v in traced.used - set(traced.written)]
            program = self._new(scope, traced, args, kwargs, traced.written, read)
            program.keep((structure, signature(leaves)), traced)
            programs.append(program)
        return program, args, kwargs

    def _new(
        self,
        scope: StrategyLike | None,
        traced: Traced,
        args: Any,
        kwargs: Any,
        written: Sequence[Variable],
        read: Sequence[Variable],
        callbacks: Sequence[Callbacks] = (),
        objects: Sequence[Any] = (),
    ) -> Program:
        names = self.names(args)
        places: list[int | str] = [i for i, name in enumerate(names) if name in self._donate]
        return Program(
            self._function,
            args,
            kwargs,
            written=written,
            read=read,
            donated=places + [name for name in kwargs if name in self._donate],
            scope=scope,
            strategy=traced.strategy,
            callbacks=[one for one in [*callbacks, traced.callbacks] if one.are_there],
            objects=[*objects, *traced.objects],
        )

    def rebuilt(self, old: Program, traced: Traced, args: Any, kwargs: Any) -> Program:
        """Make a program that serves the variables and callbacks of old and new traces."""
        written = [*old.written, *(v for v in traced.written if v not in old.written)]
        used = {*old.read, *old.written, *traced.used}
        read = [v for v in traced.variables if v in used - set(written)]
        of_old = old.callbacks, old.objects
        program = self._new(old.scope, traced, args, kwargs, written, read, *of_old)
        for key, known in old.traces.items():
            program.keep(key, known)
        programs = self._programs[old.scope, jax.tree.structure((args, kwargs))]
        programs[programs.index(old)] = program
        return program

    def _check_arguments(self, args: Any, kwargs: Any) -> None:
        names, function = self.names(args), self._function.__name__
        with_paths, _ = jax.tree_util.tree_flatten_with_path(
            (args, kwargs), is_leaf=lambda value: isinstance(value, (PerReplica, Variable))
        )
        for path, value in with_paths:
            name = argument_name(path, names)
            if isinstance(value, PerReplica):
                check_fed_back(value, name, self._id, self._plain_arguments, function)
            else:
                check_leaf(value, name)
        self._plain_arguments.update(
            argument_name(path, names)
            for path, value in with_paths
            if not isinstance(value, PerReplica)
        )


def _created_again(created: Sequence[Variable], function: str) -> errors.ContextError:
    names = ", ".join(f"`{variable.name}`" for variable in created)
    return errors.ContextError(
        errors.describe(
            f"`{function}` creates variable {names} each time it is traced.",
            why="A step is traced anew for other shapes; the new variable would start from its "
            "initial value again.",
            fix="Create it before, under `with strategy.scope():`; or once: `if self.w is None: "
            "self.w = rx.Variable(...)`.",
        )
    )


def stacked(tree: Any, names: Sequence[str], mesh: ReplicaMesh | None = None) -> Any:
    """Stack per-replica values of `(args, kwargs)` that are held as components.

    Those of a strategy that spans processes are the components of this process.
    """
    spans_processes = mesh is not None and mesh.spans_processes

    def stack(path: Any, value: Any) -> Any:
        if not isinstance(value, PerReplica) or value.stacked is not None:
            return value
        label = f"argument `{argument_name(path, names)}`"

        def joined(rows: Sequence[Any]) -> PerReplica:
            together = stack_components(rows, label)
            if mesh is not None and spans_processes and len(rows) == mesh.num_local_replicas:
                together = mesh.place_stacked(together)
            return PerReplica.from_stacked(together)

        return regroup(value.values, joined)

    return jax.tree_util.tree_map_with_path(
        stack, tree, is_leaf=lambda value: isinstance(value, PerReplica)
    )
