"""The replica context outside of every strategy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from replicax import errors
from replicax.collectives import ReduceOp
from replicax.step._collective import Collective
from replicax.step._context import ReplicaContext
from replicax.step._random import RandomStream
from replicax.step._rows import LocalRows, mean_dtype
from replicax.values import current_frame
from replicax.values._combine import as_array


class SingleReplicaContext(ReplicaContext):
    """The replica context outside of every strategy: one replica, nothing to combine."""

    def __init__(self) -> None:
        super().__init__(None, LocalRows())

    @property
    def replica_id_in_sync_group(self) -> int:
        """Always 0."""
        return 0

    def _stream(self) -> RandomStream:
        return _default_stream()

    def _require_active(self, call: str) -> None:
        frame = current_frame()
        if frame is not None and frame.strategy is not None:
            super()._require_active(call)

    def _communicate(self, collective: Collective, leaves: Sequence[Any]) -> list[Any]:
        arrays = [as_array(leaf, f"A value given to `{collective.kind}`") for leaf in leaves]
        if collective.op is ReduceOp.MEAN:
            return [array.astype(mean_dtype(array.dtype)) for array in arrays]
        return arrays

    def _merge(self, merge_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return merge_fn(self.strategy, *args, **kwargs)


def current_replica_context() -> ReplicaContext | None:
    """The replica context of this thread: None across replicas, a single one outside of scopes."""
    frame = current_frame()
    if frame is None or frame.strategy is None:
        return _default_context()
    replica: Any = frame.replica
    return replica if isinstance(replica, ReplicaContext) else None


def required_replica_context(call: str, *, why: str, fix: str = "") -> ReplicaContext:
    """The replica context of this thread, for a call that has a meaning only there.

    Args:
        call: What was called, as messages say it.
        why: Why it needs a replica.
        fix: What else may have been meant.

    Raises:
        ContextError: In cross-replica context.
    """
    context = current_replica_context()
    if context is not None:
        return context
    inside = "Call it inside the function given to `strategy.run`."
    raise errors.ContextError(
        errors.describe(
            f"{call} was called in cross-replica context.",
            why=why,
            fix=f"{inside} {fix}".rstrip(),
        )
    )


@functools.cache
def _default_context() -> SingleReplicaContext:
    return SingleReplicaContext()


@functools.cache
def _default_stream() -> RandomStream:
    return RandomStream(None, seed=0)
