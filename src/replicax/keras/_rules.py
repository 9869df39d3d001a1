"""How what the replicas write to a Keras variable becomes one value.

Keras says it of metrics only. Moving statistics are combined by their mean, seeds differ between
replicas, and all else, the weights and the optimizer's state above all, must be equal.
"""

from __future__ import annotations

import enum
from typing import Any

_MOVING = ("moving_mean", "moving_variance")
_SEED = "seed_generator_state"
_AGREED = ("iteration", "learning_rate")


class Rule(enum.Enum):
    """How values of replicas are combined.

    SHARES: each replica adds to its share; the value is the sum of the shares.
    MEAN: the mean over the replicas.
    FIRST: the value of replica 0.
    SEED: the same, of a seed that each replica sees changed by its number.
    """

    SHARES = "shares"
    MEAN = "mean"
    FIRST = "first"
    SEED = "seed"


def rule_of(variable: Any) -> Rule | None:
    """The rule of a Keras variable; None where the replicas must write equal values."""
    if variable.name == _SEED:
        return Rule.SEED
    if variable.synchronization == "on_read" and variable.aggregation == "sum":
        return Rule.SHARES
    if variable.aggregation == "mean" or (variable.name in _MOVING and not variable.trainable):
        return Rule.MEAN
    if variable.aggregation == "only_first_replica" and variable.name not in _AGREED:
        return Rule.FIRST
    return None
