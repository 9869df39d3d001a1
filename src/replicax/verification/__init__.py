"""Checks of a running program: do the replicas hold the same bits, and does each have work?

Floor 7 of the design. The proof says that mirrored values are equal by construction; these checks
look at the devices.
"""

from replicax.verification._replicas import check_replicas_equal as check_replicas_equal
from replicax.verification._work import ReplicaWork as ReplicaWork
from replicax.verification._work import Work as Work
from replicax.verification._work import check_replicas_work as check_replicas_work

__all__ = ["ReplicaWork", "Work", "check_replicas_equal", "check_replicas_work"]
