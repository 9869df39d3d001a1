"""What a collective takes on a network that is described by two numbers.

The model is that of R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective
Communication Operations in MPICH" (2005): a message of `n` bytes takes `latency + n / bandwidth`,
and the algorithms are those with the fewest bytes (recursive halving and doubling). Real networks
are slower where links are shared, and faster where a collective overlaps with arithmetic.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Protocol

from replicax.errors import InvalidArgumentError, describe


@dataclasses.dataclass(frozen=True)
class Fabric:
    """The network between the replicas, as far as a prediction needs it.

    Attributes:
        bandwidth: Bytes a second that one replica can send, and receive at the same time.
        latency: Seconds until the first byte of a message arrives.

    Raises:
        InvalidArgumentError: A number is not above 0.

    Examples:
        >>> Fabric(bandwidth=25e9, latency=5e-6).seconds("psum", 100e6, replicas=8)
        0.00703
    """

    bandwidth: float = 25e9
    latency: float = 5e-6

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name in ("bandwidth", "latency"):
            value = getattr(self, name)
            if not value > 0:
                raise InvalidArgumentError(
                    describe(f"`{name}={value!r}` is not accepted.", fix="pass a number above 0.")
                )

    def seconds(self, primitive: str, num_bytes: float, *, replicas: int) -> float:
        """Seconds of one collective. Context: any.

        Args:
            primitive: Name of the JAX primitive, such as `psum`.
            num_bytes: Bytes that one replica puts in.
            replicas: Number of replicas.
        """
        if replicas == 1:
            return 0.0
        rounds, others = math.ceil(math.log2(replicas)), replicas - 1
        if primitive == "all_gather":
            messages, sent = rounds, others * num_bytes
        elif primitive in ("reduce_scatter", "psum_scatter"):
            messages, sent = rounds, others / replicas * num_bytes
        elif primitive == "all_to_all":
            messages, sent = others, others / replicas * num_bytes
        elif primitive == "ppermute":
            messages, sent = 1, num_bytes
        else:  # An all-reduce: a reduce-scatter, then an all-gather.
            messages, sent = 2 * rounds, 2 * others / replicas * num_bytes
        return messages * self.latency + sent / self.bandwidth


class Cost(Protocol):
    """What a prediction asks of a collective."""

    @property
    def primitive(self) -> str:
        """Name of the JAX primitive."""

    @property
    def bytes(self) -> int:
        """Bytes that one replica puts in."""

    @property
    def times(self) -> int | None:
        """How often a step calls it; None counts as once."""


def total_seconds(fabric: Fabric, collectives: Iterable[Cost], *, replicas: int) -> float:
    """Seconds of all collectives of a step, one after the other."""
    return sum(
        (each.times or 1) * fabric.seconds(each.primitive, each.bytes, replicas=replicas)
        for each in collectives
    )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A step on a number of replicas, each with as many rows as now.

    Attributes:
        replicas: How many.
        communication_seconds: Of all collectives, one after the other.
        efficiency: Share of the time that is left for arithmetic, without any overlap; None where
            it is not said how long the arithmetic takes.
    """

    replicas: int
    communication_seconds: float
    efficiency: float | None


def predictions(
    fabric: Fabric,
    collectives: Iterable[Cost],
    counts: Iterable[int],
    compute_seconds: float | None,
) -> tuple[Prediction, ...]:
    """One prediction for each number of replicas."""
    collectives, found = list(collectives), []
    for count in counts:
        seconds = total_seconds(fabric, collectives, replicas=count)
        share = None if compute_seconds is None else compute_seconds / (compute_seconds + seconds)
        found.append(Prediction(count, seconds, share))
    return tuple(found)
