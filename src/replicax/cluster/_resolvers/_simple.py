"""A cluster that the program describes itself."""

from __future__ import annotations

from replicax.cluster._addresses import split_address
from replicax.cluster._cluster_spec import ClusterSpec, Jobs
from replicax.errors import ArgumentTypeError, InvalidArgumentError, Table, describe

from ._base import ClusterResolver
from ._environment import Environment


class SimpleResolver(ClusterResolver):
    """A cluster that the program describes itself. Context: any.

    Args:
        cluster_spec: The tasks: a `ClusterSpec`, or what makes one.
        task_type: The job of this process.
        task_id: The index of this process in its job.
        coordinator: Where the workers meet, `host:port`; None takes the address of rank 0.
        environment: The variables in which a proxy is looked for; None takes those of this process.

    Raises:
        InvalidArgumentError: The cluster has no such task, or something is no address.

    Examples:
        >>> resolver = SimpleResolver({"worker": ["a:1", "b:1"]}, task_type="worker", task_id=1)
        >>> resolver.rank, resolver.world_size, resolver.coordinator()
        (1, 2, 'a:1')
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec | Jobs,
        task_type: str | None = None,
        task_id: int | None = None,
        *,
        coordinator: str | None = None,
        environment: Environment | None = None,
    ) -> None:
        super().__init__(environment)
        self._spec = ClusterSpec(cluster_spec)
        check_task(self._spec, task_type, task_id)
        self._task_type, self._task_id = task_type, task_id
        if coordinator is not None:
            split_address(coordinator)
        self._coordinator = coordinator

    @classmethod
    def detect(cls, environment: Environment | None = None) -> bool:
        """Returns False: no variable describes it."""
        del environment
        return False

    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks as they were given."""
        return self._spec

    @property
    def task_type(self) -> str | None:
        """The job as it was given."""
        return self._task_type

    @property
    def task_id(self) -> int | None:
        """The index as it was given."""
        return self._task_id

    def coordinator(self) -> str:
        """Returns where the workers meet."""
        return self._coordinator or super().coordinator()


def check_task(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> None:
    """Refuses a task that the cluster does not have."""
    if task_type is None and task_id is None:
        return
    if not isinstance(task_type, str) or isinstance(task_id, bool) or not isinstance(task_id, int):
        raise ArgumentTypeError(
            describe(
                f"A task is given as task_type={task_type!r} and task_id={task_id!r}.",
                fix="give both: a string and a whole number.",
            )
        )
    if task_type == "evaluator" and task_type not in spec:
        return  # an evaluator watches a cluster that need not know it
    known = [[job, index] for job in spec.jobs for index in spec.task_indices(job)]
    if [task_type, task_id] not in known:
        raise InvalidArgumentError(
            describe(
                f"The cluster has no task {task_id} in a job {task_type!r}.",
                table=Table(["job", "task"], known),
                why="a process must be one of the tasks of its cluster.",
            )
        )
