"""The entrance of the row pass."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replicax.step import _compat

from ._collectives import COLLECTIVE_RULES
from ._control import CONTROL_RULES
from ._cuts import CUT_RULES
from ._elementwise import ELEMENTWISE_RULES
from ._indexing import INDEXING_RULES
from ._products import PRODUCT_RULES
from ._reductions import REDUCTION_RULES
from ._scope import Pass, Rule, Scope
from ._shapes import SHAPE_RULES, default
from ._states import CLEAN, COUNT, COUNTED, State, padded

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

RULES: dict[str, Rule] = {
    **ELEMENTWISE_RULES,
    **SHAPE_RULES,
    **CUT_RULES,
    **REDUCTION_RULES,
    **PRODUCT_RULES,
    **INDEXING_RULES,
    **COLLECTIVE_RULES,
    **CONTROL_RULES,
}


class Input(enum.Enum):
    """What goes into a replica function."""

    PADDED = "rows of the batch, with padding"
    VARYING = "another value of each replica"
    MIRRORED = "the same on all replicas"
    COUNT = "the number of real rows"


def read_rows(
    program: Any,
    inputs: Sequence[Input],
    *,
    axis_name: str,
    num_replicas: int,
    capacity: int,
    is_strict: bool = False,
) -> list[State]:
    """Find where padding goes in a replica function. Context: any.

    Reads the jaxpr once; nothing is compiled or run.

    Args:
        program: The closed jaxpr of what one replica runs.
        inputs: What each of its inputs is.
        axis_name: The mesh axis of the replicas.
        num_replicas: How many replicas there are.
        capacity: Rows of one replica, with padding.
        is_strict: Whether a rule that cannot read its equation raises. Else it says `Unknown`.

    Returns:
        The state of each output.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> def step(x, real):
        ...     return jnp.sum(x), jnp.sum(x, where=jnp.arange(4) < real)
        >>> jaxpr = jax.make_jaxpr(step)(jnp.ones(4), jnp.int32(3))
        >>> wrong, right = read_rows(
        ...     jaxpr, [Input.PADDED, Input.COUNT], axis_name="replica", num_replicas=2, capacity=4
        ... )
        >>> wrong.what, right.is_clean
        ('sum or mean over the rows', True)
    """
    jaxpr, _ = _compat.opened(program)
    shared = Pass(axis_name, capacity, num_replicas, _find_rule, is_strict=is_strict)
    starts = {Input.VARYING: COUNTED, Input.MIRRORED: CLEAN, Input.COUNT: COUNT}
    states = [
        padded(len(variable.aval.shape)) if kind is Input.PADDED else starts[kind]
        for variable, kind in zip(jaxpr.invars, inputs, strict=True)
    ]
    return Scope(shared).run(program, states)


def _find_rule(eqn: JaxprEqn) -> Rule:
    return RULES.get(eqn.primitive.name, default)
