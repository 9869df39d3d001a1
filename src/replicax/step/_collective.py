"""One collective as a replica asks for it, in either runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from replicax.collectives import CommunicationOptions, ReduceOp, is_narrow


@dataclass(frozen=True)
class Collective:
    """One collective as a replica asks for it.

    Attributes:
        kind: `all_reduce`, `all_gather`, `reduce_scatter` or `broadcast`.
        op: The reduce op; without effect for the kinds that do not combine.
        axis: The axis, for the kinds that join or cut.
        source: The replica whose value all get, for `broadcast`.
        options: How the value travels.
        structure: The tree that the leaves come from; the same on all replicas.
        joined_for: The reduce op of the sparse rows that an `all_gather` joins, or None.
    """

    kind: str
    op: ReduceOp = ReduceOp.SUM
    axis: int = 0
    source: int = 0
    options: CommunicationOptions = field(default_factory=CommunicationOptions)
    structure: Any = None
    joined_for: ReduceOp | None = None

    @property
    def op_name(self) -> str | None:
        """Name of the reduce op, or None for the kinds that do not combine."""
        if self.joined_for is not None:
            return self.joined_for.name
        return self.op.name if self.kind in {"all_reduce", "reduce_scatter"} else None

    def wire_dtype(self, arrays: Sequence[Any], num_replicas: int) -> str | None:
        """In what some of the arrays travel, where that is not their own dtype."""
        wire = self.options.wire_dtype
        if self.kind not in {"all_reduce", "reduce_scatter"}:
            return None
        narrow = (is_narrow(wire, self.op, x.dtype, x.shape, num_replicas) for x in arrays)
        return wire if any(narrow) else None

    def leaf_names(self, values: Sequence[Any]) -> tuple[str, ...]:
        """The paths of the leaves in their tree; none where the tree has other leaves.

        Args:
            values: What the tree can hold: one value for each leaf.
        """
        if self.structure is None or self.structure.num_leaves != len(values):
            return ()
        paths = jax.tree_util.tree_leaves_with_path(self.structure.unflatten(values))
        return tuple(jax.tree_util.keystr(path) for path, _ in paths)
