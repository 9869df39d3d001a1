"""Numbers of half precision: which dtype where, and loss scaling that all replicas share.

Floor 7 of the design.
"""

from replicax.precision._feedback import ErrorFeedback as ErrorFeedback
from replicax.precision._feedback import all_reduce_with_feedback as all_reduce_with_feedback
from replicax.precision._finite import all_finite as all_finite
from replicax.precision._finite import choose as choose
from replicax.precision._loss_scale import LossScale as LossScale
from replicax.precision._loss_scale import LossScaleState as LossScaleState
from replicax.precision._policy import Policy as Policy
from replicax.precision._reduce import all_reduce_in_float32 as all_reduce_in_float32

__all__ = [
    "ErrorFeedback",
    "LossScale",
    "LossScaleState",
    "Policy",
    "all_finite",
    "all_reduce_in_float32",
    "all_reduce_with_feedback",
    "choose",
]
