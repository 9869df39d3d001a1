"""Values that must be equal on all replicas where they are used, such as reduced gradients.

In a compiled step the values pass through an identity that the proof knows: it refuses one that
varies, with the line and the fix. The eager runner compares bits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
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


def require_mirrored(tree: Any, call: str, names: Sequence[str] | None = None) -> Any:
    """Return the tree, checked to be equal on all replicas.

    Context: any. Collective: in the eager runner, where every replica must call it.

    Args:
        tree: Arrays, in any structure.
        call: The public function that was given it, for the message.
        names: What the message calls each leaf; by default its place in the tree.

    Raises:
        VaryingWriteError: In replica context: a leaf may differ between replicas. A compiled step
            raises it when it is proved.
    """
    context = current_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tree
    structure: Any
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [leaf for _, leaf in with_paths]
    if names is None:
        names = [f"gradients{jax.tree_util.keystr(path)}" for path, _ in with_paths]
    if isinstance(context, CompiledReplicaContext):
        bind: Any = _primitive().bind
        return structure.unflatten(
            [bind(jnp.asarray(x), call=call, name=n) for x, n in zip(leaves, names, strict=True)]
        )
    _compare(context, leaves, call, names)
    return tree


def _compare(
    context: ReplicaContext, leaves: Sequence[Any], call: str, names: Sequence[str]
) -> None:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return  # No values to compare; what is written in the end is compared all the same.
    rows = [jnp.expand_dims(jnp.asarray(leaf), 0) for leaf in leaves]
    for name, gathered in zip(names, context.all_gather(rows, axis=0), strict=True):
        copies = np.asarray(gathered)
        bits = [copy.tobytes() for copy in copies]
        if any(other != bits[0] for other in bits[1:]):
            with np.errstate(all="ignore"):
                wide = copies.astype(np.float64)
                gaps = np.nan_to_num(np.abs(wide - wide[0])).reshape(len(bits), -1).max(axis=1)
            rows_of_table = [(i, f"{gap:.3g}") for i, gap in enumerate(gaps)]
            table = errors.Table(("replica", "largest difference"), rows_of_table)
            raise unreduced(call, name, table)


def unreduced(call: str, name: str, table: errors.Table) -> errors.VaryingWriteError:
    """The error of a value that was given to `call` before it was combined."""
    return errors.VaryingWriteError(
        errors.describe(
            f"`{call}` was given values that differ between replicas: {name}.",
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
    primitive.def_impl(lambda x, **_: x)  # The parameters are for the proof.
    primitive.def_abstract_eval(lambda x, **_: x)
    mlir.register_lowering(primitive, lambda _, x, **__: [x])
    ad.deflinear2(primitive, lambda cotangent, _, **__: [cotangent])
    batching.defvectorized(primitive)
    return primitive
