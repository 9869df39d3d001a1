"""Checks of a running program: do the replicas really hold the same bits?

Floor 7 of the design. The proof says that mirrored values are equal by construction; these checks
look at the devices.
"""

from replicax.verify._replicas import check_replicas_equal as check_replicas_equal

__all__ = ["check_replicas_equal"]
