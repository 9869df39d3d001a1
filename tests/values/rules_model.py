"""The rules of variables in plain numpy: what any sequence of operations must leave behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Copies = list[Array]


class RefusedError(Exception):
    """The operation is an error of the class that is named, and changes nothing."""


@dataclass(frozen=True)
class Kind:
    """What `rx.Variable` is told, on so many replicas."""

    on_read: bool
    aggregation: str
    dtype: str
    replicas: int

    def __str__(self) -> str:
        when = "on_read" if self.on_read else "on_write"
        return f"{when}-{self.aggregation}-{self.dtype}-{self.replicas}"


class VariableModel:
    """One variable as its copies."""

    def __init__(self, kind: Kind, initial: Array) -> None:
        self.kind = kind
        self.copies: Copies = [initial] * kind.replicas
        if kind.on_read:
            self.copies = [initial + i for i in range(kind.replicas)]

    # -- what an operation means -----------------------------------------------------------------

    def apply(
        self, name: str, x: Copies, indices: list[int], *, is_common: bool, is_compiled: bool
    ) -> Copies | None:
        """Carry an operation out, and return what it gives on each replica.

        Args:
            name: The name of a method, with a dot.
            x: An operand a replica.
            indices: An element of the variable a replica.
            is_common: Whether the replicas are given one operand and index.
            is_compiled: Whether what they write must be proved equal, rather than be equal.

        Raises:
            RefusedError: It is an error.
        """
        self._must_be_proved = is_compiled
        self._is_proved = is_common or self.kind.replicas == 1
        method: Callable[..., Copies | None] = getattr(self, name.replace(".", "_"))
        return method(x, indices)

    # -- across replicas --------------------------------------------------------------------------

    def across_assign(self, x: Copies, _: object) -> None:
        self.copies = self._copies_of(x[0])

    def across_assign_number(self, _x: Copies, _: object) -> None:
        raise RefusedError("InvalidArgumentError")  # Another shape.

    def across_assign_halves(self, x: Copies, _: object) -> None:
        if self.kind.dtype == "int32":
            raise RefusedError("InvalidArgumentError")
        self.copies = self._copies_of(x[0])

    def across_assign_parts(self, x: Copies, _: object) -> None:
        if not self.kind.on_read:
            raise RefusedError("VaryingWriteError")
        self.copies = list(x)

    def across_assign_add(self, x: Copies, _: object) -> None:
        self._change_each(lambda copy: copy + x[0])

    def across_assign_sub(self, x: Copies, _: object) -> None:
        self._change_each(lambda copy: copy - x[0])

    def across_at_add(self, x: Copies, indices: list[int]) -> None:
        self._change_each(lambda copy: copy + _row(x[0], indices[0]))

    def across_at_set(self, x: Copies, indices: list[int]) -> None:
        self._change_each(lambda copy: _replaced(copy, x[0], indices[0]))

    across_scatter_add = across_at_add

    def across_read(self, _x: Copies, _: object) -> Copies:
        match self.kind.on_read, self.kind.aggregation:
            case True, "none":
                raise RefusedError("InvalidArgumentError")
            case True, "sum":
                return [np.sum(self.copies, axis=0)]
            case True, "mean":
                return [np.mean(self.copies, axis=0)]
        return [self.copies[0]]

    def across_reduce_sum(self, _x: Copies, _: object) -> Copies:
        if not self.kind.on_read and self.kind.replicas > 1:
            raise RefusedError("InvalidArgumentError")
        return [np.sum(self.copies, axis=0)]

    def across_reduce_mean(self, _x: Copies, _: object) -> Copies:
        return [np.mean(self.copies, axis=0)]

    def across_update_assign(self, x: Copies, _: object) -> None:
        self._keep(list(x))

    def across_update_add(self, x: Copies, _: object) -> None:
        self._keep([copy + own for copy, own in zip(self.copies, x, strict=True)])

    # -- on each replica --------------------------------------------------------------------------

    def replica_read(self, _x: Copies, _: object) -> Copies:
        return self.copies

    def replica_assign(self, x: Copies, _: object) -> None:
        self._keep(self._combined(x))

    def replica_assign_add(self, x: Copies, _: object) -> None:
        changes = self._combined(x)
        self._keep([copy + change for copy, change in zip(self.copies, changes, strict=True)])

    def replica_assign_sub(self, x: Copies, _: object) -> None:
        self.replica_assign_add([-own for own in x], None)

    def replica_at_add(self, x: Copies, indices: list[int]) -> None:
        self.replica_assign_add([_row(*own) for own in zip(x, indices, strict=True)], None)

    replica_scatter_add = replica_at_add

    def replica_at_set(self, x: Copies, indices: list[int]) -> None:
        if not self.kind.on_read and self.kind.aggregation in {"sum", "mean"}:
            raise RefusedError("UnimplementedError")
        own = zip(self.copies, x, indices, strict=True)
        self._keep(self._combined([_replaced(*one) for one in own]))

    def replica_update_add(self, x: Copies, _: object) -> None:
        self.across_update_add(x, None)

    def replica_merge_assign(self, x: Copies, _: object) -> None:
        self.copies = self._copies_of(np.sum(x, axis=0, dtype=x[0].dtype))

    def replica_merge_add(self, x: Copies, _: object) -> None:
        self._change_each(lambda copy: copy + np.sum(x, axis=0, dtype=x[0].dtype))

    def replica_merge_read(self, _x: Copies, _: object) -> Copies:
        return self.across_read([], None) * self.kind.replicas

    # -- the rules --------------------------------------------------------------------------------

    def _copies_of(self, value: Array) -> Copies:
        """Copies that read as `value` across replicas."""
        n = self.kind.replicas
        if not self.kind.on_read or self.kind.aggregation != "sum":
            return [value] * n
        if self.kind.dtype == "float32":
            return [value / n] * n
        return [value // n + (i < value % n) for i in range(n)]

    def _change_each(self, change: Callable[[Array], Array]) -> None:
        if self.kind.on_read and self.kind.aggregation == "sum":
            raise RefusedError("InvalidArgumentError")
        self.copies = [change(copy) for copy in self.copies]

    def _combined(self, values: Copies) -> Copies:
        """What the replicas write together."""
        n = self.kind.replicas
        if self.kind.on_read or self.kind.aggregation == "none":
            return values
        self._is_proved = True
        if self.kind.aggregation == "only_first_replica":
            return [values[0]] * n
        total = np.sum(values, axis=0, dtype=values[0].dtype)
        return [total / n if self.kind.aggregation == "mean" else total] * n

    def _keep(self, copies: Copies) -> None:
        """Copies that were written one by one; those of a mirrored variable must be equal."""
        if not self.kind.on_read:
            equal = all(np.array_equal(copies[0], copy) for copy in copies)
            if not (self._is_proved if self._must_be_proved else equal):
                raise RefusedError("VaryingWriteError")
        self.copies = copies


def _row(x: Array, index: int) -> Array:
    """`x`'s first number at one place, and zeros."""
    return np.where(np.arange(3) == index, x[0], np.zeros_like(x))


def _replaced(copy: Array, x: Array, index: int) -> Array:
    return np.where(np.arange(3) == index, x[0], copy)
