"""The variables of torchrun, which `replicax run` sets too."""

from __future__ import annotations

import os

from replicax.cluster._addresses import join_address, split_address
from replicax.cluster._cluster_spec import ClusterSpec

from ._base import RankResolver
from ._environment import Environment, check_local, number, optional, rank_and_size, require
from ._tf_config import TFConfigResolver

CONTROL = "REPLICAX_CONTROL"
COORDINATOR = "REPLICAX_COORDINATOR"
_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class TorchrunResolver(RankResolver):
    """The workers of `replicax run`, or of torchrun. Context: any.

    It reads `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, `LOCAL_RANK` and
    `LOCAL_WORLD_SIZE`. Workers of `replicax run` meet at `REPLICAX_COORDINATOR`.

    Args:
        environment: The variables; None takes those of this process.

    Raises:
        FailedPreconditionError: A method is called, and a variable is missing.
        InvalidArgumentError: Variables contradict each other.

    Examples:
        >>> variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "80"}
        >>> resolver = TorchrunResolver(variables)
        >>> resolver.rank, resolver.world_size, resolver.coordinator()
        (1, 2, 'a:80')
    """

    @classmethod
    def detect(cls, environment: Environment | None = None) -> bool:
        """Returns whether `RANK` and `WORLD_SIZE` are set, and where to meet."""
        found = os.environ if environment is None else environment
        return all(found.get(name) for name in _NAMES)

    def _require(self) -> None:
        fix = "start the program with `replicax run` or torchrun."
        require(self._environment, type(self).__name__, _NAMES, fix=fix)

    def _rank_and_size(self) -> tuple[int, int]:
        """`RANK` and `WORLD_SIZE`."""
        self._require()
        check_local(self._environment, "LOCAL_WORLD_SIZE", "WORLD_SIZE")
        return rank_and_size(self._environment, "RANK", "WORLD_SIZE")

    @property
    def local_rank(self) -> int | None:
        """`LOCAL_RANK`."""
        return optional(self._environment, "LOCAL_RANK")

    @property
    def local_world_size(self) -> int | None:
        """`LOCAL_WORLD_SIZE`."""
        return optional(self._environment, "LOCAL_WORLD_SIZE", least=1)

    def coordinator(self) -> str:
        """Returns `REPLICAX_COORDINATOR`, else the address of `MASTER_ADDR` and `MASTER_PORT`."""
        if address := self._environment.get(COORDINATOR):
            return join_address(*split_address(address))
        self._require()
        host = self._environment["MASTER_ADDR"].strip("[]")
        address = join_address(host, number(self._environment, "MASTER_PORT", least=1))
        return join_address(*split_address(address))

    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks; `replicax run` gives all their addresses."""
        if self._environment.get(CONTROL) and TFConfigResolver.detect(self._environment):
            return TFConfigResolver(environment=self._environment).cluster_spec()
        return super().cluster_spec()

    def _far_peers(self) -> list[list[object]]:
        """None where `replicax run` started the workers: its launchers have met there already."""
        return [] if self._environment.get(CONTROL) else super()._far_peers()
