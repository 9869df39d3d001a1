"""What every resolver answers: who am I, who are the others, where do we meet."""

from __future__ import annotations

import abc
import os

from replicax.cluster._addresses import host_of, is_loopback
from replicax.cluster._cluster_spec import ClusterSpec
from replicax.cluster._proxies import check_proxies
from replicax.errors import FailedPreconditionError, InvalidArgumentError, Table, describe

from ._environment import Environment


class ClusterResolver(abc.ABC):
    """Who this process is in its job, who the others are, and where they meet. Context: any.

    A resolver is a function of environment variables: it starts nothing, opens no connection,
    and reads the variables anew at each call.

    Args:
        environment: The variables; None takes those of this process.
    """

    def __init__(self, environment: Environment | None = None) -> None:
        self._environment: Environment = os.environ if environment is None else environment

    @classmethod
    @abc.abstractmethod
    def detect(cls, environment: Environment | None = None) -> bool:
        """Returns whether the variables of this kind of cluster are there."""

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks of the cluster. An address that nobody knows yet is empty."""

    @property
    @abc.abstractmethod
    def task_type(self) -> str | None:
        """The job of this process: `worker`, `chief`, `evaluator`; None where it is none."""

    @property
    @abc.abstractmethod
    def task_id(self) -> int | None:
        """The index of this process in its job; None where it is no task."""

    @property
    def rank(self) -> int:
        """The place of this process in its sync group, from 0.

        Raises:
            FailedPreconditionError: This process is no task of the cluster.
        """
        return self._rank_and_size()[0]

    @property
    def world_size(self) -> int:
        """The number of workers in the sync group of this process.

        Raises:
            FailedPreconditionError: This process is no task of the cluster.
        """
        return self._rank_and_size()[1]

    def _rank_and_size(self) -> tuple[int, int]:
        spec, (task_type, task_id) = self.cluster_spec(), self._task()
        return spec.rank_of(task_type, task_id), spec.world_size(task_type)

    @property
    def local_rank(self) -> int | None:
        """The place of this process among those of its host; None where nobody knows."""
        return None

    @property
    def local_world_size(self) -> int | None:
        """The number of workers on this host; None where nobody knows."""
        return None

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes what is written once."""
        return self.rank == 0

    @property
    def worker_count(self) -> int:
        """The number of workers in the sync group: `world_size`, by tf.distribute's name."""
        return self.world_size

    def coordinator(self) -> str:
        """Returns the address at which the workers meet: on the host of rank 0."""
        addresses = self.cluster_spec().training_addresses()
        if not (addresses and addresses[0]):
            raise FailedPreconditionError(
                describe(
                    f"{type(self).__name__} does not know the address of rank 0.",
                    fix="pass `coordinator='host:port'`.",
                )
            )
        return addresses[0]

    def master(self, task_type: str | None = None, task_id: int | None = None) -> str:
        """Returns the address of a task, or of this process; as in tf.distribute.

        Raises:
            NotFoundError: The cluster has no such task.
        """
        if task_type is None or task_id is None:
            task_type, task_id = self._task()
        return self.cluster_spec().task_address(task_type, task_id)

    def check(self) -> None:
        """Refuses a description with which the workers could not meet.

        Raises:
            InvalidArgumentError: The coordinator is on the loopback, but a peer is elsewhere.
            FailedPreconditionError: A proxy of the environment would catch the connection.
        """
        if self.world_size == 1:
            return
        address = self.coordinator()
        host = host_of(address)
        if is_loopback(host) and (far := self._far_peers()):
            raise InvalidArgumentError(
                describe(
                    f"The workers would meet at {address}, which each host takes for itself.",
                    table=Table(["worker", "where"], far),
                    why="a loopback address is another machine's own: each worker would wait at "
                    "a coordinator of its own.",
                    fix="give the address of rank 0 that the other hosts reach.",
                )
            )
        check_proxies(host, self._environment)

    def _far_peers(self) -> list[list[object]]:
        """A row for each worker that is on another host than the loopback's."""
        known = enumerate(self.cluster_spec().training_addresses())
        rows: list[list[object]] = [
            [rank, address]
            for rank, address in known
            if address and not is_loopback(host_of(address))
        ]
        local = self.local_world_size
        if not rows and local is not None and local < self.world_size:
            others = self.world_size - local
            rows = [[f"{others} of {self.world_size}", "on other hosts"]]
        return rows

    def _task(self) -> tuple[str, int]:
        task_type, task_id = self.task_type, self.task_id
        if task_type is None or task_id is None:
            raise FailedPreconditionError(
                describe(
                    f"{type(self).__name__} does not say which task this process is.",
                    why=f"task_type is {task_type!r}, and task_id is {task_id!r}.",
                    fix="give both.",
                )
            )
        return task_type, task_id

    def __repr__(self) -> str:
        """The class, and what it found."""
        try:
            found = f"rank {self.rank} of {self.world_size}"
        except (InvalidArgumentError, FailedPreconditionError, LookupError):
            found = "incomplete"
        return f"<{type(self).__name__}: {found}>"


class RankResolver(ClusterResolver):
    """A resolver for launchers that number their processes: all are the job `worker`."""

    @property
    def task_type(self) -> str | None:
        """All processes are workers."""
        return "worker"

    @property
    def task_id(self) -> int | None:
        """The rank."""
        return self.rank

    def _task(self) -> tuple[str, int]:
        return "worker", self.rank

    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks; only the address of rank 0 is known before the workers meet."""
        others = [""] * (self.world_size - 1)
        return ClusterSpec({"worker": [self.coordinator(), *others]})
