"""Several resolvers as one cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from replicax.cluster._cluster_spec import ClusterSpec
from replicax.errors import ArgumentTypeError, InvalidArgumentError, Table, describe

from ._base import ClusterResolver
from ._environment import Environment
from ._simple import check_task

_Answer = TypeVar("_Answer")


class UnionResolver(ClusterResolver):
    """The tasks of several resolvers as one cluster. Context: any.

    Jobs of different names stand side by side. Where two resolvers have the same job, the tasks of
    the later one follow those of the earlier.

    Args:
        resolvers: The resolvers, at least one.
        task_type: The job of this process; None takes the first resolver's that knows it.
        task_id: The index of this process in its job, likewise.

    Raises:
        ArgumentTypeError: Something is no resolver.
        InvalidArgumentError: There is none, or the cluster has no such task.

    Examples:
        >>> from replicax.cluster import SimpleResolver
        >>> union = UnionResolver(
        ...     SimpleResolver({"worker": ["a:1"]}, task_type="worker", task_id=0),
        ...     SimpleResolver({"worker": ["b:1"], "ps": ["c:1"]}))
        >>> union.cluster_spec()
        ClusterSpec({'ps': ['c:1'], 'worker': ['a:1', 'b:1']})
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        for place, resolver in enumerate(resolvers):
            if not isinstance(resolver, ClusterResolver):
                raise ArgumentTypeError(
                    describe(
                        f"UnionResolver got {resolver!r} ({type(resolver).__name__}) in place "
                        f"{place}.",
                        fix="pass resolvers.",
                    )
                )
        if not resolvers:
            raise InvalidArgumentError(
                describe("UnionResolver got no resolver.", fix="pass one or more.")
            )
        super().__init__(resolvers[0]._environment)
        self._resolvers = resolvers
        self._task_type, self._task_id = task_type, task_id

    @classmethod
    def detect(cls, environment: Environment | None = None) -> bool:
        """Returns False: the program names the resolvers."""
        del environment
        return False

    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks of all resolvers.

        Raises:
            InvalidArgumentError: Two resolvers give one index to different tasks.
        """
        merged: dict[str, dict[int, str]] = {}
        for resolver in self._resolvers:
            for job, tasks in resolver.cluster_spec().as_dict().items():
                known = merged.setdefault(job, {})
                first = max(known, default=-1) + 1
                numbered = dict(enumerate(tasks, first)) if isinstance(tasks, list) else tasks
                self._check_indices(job, known, numbered)
                known.update(numbered)
        spec = ClusterSpec(merged)
        check_task(spec, self.task_type, self.task_id)
        return spec

    def _check_indices(self, job: str, known: dict[int, str], tasks: dict[int, str]) -> None:
        both = sorted(known.keys() & tasks.keys())
        if both:
            rows = [[index, known[index], tasks[index]] for index in both]
            raise InvalidArgumentError(
                describe(
                    f"Two resolvers give the task {both[0]} of the job {job!r}.",
                    table=Table(["task", "one says", "another says"], rows),
                    why="the index of a task is its own.",
                )
            )

    @property
    def task_type(self) -> str | None:
        """The job of this process."""
        return self._task_type or self._first(lambda resolver: resolver.task_type)

    @property
    def task_id(self) -> int | None:
        """The index of this process in its job."""
        if self._task_id is not None:
            return self._task_id
        return self._first(lambda resolver: resolver.task_id)

    @property
    def local_rank(self) -> int | None:
        """The first resolver's that knows it."""
        return self._first(lambda resolver: resolver.local_rank)

    @property
    def local_world_size(self) -> int | None:
        """The first resolver's that knows it."""
        return self._first(lambda resolver: resolver.local_world_size)

    def _first(self, ask: Callable[[ClusterResolver], _Answer | None]) -> _Answer | None:
        answers = (ask(resolver) for resolver in self._resolvers)
        return next((answer for answer in answers if answer is not None), None)
