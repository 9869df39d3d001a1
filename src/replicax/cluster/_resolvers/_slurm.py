"""The tasks of a Slurm job step."""

from __future__ import annotations

import os
import re

from replicax.cluster._addresses import join_address, port_for_job
from replicax.cluster._cluster_spec import ClusterSpec
from replicax.errors import InvalidArgumentError, Table, describe

from ._base import RankResolver
from ._environment import Environment, number, optional, rank_and_size, require
from ._hostlist import MOST_HOSTS, expand_hostlist

_NAMES = (
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
)
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)


class SlurmResolver(RankResolver):
    """The tasks that `srun` started. Context: any.

    The workers meet on the host of task 0, at a port that follows from the ids of job and step.

    Args:
        port: The port at which the workers meet, instead.
        environment: The variables; None takes those of this process.

    Raises:
        FailedPreconditionError: A method is called outside of a job step.
        InvalidArgumentError: Variables contradict each other.

    Examples:
        >>> resolver = SlurmResolver(environment={
        ...     "SLURM_JOB_ID": "7", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4",
        ...     "SLURM_STEP_NODELIST": "gpu[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"})
        >>> resolver.rank, resolver.world_size, resolver.coordinator()
        (2, 4, 'gpu1:61552')
    """

    def __init__(self, port: int | None = None, *, environment: Environment | None = None) -> None:
        super().__init__(environment)
        self._port = port

    @classmethod
    def detect(cls, environment: Environment | None = None) -> bool:
        """Returns whether this process is a task of a job step (`srun`)."""
        found = os.environ if environment is None else environment
        return all(found.get(name) for name in _NAMES)

    def _rank_and_size(self) -> tuple[int, int]:
        """`SLURM_PROCID` and `SLURM_STEP_NUM_TASKS`."""
        fix = "start the program with `srun`: `sbatch` alone starts one process."
        require(self._environment, type(self).__name__, _NAMES, fix=fix)
        return rank_and_size(self._environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")

    @property
    def local_rank(self) -> int | None:
        """`SLURM_LOCALID`."""
        return optional(self._environment, "SLURM_LOCALID")

    @property
    def local_world_size(self) -> int | None:
        """The number of tasks on this node."""
        node = optional(self._environment, "SLURM_NODEID")
        counts = [count for _, count in self._nodes()]
        return counts[node] if node is not None and node < len(counts) else None

    def coordinator(self) -> str:
        """Returns the host of task 0 with the port of the job."""
        return join_address(self._hosts()[0], self._port_of(0))

    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks with their hosts; the ports tell tasks of one host apart."""
        hosts = self._hosts()
        places = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        addresses = [
            join_address(host, self._port_of(place))
            for host, place in zip(hosts, places, strict=True)
        ]
        return ClusterSpec({"worker": addresses})

    def _port_of(self, place: int) -> int:
        if self._port is not None:
            return self._port + place
        step = optional(self._environment, "SLURM_STEP_ID") or 0
        # Jobs that share a host have ids that follow each other: leave room between them.
        return port_for_job(16 * (number(self._environment, "SLURM_JOB_ID") + 251 * step)) + place

    def _nodes(self) -> list[tuple[str, int]]:
        """Each node with its number of tasks."""
        _, size = self._rank_and_size()
        hosts = expand_hostlist(self._environment["SLURM_STEP_NODELIST"])
        counts = tasks_per_node(self._environment["SLURM_STEP_TASKS_PER_NODE"])
        if len(hosts) != len(counts) or sum(counts) != size:
            names = _NAMES[2:]
            raise InvalidArgumentError(
                describe(
                    "The variables of Slurm contradict each other: "
                    f"{len(hosts)} hosts, {sum(counts)} tasks on {len(counts)} nodes.",
                    table=Table(
                        ["variable", "value"], [[name, self._environment[name]] for name in names]
                    ),
                    why="some are left from another job or step.",
                    fix="start the program anew with `srun`, from a clean environment.",
                )
            )
        return list(zip(hosts, counts, strict=True))

    def _hosts(self) -> list[str]:
        """The host of each task: node after node, else in turns."""
        nodes, node = self._nodes(), optional(self._environment, "SLURM_NODEID")
        rank = self.rank
        block = [host for host, count in nodes for _ in range(count)]
        most = max(count for _, count in nodes)
        cyclic = [host for turn in range(most) for host, count in nodes if turn < count]
        for hosts in (block, cyclic):
            if node is None or (node < len(nodes) and hosts[rank] == nodes[node][0]):
                return hosts
        raise InvalidArgumentError(
            describe(
                f"Task {rank} runs on node {node}, which neither a block nor a cyclic "
                "distribution of the tasks gives.",
                table=Table(
                    ["node", "host", "tasks"], [[i, h, c] for i, (h, c) in enumerate(nodes)]
                ),
                fix="run `srun --distribution=block`.",
            )
        )


def tasks_per_node(text: str) -> list[int]:
    """The number of tasks on each node, from Slurm's short form.

    Examples:
        >>> tasks_per_node("2(x3),1")
        [2, 2, 2, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _REPEATED.fullmatch(part.strip())
        repeats = int(match[2] or 1) if match else 0
        if match is None or int(match[1]) < 1 or not 0 < repeats <= MOST_HOSTS:
            raise InvalidArgumentError(
                describe(
                    f"SLURM_STEP_TASKS_PER_NODE is {text!r}.",
                    why=f"{part!r} is no number of tasks.",
                    fix="it is written as 2(x3),1.",
                )
            )
        counts += [int(match[1])] * repeats
    return counts
