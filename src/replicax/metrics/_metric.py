"""What all metrics share: their variables, and in which contexts they are used."""

from __future__ import annotations

from typing import Any

import jax

from replicax import errors
from replicax.collectives import EXACT
from replicax.metrics._rows import Rows
from replicax.metrics._totals import clear, new_total, rounded
from replicax.step import current_replica_context
from replicax.values import Variable, current_frame


class Metric:
    """Totals over the real rows of all batches since the last reset.

    It belongs to the strategy in whose scope it is created. Outside of every scope it is a plain
    metric of one device.

    Args:
        name: A name for messages and for the variables.

    Attributes:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def variables(self) -> list[Variable]:
        """The variables that hold the totals: `[2, ...]`, a sum and what was rounded off it."""
        return [value for value in vars(self).values() if isinstance(value, Variable)]

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Add the rows of this replica's batch.

        Context: replica; of a metric that was created outside of every scope, also outside.
        Collective: no.
        """
        raise NotImplementedError

    def result(self) -> jax.Array:
        """Return the metric over all rows that were added since the last reset, on all replicas.

        Context: any. Collective: in replica context, where all replicas get the same.

        Raises:
            ContextError: In `extended.update`.
        """
        raise NotImplementedError

    def reset_state(self) -> None:
        """Forget all rows.

        Context: any; in replica context those of this replica. Collective: no.
        """
        for variable in self.variables:
            clear(variable)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # -- for the kinds of metrics --------------------------------------------------------------

    def _new_total(self, name: str, shape: tuple[int, ...] = ()) -> Variable:
        return new_total(f"{self.name}.{name}", shape)

    def _rows(self) -> Rows:
        """The rows of the current context, for one call of `update_state`.

        Raises:
            ContextError: Across replicas.
        """
        call = f"`{self.name}.update_state`"
        frame = current_frame()
        context = current_replica_context()
        if frame is not None and frame.replica is not None and context is not None:
            return Rows(call, context.example_mask)
        strategy = self.variables[0].strategy
        if strategy is None:
            return Rows(call, None)
        raise errors.ContextError(
            errors.describe(
                f"{call} was called in cross-replica context.",
                why=f"The metric has one total a replica of {strategy.name}, to which a replica "
                "adds its own rows.",
                fix="Call it inside the function given to `strategy.run`. Only `result` and "
                "`reset_state` are for outside.",
            )
        )

    def _read(self, *totals: Variable) -> list[jax.Array]:
        """The totals over all replicas, rounded to float32."""
        frame = current_frame()
        if frame is not None and frame.updating:
            raise errors.ContextError(
                errors.describe(
                    f"`{self.name}.result` was called inside `extended.update`.",
                    why="Variables are seen one copy at a time there, and the result is that of "
                    "all replicas.",
                    fix="Call it in cross-replica context, or in replica context.",
                )
            )
        pairs = [total.value for total in totals]
        if frame is not None and frame.replica is not None:
            pairs = frame.replica.all_reduce("sum", pairs, EXACT)
        return [rounded(pair) for pair in pairs]
