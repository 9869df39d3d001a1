"""What a padded batch obliges a step to.

A remainder is padded to one shape on all replicas (see `replicax.input`). Two things must then be
known of a step before it may run: that it masks the padding out of its sums (`_row_proof`), and
which of its results have one entry a row, so that padding can be cut off them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from replicax import errors
from replicax.step._arguments import Leaf
from replicax.step._compat import opened
from replicax.step._proof import Source
from replicax.step._unused_keys import without_unused_keys
from replicax.values import AXIS, StrategyLike


@dataclass(frozen=True)
class Padding:
    """The padded arguments of one run.

    Attributes:
        label: How messages call the first of them.
        rows: i32[num_replicas] real rows, in the surrounding program.
        positions: Which of the run's arrays are padded.
    """

    label: str
    rows: Any
    positions: tuple[int, ...]

    @property
    def position(self) -> int:
        """The first padded array."""
        return self.positions[0]

    def row_aligned(
        self,
        body: Callable[..., Any],
        local: Sequence[jax.ShapeDtypeStruct],
        rows: jax.ShapeDtypeStruct | None,
        program: Any,
        strategy: StrategyLike,
    ) -> tuple[tuple[bool | None, ...], Any]:
        """Find out which outputs have one entry a row, by tracing with one row more.

        Returns:
            For each output: True if axis 0 grows with the batch, False if nothing grows, None if
            that cannot be said. And the trace with one row more, or None if it failed.
        """
        wider = list(local)
        for position in self.positions:
            old = local[position]
            wider[position] = jax.ShapeDtypeStruct((old.shape[0] + 1, *old.shape[1:]), old.dtype)
        try:
            axis_env = [(AXIS, strategy.num_replicas_in_sync)]
            # As the program itself, or the two would be no longer comparable.
            probe = without_unused_keys(jax.make_jaxpr(body, axis_env=axis_env)(wider, rows))
        except Exception:  # noqa: BLE001 - the user's code may insist on its batch size
            return tuple(None for _ in program.out_avals), None
        capacity = local[self.position].shape[0]
        aligned = tuple(
            _grows(old.shape, new.shape, capacity)
            for old, new in zip(program.out_avals, probe.out_avals, strict=True)
        )
        return aligned, probe

    def require_mask(
        self,
        program: Any,
        sources: Sequence[Source | None],
        outputs: Sequence[tuple[str, Source | None, bool | None]],
        strategy: StrategyLike,
        *,
        mask_was_used: bool,
    ) -> None:
        """Refuse a step that counts the padding in something.

        Results with one entry a row are fine without a mask: their padding is cut off.

        Args:
            program: The jaxpr of what one replica runs. Its last input is the row count.
            sources: For each other input why it varies; None if it is mirrored.
            outputs: For each output how messages call it, why it varies, and whether it has one
                entry a row.
            strategy: The strategy.
            mask_was_used: Whether the replica function asked for the mask.

        Raises:
            UnusedMaskError: Padding was mixed into an output, or may have been and the mask was
                never used.
        """
        # A tenth of the import of replicax, for remainders alone.
        from replicax.step._row_proof import (  # noqa: PLC0415
            Input,
            Output,
            check_rows,
            read_rows,
        )

        inputs = [Input.MIRRORED if source is None else Input.VARYING for source in sources]
        for position in self.positions:
            inputs[position] = Input.PADDED
        jaxpr, _ = opened(program)
        states = read_rows(
            program,
            [*inputs, Input.COUNT],
            axis_name=AXIS,
            num_replicas=strategy.num_replicas_in_sync,
            capacity=jaxpr.invars[self.position].aval.shape[0],
        )
        found = [
            Output(label, state, is_per_row=cause is not None and rows is not False)
            for state, (label, cause, rows) in zip(states, outputs, strict=True)
        ]
        check_rows(self.label, found, mask_was_used=mask_was_used)


def padding_of(leaves: Sequence[Leaf]) -> Padding | None:
    """The padding of a run's arguments, or None if no row is padding.

    Raises:
        InvalidArgumentError: Two arguments are padded to different numbers of rows.
    """
    arrays = [leaf for leaf in leaves if leaf.is_array or leaf.is_per_replica]
    padded = [
        (position, leaf)
        for position, leaf in enumerate(arrays)
        if leaf.is_per_replica and leaf.value.rows is not None
    ]
    if not padded:
        return None
    capacities = {leaf.value.stacked.shape[1] for _, leaf in padded}
    if len(capacities) > 1:
        raise errors.InvalidArgumentError(
            errors.describe(
                "Two padded batches of different sizes were given to one run.",
                table=errors.Table(
                    ("argument", "rows with padding"),
                    [(leaf.label, leaf.value.stacked.shape[1]) for _, leaf in padded],
                ),
                why="A replica context has one mask, for the rows of one global batch.",
                fix="Distribute one dataset of pairs instead of two datasets.",
            )
        )
    first = padded[0][1]
    return Padding(first.label, first.value.rows, tuple(position for position, _ in padded))


def check_alignment(
    paths: Sequence[str], aligned: Sequence[bool | None], causes: Sequence[Source | None]
) -> None:
    """Refuse results of which it is unknown whether they hold padding.

    Raises:
        UnprovenError: Naming the result.
    """
    for path, rows, cause in zip(paths, aligned, causes, strict=False):
        if cause is not None and rows is None:
            raise errors.UnprovenError(
                errors.describe(
                    f"It is unknown which entries of `result{path}` are padding.",
                    why="The batch is a padded remainder. The step was traced with one row more to "
                    "see which results have one entry a row on axis 0, and this one does not "
                    "tell.",
                    fix="Return per-row results with the batch on axis 0, do not fix the batch "
                    "size in the code, or reduce with `ctx.global_mean` or `ctx.global_sum`.",
                )
            )


def _grows(old: tuple[int, ...], new: tuple[int, ...], capacity: int) -> bool | None:
    if old == new:
        return False
    rows_first = old[:1] == (capacity,) and new[:1] == (capacity + 1,)
    return True if rows_first and old[1:] == new[1:] else None
