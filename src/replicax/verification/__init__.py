"""Checks of a running program: does it do on all replicas what it does on one device?

Floor 7 of the design. The proof says that mirrored values are equal by construction; these checks
look at the devices, at the input plan, and at what one device does.
"""

from replicax.verification._replicas import check_replicas_equal as check_replicas_equal
from replicax.verification._report import Finding as Finding
from replicax.verification._report import Report as Report
from replicax.verification._report import Status as Status
from replicax.verification._verify import verify as verify
from replicax.verification._work import ReplicaWork as ReplicaWork
from replicax.verification._work import Work as Work
from replicax.verification._work import check_replicas_work as check_replicas_work

__all__ = [
    "Finding",
    "ReplicaWork",
    "Report",
    "Status",
    "Work",
    "check_replicas_equal",
    "check_replicas_work",
    "verify",
]
