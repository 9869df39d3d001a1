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

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import Primitive


def unplaced(value: jax.Array) -> jax.Array:
    """The value, with an abstract value that names no mesh."""
    result: jax.Array = _primitive().bind(value)
    return result


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
