"""The marks of the proof pass, and what a finished proof holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TypeAlias

from replicax.errors import CallSite


@dataclasses.dataclass(frozen=True)
class Source:
    """Why a value varies between replicas: the first cause.

    Attributes:
        description: The cause in words, such as "argument `batch[0]`" or "the replica id".
        call_site: The line of user code where it enters, where known.

    Examples:
        >>> print(Source("argument `batch[0]`", None))
        argument `batch[0]`
    """

    description: str
    call_site: CallSite | None

    def __str__(self) -> str:
        """The cause, with its line where known."""
        if self.call_site is None:
            return self.description
        return f"{self.description}, at {self.call_site}"


Kind: TypeAlias = Source | None
"""None is mirrored; a source is varying, and why."""


def join(kinds: Iterable[Kind]) -> Kind:
    """The kind of a value computed from values of these kinds: the first that varies."""
    for kind in kinds:
        if kind is not None:
            return kind
    return None


@dataclasses.dataclass(frozen=True)
class Control:
    """A `cond`, `switch` or `while` whose condition varies, around the equations being read.

    Attributes:
        source: Why the condition varies.
        construct: Name of the primitive that branches.
        call_site: Line of user code that branches.
    """

    source: Source
    construct: str
    call_site: CallSite | None


@dataclasses.dataclass(frozen=True)
class ProvedCollective:
    """One collective over the replica axis, as the program calls it.

    Attributes:
        primitive: Name of the primitive, such as `psum`.
        call_site: Line of user code, where known.
        dtypes: Type of each operand.
        shapes: Shape of each operand on one replica.
        bytes: Bytes that one replica puts in, in one call.
        times: How often one run of the program calls it; None where that is known only while
            it runs (in a `while`, or in a branch of a `cond`).
        under_loop: Whether a `scan` or a `while` stands around it.
    """

    primitive: str
    call_site: CallSite | None
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    bytes: int
    times: int | None = 1
    under_loop: bool = False

    def repeated(self, times: int | None, *, loop: bool) -> ProvedCollective:
        """The same collective inside one more construct that runs it `times` times."""
        product = None if times is None or self.times is None else times * self.times
        return dataclasses.replace(self, times=product, under_loop=self.under_loop or loop)


@dataclasses.dataclass(frozen=True)
class Proof:
    """What was proved of a replica function.

    Attributes:
        outputs: For each output of the jaxpr None (mirrored), or why it varies.
        collectives: The collectives over the replica axis in program order.
    """

    outputs: tuple[Source | None, ...]
    collectives: tuple[ProvedCollective, ...]
