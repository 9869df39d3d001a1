"""The automatic choice of a resolver."""

from __future__ import annotations

import os
import sys

from replicax.errors import InvalidArgumentError, Table, describe

from ._base import ClusterResolver
from ._cloud_tpu import CloudTPUResolver
from ._environment import Environment, optional
from ._kubernetes import NUM_WORKERS, KubernetesResolver
from ._openmpi import OpenMPIResolver
from ._slurm import SlurmResolver
from ._tf_config import TFConfigResolver
from ._torchrun import CONTROL, TorchrunResolver

# A launcher may run inside of another: the innermost stands first.
KINDS: tuple[type[ClusterResolver], ...] = (
    TorchrunResolver,
    TFConfigResolver,
    OpenMPIResolver,
    SlurmResolver,
    CloudTPUResolver,
    KubernetesResolver,
)


def detect_cluster(environment: Environment | None = None) -> ClusterResolver | None:
    """Returns the resolver for the variables that are there, or None. Context: any.

    The first that fits counts: the workers of `replicax run` or torchrun, `TF_CONFIG`, Open MPI,
    Slurm, Cloud TPU, Kubernetes. Rank 0 prints the choice to standard error, unless
    `replicax run` made it.

    Args:
        environment: The variables; None takes those of this process.

    Raises:
        InvalidArgumentError: Variables contradict each other, or the workers could not meet.
        FailedPreconditionError: A proxy of the environment would catch their connections, or
            half of a launcher's variables are missing.

    Examples:
        >>> detect_cluster({}) is None
        True
    """
    found = os.environ if environment is None else environment
    kinds = [kind for kind in KINDS if kind.detect(found)]
    if not kinds:
        _look_for_half_a_cluster(found)
        return None
    # None is handed on as None: a resolver may ask the host only about its own process.
    resolver = kinds[0](environment=environment)
    if kinds[:2] == [TorchrunResolver, TFConfigResolver] and not found.get(CONTROL):
        _check_agreement(resolver, TFConfigResolver(environment=environment))
    resolver.check()
    if resolver.rank == 0 and not found.get(CONTROL):  # `replicax run` has nothing to choose
        _say(f"{type(resolver).__name__} found {resolver.world_size} worker(s).")
    return resolver


def _check_agreement(one: ClusterResolver, other: ClusterResolver) -> None:
    """Two descriptions of one job must be the same job."""
    rows = [[type(each).__name__, each.rank, each.world_size] for each in (one, other)]
    if rows[0][1:] != rows[1][1:]:
        raise InvalidArgumentError(
            describe(
                "The environment describes two clusters.",
                table=Table(["found by", "rank", "workers"], rows),
                why="one of them is left from another job.",
                fix="unset TF_CONFIG, or RANK and WORLD_SIZE; or pass a resolver.",
            )
        )


def _look_for_half_a_cluster(environment: Environment) -> None:
    """A process that should be one of many must not train alone in silence."""
    size = _count(environment, "WORLD_SIZE")
    if size > 1 and environment.get("RANK"):
        _ = TorchrunResolver(environment).rank  # says what is missing
    tasks, pods = _count(environment, "SLURM_NTASKS"), environment.get("JOB_COMPLETION_INDEX")
    if tasks > 1 and not environment.get("SLURM_STEP_NUM_TASKS"):
        found, fix = f"SLURM_NTASKS={tasks}", "it was not started by srun: use `srun python ...`"
    elif pods and not environment.get(NUM_WORKERS):
        found, fix = f"JOB_COMPLETION_INDEX={pods}", f"the manifest does not set {NUM_WORKERS}"
    elif size > 1:
        found, fix = f"WORLD_SIZE={size}", "RANK is not set"
    else:
        return
    _say(f"{found}, but this process runs alone: {fix}.")


def _count(environment: Environment, name: str) -> int:
    return optional(environment, name, least=1) or 1


def _say(text: str) -> None:
    print(f"replicax: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the user asked for it
