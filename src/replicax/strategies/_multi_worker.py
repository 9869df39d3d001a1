"""Data-parallel training on the devices of several processes."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.cluster import ClusterResolver, Timeouts, agree, detect_cluster, join_cluster
from replicax.collectives import CommunicationOptions
from replicax.strategies._base import Strategy


class MultiWorkerMirroredStrategy(Strategy):
    """One replica on each device of every worker process; variables have a copy on each.

    All workers run the same program. A step is one compiled program over all devices; between
    steps, what acts across the replicas (`reduce`, `gather`, creating or assigning a variable,
    reading a sync-on-read one) is a collective: every worker makes the same calls in the same
    order, and they compare what they are about to do first. What a worker reads (a variable,
    `local_results`, the rows of a dataset) is the part of its own replicas.

    Without a cluster there is one worker, and the strategy is a `MirroredStrategy`.

    Context: outside of every scope. Collective: yes. Starts JAX's devices.

    Args:
        cluster: A resolver that describes the cluster; by default what `detect_cluster` finds:
            the workers of `replicax run`, `TF_CONFIG`, Slurm, and so on. Workers that
            `jax.distributed.initialize` started are taken as they are.
        options: How collectives travel.
        timeouts: How long to wait for other workers, when they start and later; None takes those
            of `replicax run`, else the defaults.

    Raises:
        StartupError: A worker did not come in time, or the workers do not match.
        DevicesStartedError: JAX's devices were used before.
        FailedPreconditionError: The workers have different numbers of devices.

    Examples:
        >>> import replicax as rx
        >>> strategy = rx.MultiWorkerMirroredStrategy()
        >>> strategy.worker_count, strategy.is_chief
        (1, True)
    """

    def __init__(
        self,
        cluster: ClusterResolver | None = None,
        *,
        options: CommunicationOptions | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._resolver = detect_cluster() if cluster is None else cluster
        if self._resolver is not None:
            join_cluster(self._resolver, timeouts)
        super().__init__(_devices_of_all(), options)
        if self.replica_mesh.spans_processes:
            self._prove_group()

    def _prove_group(self) -> None:
        """Let all replicas take part in a real collective.

        The engine connects the workers then, while all of them are known to be there: it waits
        for a worker that is late at a first step for no longer than 30 s.
        """
        mesh = self.replica_mesh
        agree("rx.MultiWorkerMirroredStrategy", {"replicas": mesh.num_replicas})
        own = [jnp.int32(replica) for replica in mesh.local_replicas]
        found = np.asarray(mesh.all_rows(mesh.from_rows(own)))
        if found.tolist() != list(range(mesh.num_replicas)):
            raise errors.StartupError(
                errors.describe(
                    f"The replicas of {mesh.num_replicas} devices answered as {found.tolist()}.",
                    why="each replica gives its number to all others when the strategy is made.",
                    fix="look whether all workers list the same devices in the same order.",
                )
            )

    @property
    def cluster_resolver(self) -> ClusterResolver | None:
        """What describes the cluster, or None."""
        return self._resolver


def _devices_of_all() -> list[jax.Device]:
    """The devices of all workers, by worker: replicas of one input pipeline follow each other."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    counts = Counter(device.process_index for device in devices)
    if len(set(counts.values())) > 1:
        raise errors.FailedPreconditionError(
            errors.describe(
                "The workers have different numbers of devices.",
                table=errors.Table(("worker", "devices"), sorted(counts.items())),
                why="Every worker takes an equal part of each global batch.",
                fix="Give all workers the same number of devices: visible GPUs, or logical CPU "
                "devices (`REPLICAX_CPU_DEVICES`).",
            )
        )
    return devices
