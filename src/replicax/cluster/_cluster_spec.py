"""Which tasks a cluster has, and where each of them listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replicax.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    NotFoundError,
    Table,
    describe,
)

from ._addresses import split_address

Jobs = Mapping[str, Sequence[str] | Mapping[int, str]]

_TRAINING_JOBS = ("chief", "worker")
_ONE_TASK_JOBS = ("chief", "evaluator")


class ClusterSpec:
    """Which tasks a cluster has, and where each of them listens. Context: any; immutable.

    The jobs `chief` and `worker` train together: the chief is rank 0, the workers follow. An
    `evaluator` is no part of the sync group.

    Args:
        jobs: For each job the addresses (`host:port`) of its tasks: a list, or a mapping from the
            index of the task where some are left out. An address may be empty as long as
            nobody knows it. Another `ClusterSpec` is copied.

    Raises:
        ArgumentTypeError: `jobs` has another form.
        InvalidArgumentError: Something is no address, one address is given to two tasks, or a
            job that can have one task has more.

    Examples:
        >>> spec = ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:1"]})
        >>> spec.num_tasks("worker"), spec.rank_of("worker", 1)
        (2, 2)
    """

    def __init__(self, jobs: Jobs | ClusterSpec) -> None:
        if isinstance(jobs, ClusterSpec):
            self._jobs: dict[str, dict[int, str]] = {job: dict(t) for job, t in jobs._jobs.items()}
            return
        if not isinstance(jobs, Mapping):
            raise ArgumentTypeError(
                describe(
                    f"ClusterSpec got {jobs!r} ({type(jobs).__name__}).",
                    fix='pass a mapping such as {"worker": ["node0:8476", "node1:8476"]}.',
                )
            )
        self._jobs = {job: _tasks(job, tasks) for job, tasks in sorted(jobs.items())}
        self._check_counts()
        self._check_duplicates()

    def _check_counts(self) -> None:
        for job in _ONE_TASK_JOBS:
            if len(self._jobs.get(job, ())) > 1:
                raise InvalidArgumentError(
                    describe(
                        f"The job {job!r} has {len(self._jobs[job])} tasks.",
                        table=self._table([(job, index) for index in self._jobs[job]]),
                        why=f"a cluster has at most one {job}.",
                    )
                )

    def _check_duplicates(self) -> None:
        seen: dict[str, tuple[str, int]] = {}
        for job, tasks in self._jobs.items():
            for index, address in tasks.items():
                if address and address in seen:
                    raise InvalidArgumentError(
                        describe(
                            f"Two tasks of the cluster have the address {address!r}.",
                            table=self._table([seen[address], (job, index)]),
                            why="each task listens on an address of its own.",
                        )
                    )
                seen[address] = (job, index)

    def _table(self, tasks: Sequence[tuple[str, int]]) -> Table:
        rows = [[job, index, self._jobs[job][index]] for job, index in tasks]
        return Table(["job", "task", "address"], rows)

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs, sorted."""
        return list(self._jobs)

    def num_tasks(self, job: str) -> int:
        """Returns the number of tasks of a job.

        Raises:
            NotFoundError: The cluster has no such job.
        """
        return len(self._tasks_of(job))

    def task_indices(self, job: str) -> list[int]:
        """Returns the indices of the tasks of a job, sorted.

        Raises:
            NotFoundError: The cluster has no such job.
        """
        return list(self._tasks_of(job))

    def task_address(self, job: str, index: int) -> str:
        """Returns the address of a task; empty where nobody knows it yet.

        Raises:
            NotFoundError: The cluster has no such job or task.
        """
        tasks = self._tasks_of(job)
        if index not in tasks:
            raise NotFoundError(
                describe(
                    f"The cluster has no task {index!r} in the job {job!r}.",
                    table=self._table([(job, known) for known in tasks]),
                )
            )
        return tasks[index]

    def job_tasks(self, job: str) -> list[str]:
        """Returns the addresses of a job's tasks, by index.

        Raises:
            NotFoundError: The cluster has no such job.
        """
        return list(self._tasks_of(job).values())

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Returns the jobs as the constructor takes them.

        Examples:
            >>> ClusterSpec({"worker": {0: "a:1"}, "ps": {3: "b:1"}}).as_dict()
            {'ps': {3: 'b:1'}, 'worker': ['a:1']}
        """
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def rank_of(self, task_type: str, task_id: int) -> int:
        """Returns the place of a task in its sync group: the chief, then the workers.

        Raises:
            InvalidArgumentError: The task has no place there: a parameter server, say.
            NotFoundError: The cluster has no such task.
        """
        if task_type == "evaluator":
            return 0
        if task_type not in _TRAINING_JOBS:
            raise InvalidArgumentError(
                describe(
                    f"A task of the job {task_type!r} has no rank.",
                    why="the jobs `chief` and `worker` train together; an `evaluator` is alone.",
                )
            )
        self.task_address(task_type, task_id)
        place = self.task_indices(task_type).index(task_id)
        return place + (len(self._jobs.get("chief", ())) if task_type == "worker" else 0)

    def world_size(self, task_type: str = "worker") -> int:
        """Returns how many tasks are in the sync group of a task: chief and workers, or 1."""
        if task_type == "evaluator":
            return 1
        return sum(len(self._jobs.get(job, ())) for job in _TRAINING_JOBS)

    def training_addresses(self) -> list[str]:
        """Returns the addresses of the chief and the workers, by rank."""
        return [a for job in _TRAINING_JOBS for a in self._jobs.get(job, {}).values()]

    def _tasks_of(self, job: str) -> dict[int, str]:
        if job not in self._jobs:
            raise NotFoundError(
                describe(f"The cluster has no job {job!r}.", fix=f"its jobs are {self.jobs}.")
            )
        return self._jobs[job]

    def __bool__(self) -> bool:
        """Whether there is any task."""
        return any(self._jobs.values())

    def __contains__(self, job: object) -> bool:
        """Whether there is a job of this name."""
        return job in self._jobs

    def __eq__(self, other: object) -> bool:
        """Whether both have the same tasks at the same addresses."""
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    def __hash__(self) -> int:
        """Equal specs have equal hashes."""
        return hash(tuple((job, tuple(tasks.items())) for job, tasks in self._jobs.items()))

    def __repr__(self) -> str:
        """The constructor's call."""
        return f"ClusterSpec({self.as_dict()!r})"


