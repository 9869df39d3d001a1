"""Sums over the replicas of constants, which need not be sent.

The derivative of `ctx.global_mean` starts from the constant 1, and the gradient of a collective is
the same collective: so each step would wait for a sum of ones before its backward pass begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax.step import _compat

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn

_READ_THE_REPLICA = frozenset({"axis_index"})


def without_constant_sums(closed_jaxpr: Any, axis_name: str, num_replicas: int) -> Any:
    """The program with products in the place of sums of constant numbers. Context: any.

    Looks at the outermost equations only: what a branch or a loop holds stays.

    Args:
        closed_jaxpr: What one replica runs, from `jax.make_jaxpr`.
        axis_name: Axis of the replicas.
        num_replicas: Size of this axis.
    """
    jaxpr, _ = _compat.opened(closed_jaxpr)
    constants: set[Any] = set()
    equations, changed = [], False
    for eqn in jaxpr.eqns:
        is_constant = all(
            isinstance(atom, _compat.literal_type()) or atom in constants for atom in eqn.invars
        )
        if is_constant and _sums_one(eqn, axis_name):
            equations.append(_compat.product(eqn, num_replicas))
            changed = True
            constants.update(eqn.outvars)
            continue
        equations.append(eqn)
        if is_constant and not eqn.effects and _is_plain(eqn):
            constants.update(eqn.outvars)
    return _compat.with_equations(closed_jaxpr, equations) if changed else closed_jaxpr


def _sums_one(eqn: JaxprEqn, axis_name: str) -> bool:
    """Whether it sums one number over all replicas."""
    operands: Any = eqn.invars
    return (
        eqn.primitive.name == "psum"
        and [atom.aval.shape for atom in operands] == [()]
        and tuple(eqn.params["axes"]) == (axis_name,)
        and eqn.params["axis_index_groups"] is None
    )


def _is_plain(eqn: JaxprEqn) -> bool:
    """Whether its results are the same wherever it runs; nested programs are not looked into."""
    return eqn.primitive.name not in _READ_THE_REPLICA and not any(_compat.nested_jaxprs(eqn))
