"""Values that leave a mapped program without its mesh.

JAX's abstract values name the mesh that they lie on, also where the compiler decides on layouts.
The outputs of a `jax.shard_map` name the mesh of the replicas; a second replica function that
closes over one would be traced with this name, and refused by the mapped program that it becomes
part of, whose mesh has another kind of axis. The identity below forgets the name.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding

from replicax.step._compat import opened, with_equations, without_mesh_context

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import Primitive

# Kernels have equations of their own; the user's own constraints are as they are.
_NOT_LOOKED_INTO = frozenset({"pallas_call", "shard_map", "sharding_constraint"})


def unplaced(value: jax.Array) -> jax.Array:
    """The value, with an abstract value that names no mesh."""
    result: jax.Array = _primitive().bind(value)
    return result


def without_places(program: Any, axis: tuple[str, int]) -> Any:
    """The traced replica function without the meshes of arrays that it closes over.

    A variable's array that was read outside of the step (the frozen weights of another network,
    say) names the mesh as well, and so do values and derivatives that are made of it.

    Args:
        program: A closed jaxpr.
        axis: Name and size of the axis of the replicas.

    Returns:
        A jaxpr of the same arguments and constants; the same object if no constant has a mesh.
    """
    if all(jax.typeof(x).sharding.mesh.empty for x in program.consts):
        return program
    equations = [_without_place(eqn, axis) for eqn in opened(program)[0].eqns]
    return with_equations(program, equations)


def _without_place(eqn: Any, axis: tuple[str, int]) -> Any:
    """An equation whose parameters name no mesh."""
    if eqn.primitive.name == "reshard":
        return without_mesh_context(eqn).replace(primitive=_primitive(), params={})
    if eqn.primitive.name in _NOT_LOOKED_INTO:
        return eqn

    def plain(value: Any) -> Any:
        if type(value) in {tuple, list}:
            return type(value)(map(plain, value))
        if isinstance(value, NamedSharding):
            return None
        return _traced_anew(value, axis) if hasattr(value, "eqns") else value

    params = {name: plain(value) for name, value in eqn.params.items()}
    return without_mesh_context(eqn).replace(params=params)


def _traced_anew(jaxpr: Any, axis: tuple[str, int]) -> Any:
    """A jaxpr of an equation, whose variables have types without a mesh."""
    inner, constants = opened(jaxpr)
    is_closed = inner is not jaxpr
    equations = [_without_place(eqn, axis) for eqn in inner.eqns]
    jaxpr = with_equations(jaxpr, equations)
    if constants:
        return jaxpr
    run = functools.partial(jax.core.eval_jaxpr, opened(jaxpr)[0], ())
    anew = jax.make_jaxpr(run, axis_env=[axis])(*(_forgetful(v.aval) for v in inner.invars))
    return anew if is_closed else opened(anew)[0]


@functools.cache
def _primitive() -> Primitive:
    from jax.extend.core import Primitive  # noqa: PLC0415 - brings Pallas along

    primitive = Primitive("replicax_unplaced")
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(_forgetful)
    mlir.register_lowering(primitive, lambda _, x: [x])
    ad.deflinear2(primitive, lambda cotangent, _: [primitive.bind(cotangent)])
    batching.defvectorized(primitive)
    return primitive


def _forgetful(x: Any) -> Any:
    return jax.core.ShapedArray(x.shape, x.dtype, weak_type=x.weak_type)
