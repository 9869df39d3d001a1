"""How the values of the replicas are combined."""

from __future__ import annotations

import enum

from replicax.errors import ArgumentTypeError, InvalidArgumentError, describe


class ReduceOp(enum.Enum):
    """How a collective combines the values of the replicas.

    `MEAN` is the sum divided by the number of replicas. Combine gradients with it. `MAX` and
    `MIN` work element by element.

    Examples:
        >>> ReduceOp.parse("mean")
        <ReduceOp.MEAN: 'MEAN'>
    """

    SUM = "SUM"
    MEAN = "MEAN"
    MAX = "MAX"
    MIN = "MIN"

    @classmethod
    def parse(cls, op: ReduceOp | str) -> ReduceOp:
        """Returns the member that `op` means. Context: any.

        Args:
            op: A member, or "sum" or "mean" in any case.

        Raises:
            ArgumentTypeError: `op` is neither a member nor a string.
            InvalidArgumentError: `op` is another string.

        Examples:
            >>> ReduceOp.parse("SUM") is ReduceOp.SUM
            True
        """
        if isinstance(op, cls):
            return op
        if not isinstance(op, str):
            raise ArgumentTypeError(_message(op, fix=_ACCEPTED))
        name = op.upper()
        if name in {"SUM", "MEAN"}:
            return cls[name]
        fix = f"pass `rx.ReduceOp.{name}`." if name in {"MAX", "MIN"} else _ACCEPTED
        raise InvalidArgumentError(_message(op, fix=fix))


_ACCEPTED = 'pass a member of `rx.ReduceOp` (SUM, MEAN, MAX, MIN), "sum" or "mean".'


def _message(op: object, fix: str) -> str:
    what = f"`reduce_op={op!r}` ({type(op).__name__}) is no reduce op."
    why = 'only "sum" and "mean" have a short form as a string.' if isinstance(op, str) else None
    return describe(what, why=why, fix=fix)
