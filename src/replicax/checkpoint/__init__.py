"""Checkpoints: the state of a program, saved on one number of replicas and restored on another.

Floor 7 of the design. `Checkpoint` finds variables, arrays and numbers in the objects it is given,
and Orbax writes them. The package is imported when it is first used: ``rx.checkpoint`` is enough.
"""

from replicax.checkpoint._checkpoint import Checkpoint as Checkpoint
from replicax.checkpoint._checkpoint import commits as commits
from replicax.checkpoint._preemption import PreemptionHandler as PreemptionHandler
from replicax.checkpoint._restoration import RestoreStatus as RestoreStatus
from replicax.checkpoint._termination import TerminationConfig as TerminationConfig

__all__ = ["Checkpoint", "PreemptionHandler", "RestoreStatus", "TerminationConfig", "commits"]
