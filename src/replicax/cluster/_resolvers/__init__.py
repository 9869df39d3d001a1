"""Resolvers: who this process is in its job, from the variables of its launcher."""

from __future__ import annotations

from ._base import ClusterResolver as ClusterResolver
from ._cloud_tpu import CloudTPUResolver as CloudTPUResolver
from ._detect import detect_cluster as detect_cluster
from ._hostlist import expand_hostlist as expand_hostlist
from ._kubernetes import KubernetesResolver as KubernetesResolver
from ._openmpi import OpenMPIResolver as OpenMPIResolver
from ._simple import SimpleResolver as SimpleResolver
from ._slurm import SlurmResolver as SlurmResolver
from ._tf_config import TFConfigResolver as TFConfigResolver
from ._torchrun import TorchrunResolver as TorchrunResolver
from ._union import UnionResolver as UnionResolver

__all__ = [
    "CloudTPUResolver",
    "ClusterResolver",
    "KubernetesResolver",
    "OpenMPIResolver",
    "SimpleResolver",
    "SlurmResolver",
    "TFConfigResolver",
    "TorchrunResolver",
    "UnionResolver",
    "detect_cluster",
    "expand_hostlist",
]
