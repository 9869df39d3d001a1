"""Flax NNX: modules and optimizers that are used in place under a strategy.

Floor 8 of the design. Needs Flax: `pip install 'replicax[flax]'`.
"""

from replicax.nnx import _optimizer as _optimizer
from replicax.nnx._adopt import adopt as adopt
from replicax.nnx._adopt import variables as variables

__all__ = ["adopt", "variables"]
