"""Cluster: who belongs to a job of several workers, how they start, and how long they wait.

Floor 1 of the design. Bulk data goes through compiled programs; messages between workers carry
names, shapes, plans and digests, which they compare before they compute together.
"""

from __future__ import annotations

from ._agreement import agree as agree
from ._cluster_spec import ClusterSpec as ClusterSpec
from ._failure import Failure as Failure
from ._first_difference import digest_of as digest_of
from ._first_difference import first_difference as first_difference
from ._gather import gather as gather
from ._gather import guard as guard
from ._gather import is_alone as is_alone
from ._gather import site_here as site_here
from ._inspecting import JobLook as JobLook
from ._inspecting import look_at_job as look_at_job
from ._joining import join_cluster as join_cluster
from ._last_call import LastCall as LastCall
from ._launcher import LaunchOptions as LaunchOptions
from ._launcher import launch as launch
from ._master import Master as Master
from ._master_process import MasterProcess as MasterProcess
from ._order import NUMBER_BITS as NUMBER_BITS
from ._order import ORDER as ORDER
from ._order import VARIANT_BITS as VARIANT_BITS
from ._order import entry_of as entry_of
from ._resolvers import CloudTPUResolver as CloudTPUResolver
from ._resolvers import ClusterResolver as ClusterResolver
from ._resolvers import KubernetesResolver as KubernetesResolver
from ._resolvers import OpenMPIResolver as OpenMPIResolver
from ._resolvers import SimpleResolver as SimpleResolver
from ._resolvers import SlurmResolver as SlurmResolver
from ._resolvers import TFConfigResolver as TFConfigResolver
from ._resolvers import TorchrunResolver as TorchrunResolver
from ._resolvers import UnionResolver as UnionResolver
from ._resolvers import detect_cluster as detect_cluster
from ._resolvers import expand_hostlist as expand_hostlist
from ._running import running as running
from ._runtime import Runtime as Runtime
from ._runtime import runtime as runtime
from ._timeouts import Timeouts as Timeouts

__all__ = [
    "NUMBER_BITS",
    "ORDER",
    "VARIANT_BITS",
    "CloudTPUResolver",
    "ClusterResolver",
    "ClusterSpec",
    "Failure",
    "JobLook",
    "KubernetesResolver",
    "LastCall",
    "LaunchOptions",
    "Master",
    "MasterProcess",
    "OpenMPIResolver",
    "Runtime",
    "SimpleResolver",
    "SlurmResolver",
    "TFConfigResolver",
    "Timeouts",
    "TorchrunResolver",
    "UnionResolver",
    "agree",
    "detect_cluster",
    "digest_of",
    "entry_of",
    "expand_hostlist",
    "first_difference",
    "gather",
    "guard",
    "is_alone",
    "join_cluster",
    "launch",
    "look_at_job",
    "running",
    "runtime",
    "site_here",
]
