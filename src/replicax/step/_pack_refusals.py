"""What is said of transformations and states that do not fit packed parameters."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from replicax import errors
from replicax.values._layout import Layout

_SHOWN = 8


def not_elementwise(reason: str) -> errors.UnimplementedError:
    """The error of a transformation that joins elements."""
    return errors.UnimplementedError(
        errors.describe(
            "A packed optimizer was given a transformation that does not treat each element by "
            "itself.",
            why=f"Of packed leaves it would make other numbers: {reason}.",
            fix="Leave that part out (clip with `rx.clip_by_global_norm` before, which takes "
            "packed gradients), or do not pack what it is for.",
        )
    )


def treated_differently(layout: Layout, kinds: Sequence[Hashable]) -> errors.InvalidArgumentError:
    """The error of leaves of one pack that have other rules."""
    ways = list(dict.fromkeys(kinds))
    rows: list[tuple[str, object, str]] = [
        (label, shape, f"way {ways.index(kind) + 1}")
        for label, shape, kind in zip(layout.labels, layout.shapes, kinds, strict=True)
    ]
    # Of each way some, in the order of the ways.
    rows = sorted(rows, key=lambda row: row[2])
    if len(rows) > _SHOWN:
        most = max(1, _SHOWN // len(ways))
        seen = [[row for row in rows if row[2] == f"way {k + 1}"][:most] for k in range(len(ways))]
        rows = [row for some in seen[:_SHOWN] for row in some]
        rows.append((f"({len(kinds)} leaves in all)", "", f"{len(ways)} ways"))
    return errors.InvalidArgumentError(
        errors.describe(
            "A packed optimizer was given a transformation that treats leaves of one pack in "
            f"different ways: `{layout.names[0]}`.",
            table=errors.Table(("leaf", "shape", "is updated in"), rows),
            why="A mask, labels or a schedule tell them apart; the pack is updated as one array.",
            fix="Pack what is treated alike: `rx.pack(params, by=labels)`, where `labels` is a "
            "tree of what tells the leaves apart, such as `jax.tree.map(jnp.ndim, params)` or the "
            "transformation's mask.",
        )
    )


def other_state(how: str) -> errors.InvalidArgumentError:
    """The error of a state of another packing."""
    return errors.InvalidArgumentError(
        errors.describe(
            "A packed optimizer was given a state that is not for these parameters.",
            why=f"It must be that of parameters packed like these; but {how}.",
            fix="Pass what `init` or the last `update` gave for parameters packed alike. Take it "
            "to another packing with `unpack_state` (the old parameters) and `pack_state` (the "
            "new ones).",
        )
    )
