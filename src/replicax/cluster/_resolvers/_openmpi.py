"""The processes that Open MPI's `mpirun` started."""

from __future__ import annotations

import os
import re
import zlib

from replicax.cluster._addresses import join_address, port_for_job, split_address
from replicax.errors import FailedPreconditionError, describe

from ._base import RankResolver
from ._environment import Environment, check_local, number, optional, rank_and_size, require

_NAMES = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
_LAUNCHER_HOST = re.compile(r";tcp4?://([^,:;]+)|;tcp6://\[([^\],]+)")
_JOB_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "OMPI_MCA_ess_base_jobid")


class OpenMPIResolver(RankResolver):
    """The processes that Open MPI's `mpirun` started. Context: any.

    The workers meet at `coordinator`, else at `MASTER_ADDR`, else on this host where all ranks
    run here, else on the host of `mpirun`, where rank 0 runs unless the user placed it elsewhere.

    Args:
        coordinator: Where the workers meet, `host:port`.
        environment: The variables; None takes those of this process.

    Raises:
        FailedPreconditionError: A method is called, and a variable is missing.
        InvalidArgumentError: Variables contradict each other.

    Examples:
        >>> resolver = OpenMPIResolver("node0:8476", environment={
        ...     "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
        >>> resolver.rank, resolver.world_size, resolver.coordinator()
        (1, 2, 'node0:8476')
    """

    def __init__(
        self, coordinator: str | None = None, *, environment: Environment | None = None
    ) -> None:
        super().__init__(environment)
        if coordinator is not None:
            split_address(coordinator)
        self._coordinator = coordinator

    @classmethod
    def detect(cls, environment: Environment | None = None) -> bool:
        """Returns whether Open MPI has numbered this process."""
        found = os.environ if environment is None else environment
        return all(found.get(name) for name in _NAMES)

    def _rank_and_size(self) -> tuple[int, int]:
        """`OMPI_COMM_WORLD_RANK` and `OMPI_COMM_WORLD_SIZE`."""
        fix = "start the program with `mpirun`."
        require(self._environment, type(self).__name__, _NAMES, fix=fix)
        check_local(self._environment, "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE")
        return rank_and_size(self._environment, *_NAMES)

    @property
    def local_rank(self) -> int | None:
        """`OMPI_COMM_WORLD_LOCAL_RANK`."""
        return optional(self._environment, "OMPI_COMM_WORLD_LOCAL_RANK")

    @property
    def local_world_size(self) -> int | None:
        """`OMPI_COMM_WORLD_LOCAL_SIZE`."""
        return optional(self._environment, "OMPI_COMM_WORLD_LOCAL_SIZE", least=1)

    def coordinator(self) -> str:
        """Returns where the workers meet."""
        if self._coordinator is not None:
            return self._coordinator
        return join_address(self._host(), self._port())

    def _host(self) -> str:
        if host := self._environment.get("MASTER_ADDR"):
            return host.strip("[]")
        if self.local_world_size == self.world_size:
            return "127.0.0.1"
        match = _LAUNCHER_HOST.search(self._environment.get("OMPI_MCA_orte_hnp_uri", ""))
        if match is None:
            raise FailedPreconditionError(
                describe(
                    "OpenMPIResolver does not know on which host rank 0 runs.",
                    why="this release of Open MPI does not tell the processes.",
                    fix="pass it on: `mpirun -x MASTER_ADDR=host ...`.",
                )
            )
        return match[1] or match[2]

    def _port(self) -> int:
        if self._environment.get("MASTER_PORT"):
            return number(self._environment, "MASTER_PORT", least=1)
        names = [self._environment[name] for name in _JOB_NAMES if self._environment.get(name)]
        return port_for_job(zlib.crc32("".join(names[:1]).encode()))
