"""The hosts of a Cloud TPU slice, or of several."""

from __future__ import annotations

import os

from replicax.cluster._addresses import host_of, join_address
from replicax.cluster._cluster_spec import ClusterSpec
from replicax.errors import InvalidArgumentError, describe

from ._base import RankResolver
from ._environment import Environment, number, optional, require

DEFAULT_PORT = 8476
_HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")


class CloudTPUResolver(RankResolver):
    """The hosts of a Cloud TPU slice, or of several joined by Megascale. Context: any.

    It reads `TPU_WORKER_ID`, `TPU_WORKER_HOSTNAMES` (or `TPU_PROCESS_ADDRESSES`) and, with several
    slices, `MEGASCALE_NUM_SLICES`, `MEGASCALE_SLICE_ID` and `MEGASCALE_COORDINATOR_ADDRESS`, as
    Google Kubernetes Engine sets them. On a plain TPU virtual machine set the first two.

    Args:
        port: The port at which the workers meet, on host 0.
        environment: The variables; None takes those of this process.

    Raises:
        FailedPreconditionError: A method is called, and a variable is missing.
        InvalidArgumentError: Variables contradict each other.

    Examples:
        >>> resolver = CloudTPUResolver(environment={
        ...     "TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t0,t1"})
        >>> resolver.rank, resolver.world_size, resolver.coordinator()
        (1, 2, 't0:8476')
    """

    def __init__(self, port: int = DEFAULT_PORT, *, environment: Environment | None = None) -> None:
        super().__init__(environment)
        self._port = port

    @classmethod
    def detect(cls, environment: Environment | None = None) -> bool:
        """Returns whether this is a host of a TPU slice that names its hosts."""
        found = os.environ if environment is None else environment
        return bool(found.get("TPU_WORKER_ID")) and any(found.get(name) for name in _HOSTS)

    def _slice_hosts(self) -> list[str]:
        name = next((name for name in _HOSTS if self._environment.get(name)), _HOSTS[1])
        fix = "set both on each host of the slice."
        require(self._environment, type(self).__name__, ("TPU_WORKER_ID", name), fix=fix)
        return [host_of(part) for part in self._environment[name].split(",")]

    def _slices(self) -> tuple[int, int]:
        """The index of this slice, and the number of slices."""
        count = optional(self._environment, "MEGASCALE_NUM_SLICES", least=1) or 1
        index = optional(self._environment, "MEGASCALE_SLICE_ID") or 0
        self._check_index("MEGASCALE_SLICE_ID", index, count, "slices")
        return index, count

    def _check_index(self, name: str, index: int, count: int, what: str) -> None:
        if index >= count:
            raise InvalidArgumentError(
                describe(
                    f"The environment has {name}={index}, but there are {count} {what}.",
                    why="one of the two is left from another job.",
                )
            )

    @property
    def rank(self) -> int:
        """The hosts are numbered slice by slice."""
        hosts, (slice_index, _) = self._slice_hosts(), self._slices()
        place = number(self._environment, "TPU_WORKER_ID")
        self._check_index("TPU_WORKER_ID", place, len(hosts), "hosts in the slice")
        return slice_index * len(hosts) + place

    @property
    def world_size(self) -> int:
        """The number of hosts of all slices."""
        return len(self._slice_hosts()) * self._slices()[1]

    @property
    def local_rank(self) -> int | None:
        """A host runs one process: 0."""
        return 0

    @property
    def local_world_size(self) -> int | None:
        """A host runs one process: 1."""
        return 1

    def coordinator(self) -> str:
        """Returns the address of the first host of the first slice."""
        hosts, (slice_index, count) = self._slice_hosts(), self._slices()
        if count == 1:
            return join_address(hosts[0], self._port)
        name = "MEGASCALE_COORDINATOR_ADDRESS"
        require(self._environment, type(self).__name__, [name], fix="set it on each host.")
        del slice_index
        return join_address(host_of(self._environment[name]), self._port)

    def cluster_spec(self) -> ClusterSpec:
        """Returns the hosts; those of other slices are not known before the workers meet."""
        hosts, (slice_index, count) = self._slice_hosts(), self._slices()
        addresses = [""] * (len(hosts) * count)
        first = slice_index * len(hosts)
        addresses[first : first + len(hosts)] = [join_address(host, self._port) for host in hosts]
        addresses[0] = self.coordinator()
        return ClusterSpec({"worker": addresses})