def _tasks(job: object, tasks: Any) -> dict[int, str]:
    """The tasks of one job, by index."""
    if isinstance(tasks, str):
        tasks = [tasks]
    if isinstance(tasks, Mapping):
        pairs = [(_index(job, index), address) for index, address in tasks.items()]
    elif isinstance(tasks, Sequence):
        pairs = list(enumerate(tasks))
    else:
        pairs = [(0, None)]
    found: dict[int, str] = {}
    for index, address in pairs:
        if not isinstance(job, str) or not isinstance(address, str):
            raise ArgumentTypeError(
                describe(
                    f"ClusterSpec got {job!r}: {tasks!r}.",
                    fix='pass a list of addresses, such as {"worker": ["node0:8476"]}.',
                )
            )
        if index in found:
            raise InvalidArgumentError(
                describe(
                    f"The job {job!r} has the task {index} twice.",
                    table=Table(["task", "address"], [[index, found[index]], [index, address]]),
                    why="the index of a task is its own.",
                )
            )
        if address:
            split_address(address)
        found[index] = address
    return dict(sorted(found.items()))


def _index(job: object, index: object) -> int:
    """The index of a task; JSON has only strings as keys."""
    text = str(index)
    if isinstance(index, bool) or not (text.isascii() and text.isdecimal()):
        raise InvalidArgumentError(
            describe(
                f"The job {job!r} has a task with the index {index!r}.",
                why="the index of a task is a whole number from 0.",
            )
        )
    return int(text)
