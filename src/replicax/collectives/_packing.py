"""How the leaves of one all-reduce travel: small ones together, large ones alone."""

from __future__ import annotations

from collections.abc import Sequence

from replicax.errors import InvalidArgumentError, describe

from ._transport import LIMITS, PackLimits, Transport


def plan_packs(
    sizes_bytes: Sequence[int],
    dtypes: Sequence[object],
    bytes_per_pack: int = 0,
    *,
    limits: PackLimits = LIMITS[Transport.MEMORY],
    produced: Sequence[int] | None = None,
) -> list[list[int]]:
    """Decides which leaves of one all-reduce travel together. Context: any.

    Leaves of one pack have one dtype. Leaves are packed in the order in which they are produced,
    and a pack comes where its last leaf does, so that it can travel while the rest is computed.

    Args:
        sizes_bytes: Size of each leaf.
        dtypes: Dtype of each leaf, or anything else that is equal where leaves may be joined.
        bytes_per_pack: 0 leaves the choice to `limits`. Above 0, a new pack starts where the
            next leaf would exceed this number, and a larger leaf travels alone.
        limits: Up to which size leaves are packed, and packs grow.
        produced: When each leaf is produced: numbers of any size, of which smaller ones come
            first. By default in the order of the leaves.

    Returns:
        Packs of leaf numbers. Each leaf is in exactly one pack.

    Raises:
        InvalidArgumentError: The lengths differ, or a number is negative.

    Examples:
        >>> plan_packs([4096, 8_000_000, 4096], ["float32"] * 3)
        [[1], [0, 2]]
        >>> plan_packs([4, 4, 4, 12], ["int32"] * 4, bytes_per_pack=8)
        [[0, 1], [2], [3]]
        >>> plan_packs([4, 4, 4], ["int32"] * 3, bytes_per_pack=8, produced=[9, 7, 5])
        [[2, 1], [0]]
    """
    produced = range(len(sizes_bytes)) if produced is None else produced
    _check(sizes_bytes, dtypes, produced, bytes_per_pack)
    largest_leaf = bytes_per_pack or limits.leaf_bytes
    largest_pack = bytes_per_pack or limits.pack_bytes
    packs: list[list[int]] = []
    open_packs: dict[object, tuple[list[int], int]] = {}
    order = sorted(range(len(sizes_bytes)), key=produced.__getitem__)
    for leaf in order:
        size, dtype = sizes_bytes[leaf], dtypes[leaf]
        if size > largest_leaf:
            packs.append([leaf])
            continue
        pack, filled = open_packs.get(dtype, ([], 0))
        if not pack or filled + size > largest_pack:
            pack, filled = [], 0
            packs.append(pack)
        pack.append(leaf)
        open_packs[dtype] = (pack, filled + size)
    place = {leaf: number for number, leaf in enumerate(order)}
    return sorted(packs, key=lambda pack: place[pack[-1]])


def _check(
    sizes_bytes: Sequence[int],
    dtypes: Sequence[object],
    produced: Sequence[int],
    bytes_per_pack: int,
) -> None:
    if not len(sizes_bytes) == len(dtypes) == len(produced):
        raise InvalidArgumentError(
            describe(
                f"There are {len(sizes_bytes)} sizes, but {len(dtypes)} dtypes and "
                f"{len(produced)} places in the order."
            )
        )
    if bytes_per_pack < 0 or any(size < 0 for size in sizes_bytes):
        raise InvalidArgumentError(
            describe(
                f"`bytes_per_pack={bytes_per_pack!r}` or one of "
                f"`sizes_bytes={list(sizes_bytes)!r}` is negative."
            )
        )
