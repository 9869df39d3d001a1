"""What a worker finds in its environment."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from replicax.cluster._addresses import host_of
from replicax.cluster._proxies import proxy_for, with_exception
from replicax.cluster._timeouts import Timeouts
from replicax.errors import InvalidArgumentError, describe

NOT_FOR_WORKERS = ("REPLICAX_SECRET", "REPLICAX_RUN_")
"""Variables that begin so: secrets, and the flags of the launcher."""
THREADS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""The numbers of threads of XLA on CPUs, of OpenMP, and of two libraries for linear algebra."""
GPUS = "CUDA_VISIBLE_DEVICES"


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobPlace:
    """What all workers of a host share.

    Attributes:
        first_rank: Rank of the first worker of this host.
        local_world_size: Number of workers of this host.
        world_size: Number of all workers.
        node_rank: Number of this host, from 0.
        master_addr: Host of rank 0.
        master_port: A port there that is free for the program.
        control: Address of the control channel.
        coordinator: Address of JAX's coordination service.
        tf_addresses: An address for each worker, free for the program.
        restart: How many times the job was started before.
    """

    first_rank: int
    local_world_size: int
    world_size: int
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int
    control: str
    coordinator: str
    tf_addresses: Sequence[str]
    restart: int = 0


def worker_environment(
    base: Mapping[str, str],
    place: JobPlace,
    local_rank: int,
    *,
    timeouts: Timeouts,
    secret_file: str,
) -> dict[str, str]:
    """The variables of one worker: the launcher's own, without its secrets, and the job's."""
    rank = place.first_rank + local_rank
    environment = {n: value for n, value in base.items() if not n.startswith(NOT_FOR_WORKERS)}
    task = {"type": "worker", "index": rank}
    cluster = {"worker": list(place.tf_addresses)}
    environment |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(place.node_rank),
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(place.master_port),
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
        "REPLICAX_CONTROL": place.control,
        "REPLICAX_COORDINATOR": place.coordinator,
        "REPLICAX_SECRET_FILE": secret_file,
        "REPLICAX_TIMEOUTS": json.dumps(timeouts.to_json()),
        "REPLICAX_RESTART": str(place.restart),
    }
    for address in (place.control, place.coordinator):
        if proxy_for(host := host_of(address), environment):
            environment["no_proxy"] = with_exception(host, environment)
    return environment | shares(environment, local_rank, place.local_world_size)


def shares(environment: Mapping[str, str], local_rank: int, workers: int) -> dict[str, str]:
    """The cores and the GPUs of one of several workers, where the user has not shared them out."""
    if workers == 1:
        return {}
    cores = max(1, available_cores() // workers)
    shared = {name: str(cores) for name in THREADS if name not in environment}
    gpus = visible_gpus(environment)
    if gpus:
        if len(gpus) % workers:
            raise InvalidArgumentError(
                describe(
                    f"{len(gpus)} GPUs cannot be shared equally by {workers} workers.",
                    why="replicas must be equal in number on each worker, and two workers cannot "
                    "have one GPU.",
                    fix=f"choose another --nproc-per-node, or set {GPUS}; JAX_PLATFORMS=cpu "
                    "leaves the GPUs alone.",
                )
            )
        count = len(gpus) // workers
        shared[GPUS] = ",".join(gpus[local_rank * count : (local_rank + 1) * count])
    return shared


def available_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """The NVIDIA GPUs that workers may use, by the names that `CUDA_VISIBLE_DEVICES` takes."""
    platforms = environment.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.lower().split(",")):
        return []
    if GPUS in environment:
        names = [name.strip() for name in environment[GPUS].split(",")]
        return [name for name in names if name and name != "-1"]
    found = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdecimal()]
    return [str(number) for number in range(len(found))]
