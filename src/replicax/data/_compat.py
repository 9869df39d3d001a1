"""What other libraries tell by private names only: that a dataset is a shard, or has no end.

Each name has a test that fails once it is gone. What cannot be told at all is said in
`rx.data.as_dataset`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def _any_in_chain(
    source: Any, holds: Callable[[Any], bool], parents: Callable[[Any], Iterable[Any]]
) -> bool:
    waiting = [source]
    while waiting:
        one = waiting.pop()
        if holds(one):
            return True
        waiting.extend(parents(one))
    return False


def is_grain_shard(source: Any) -> bool:
    """Whether a slice with a step, `dataset[i::n]`, stands in the chain of a Grain dataset."""

    def takes_every_nth(one: Any) -> bool:
        is_slice = type(one).__name__ == "SliceMapDataset"
        return is_slice and abs(getattr(one, "_step", None) or 1) != 1

    return _any_in_chain(source, takes_every_nth, lambda one: getattr(one, "parents", ()))


def is_sharded_grain_loader(loader: Any) -> bool:
    """Whether a Grain `DataLoader`, or its sampler, was given shard options."""
    sampler = getattr(loader, "_sampler", None)
    options = getattr(loader, "_shard_options", None) or getattr(sampler, "_shard_options", None)
    return bool(getattr(options, "shard_count", 1) > 1)


def is_endless_grain_loader(loader: Any) -> bool:
    """Whether the sampler of a Grain `DataLoader` counts no epochs."""
    sampler = getattr(loader, "_sampler", None)
    return sampler is not None and getattr(sampler, "_num_epochs", 1) is None


def is_hugging_face_shard(source: Any) -> bool:
    """Whether a Hugging Face `IterableDataset` comes from `split_dataset_by_node`."""
    return bool(getattr(getattr(source, "_distributed", None), "world_size", 1) > 1)


def is_tensorflow_shard(source: Any) -> bool:
    """Whether `shard` stands in the chain of a `tf.data.Dataset`, outside of its functions."""

    def is_shard(one: Any) -> bool:
        if type(one).__name__ != "_ShardDataset":
            return False
        count = getattr(one, "_num_shards", None)
        return count is None or int(count) != 1

    return _any_in_chain(
        source, is_shard, lambda one: one._inputs() if hasattr(one, "_inputs") else ()
    )
