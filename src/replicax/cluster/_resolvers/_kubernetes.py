"""The pods of an indexed Kubernetes Job, or of a JobSet."""

from __future__ import annotations

import os
import re
import socket

from replicax.cluster._addresses import join_address
from replicax.cluster._cluster_spec import ClusterSpec
from replicax.errors import FailedPreconditionError, InvalidArgumentError, describe

from ._base import RankResolver
from ._environment import Environment, rank_and_size, require

DEFAULT_PORT = 8476
NUM_WORKERS = "REPLICAX_NUM_WORKERS"
SUBDOMAIN = "REPLICAX_SUBDOMAIN"
_INDEX = "JOB_COMPLETION_INDEX"
_NAMES = (_INDEX, NUM_WORKERS)
_POD = re.compile(r"(.+)-(\d+)", re.ASCII)


class KubernetesResolver(RankResolver):
    """The pods of an indexed Job, or of a JobSet with one replicated job. Context: any.

    Kubernetes gives each pod `JOB_COMPLETION_INDEX` and a host name that ends in it. The number
    of pods is set by the manifest in `REPLICAX_NUM_WORKERS`; the headless service in
    `REPLICAX_SUBDOMAIN`, unless the pod's own full name tells it. No client library is needed.

    Args:
        port: The port at which the workers meet, on the pod with index 0.
        full_name: The full name of this pod; None asks the resolver of this host, where
            `environment` is its own.
        environment: The variables; None takes those of this process.

    Raises:
        FailedPreconditionError: A method is called, and a variable is missing.
        InvalidArgumentError: Variables contradict each other.

    Examples:
        >>> resolver = KubernetesResolver(environment={
        ...     "JOB_COMPLETION_INDEX": "1", "REPLICAX_NUM_WORKERS": "2",
        ...     "REPLICAX_SUBDOMAIN": "train", "HOSTNAME": "train-1"})
        >>> resolver.cluster_spec()
        ClusterSpec({'worker': ['train-0.train:8476', 'train-1.train:8476']})
    """

    def __init__(
        self,
        port: int = DEFAULT_PORT,
        *,
        full_name: str | None = None,
        environment: Environment | None = None,
    ) -> None:
        super().__init__(environment)
        self._port = port
        self._asks = environment is None
        self._full_name = full_name

    @classmethod
    def detect(cls, environment: Environment | None = None) -> bool:
        """Returns whether this is a pod of an indexed job whose size is known."""
        found = os.environ if environment is None else environment
        return all(found.get(name) for name in _NAMES)

    def _rank_and_size(self) -> tuple[int, int]:
        """`JOB_COMPLETION_INDEX` and `REPLICAX_NUM_WORKERS`."""
        fix = (
            "use `completionMode: Indexed`, and set the number of pods in the manifest as "
            f"{NUM_WORKERS}."
        )
        require(self._environment, type(self).__name__, _NAMES, fix=fix)
        return rank_and_size(self._environment, *_NAMES)

    @property
    def local_rank(self) -> int | None:
        """A pod has a host of its own: 0."""
        return 0

    @property
    def local_world_size(self) -> int | None:
        """A pod has a host of its own: 1."""
        return 1

    def coordinator(self) -> str:
        """Returns the address of the pod with index 0."""
        return self.cluster_spec().task_address("worker", 0)

    def cluster_spec(self) -> ClusterSpec:
        """Returns the pods by their names in the headless service."""
        stem, subdomain = self._stem(), self._subdomain()
        hosts = [f"{stem}-{index}.{subdomain}" for index in range(self.world_size)]
        return ClusterSpec({"worker": [join_address(host, self._port) for host in hosts]})

    def _stem(self) -> str:
        """The name of the pods without their index."""
        rank = self.rank
        name = self._environment.get("HOSTNAME", "").partition(".")[0]
        match = _POD.fullmatch(name)
        if match is None or int(match[2]) != rank:
            raise InvalidArgumentError(
                describe(
                    f"The environment has HOSTNAME={name!r}, but {_INDEX}={rank}.",
                    why="the host name of an indexed pod ends in its index.",
                    fix="leave `hostname` out of the pod template.",
                )
            )
        return match[1]

    def _subdomain(self) -> str:
        if found := self._environment.get(SUBDOMAIN):
            return found
        full_name = self._full_name
        if full_name is None and self._asks:
            full_name = socket.getfqdn()
        found = (full_name or "").partition(".")[2]
        if not found:
            raise FailedPreconditionError(
                describe(
                    "KubernetesResolver does not know the headless service of the pods.",
                    why="pods find each other by its name.",
                    fix="set `subdomain` in the pod template to a headless service, or name the "
                    f"service in {SUBDOMAIN}.",
                )
            )
        return found
