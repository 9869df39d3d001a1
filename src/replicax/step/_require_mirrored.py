"""Values that must be equal on all replicas where they are used, such as reduced gradients.

In a compiled step the values pass through an identity that the proof knows: it refuses one that
varies, with the line and the fix. The eager runner compares bits.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from replicax import errors
from replicax.step._compiled_context import CompiledReplicaContext
from replicax.step._context import ReplicaContext
from replicax.step._proof import MIRRORED_ONLY
from replicax.step._single_context import current_replica_context

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import Primitive


def require_mirrored(tree: Any, call: str) -> Any:
    """Return the tree, checked to be equal on all replicas.

    Context: any. Collective: in the eager runner, where every replica must call it.

    Args:
        tree: Arrays, in any structure.
        call: The public function that was given it, for the message.

    Raises:
        VaryingWriteError: In replica context: a leaf may differ between replicas. A compiled step
            raises it when it is proved.
    """
    context = current_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tree
    if isinstance(context, CompiledReplicaContext):
        return jax.tree.map(lambda x: _primitive().bind(jnp.asarray(x), call=call), tree)
    _compare(context, tree, call)
    return tree


def _compare(context: ReplicaContext, tree: Any, call: str) -> None:
    leaves = jax.tree.leaves(tree)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return  # No values to compare; what is written in the end is compared all the same.
    rows = [jnp.expand_dims(jnp.asarray(leaf), 0) for leaf in leaves]
    for gathered in context.all_gather(rows, axis=0):
        copies = np.asarray(gathered)
        bits = [copy.tobytes() for copy in copies]
        if any(other != bits[0] for other in bits[1:]):
            with np.errstate(all="ignore"):
                wide = copies.astype(np.float64)
                gaps = np.nan_to_num(np.abs(wide - wide[0])).reshape(len(bits), -1).max(axis=1)
            rows_of_table = [(i, f"{gap:.3g}") for i, gap in enumerate(gaps)]
            raise unreduced(call, errors.Table(("replica", "largest difference"), rows_of_table))


def unreduced(call: str, table: errors.Table) -> errors.VaryingWriteError:
    """The error of values that were given to `call` before they were combined."""
    return errors.VaryingWriteError(
        errors.describe(
            f"`{call}` was given values that may differ between replicas.",
            table=table,
            why="It acts on the gradient of the global batch. What it makes of one replica's "
            "gradient is another number, on each replica.",
            fix="Combine the gradients first: `gradients = ctx.all_reduce('mean', gradients)`.",
        )
    )


@functools.cache
def _primitive() -> Primitive:
    from jax.extend.core import Primitive  # noqa: PLC0415 - brings Pallas along

    primitive = Primitive(MIRRORED_ONLY)
    primitive.def_impl(lambda x, call: x)  # noqa: ARG005 - the call is for the proof
    primitive.def_abstract_eval(lambda x, call: x)  # noqa: ARG005
    mlir.register_lowering(primitive, lambda _, x, call: [x])  # noqa: ARG005
    ad.deflinear2(primitive, lambda cotangent, _, call: [cotangent])  # noqa: ARG005
    batching.defvectorized(primitive)
    return primitive
