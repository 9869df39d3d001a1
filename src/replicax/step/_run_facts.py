"""What one `strategy.run` of a compiled step is: its boundary, its proof and its collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from replicax.collectives import Entry
from replicax.step._proof import ProvedCollective, Source


@dataclass(frozen=True)
class Crossing:
    """One array that goes into a replica function, or comes out of it.

    Attributes:
        label: How messages call it: an argument, a result or a variable.
        shape: Its shape on one replica.
        dtype: Its dtype.
        cause: Why it may differ between replicas; None if it is mirrored.
    """

    label: str
    shape: tuple[int, ...]
    dtype: str
    cause: Source | None

    @classmethod
    def of(cls, label: str, aval: Any, cause: Source | None) -> Crossing:
        """The crossing of a value with this abstract value."""
        return cls(label, tuple(aval.shape), str(aval.dtype), cause)


@dataclass(frozen=True)
class RunFacts:
    """One run, as it was traced and proved.

    Attributes:
        function: Name of the replica function.
        inputs: Its arguments, and the copies of sync-on-read variables that it uses.
        outputs: Its results, then the variables that it writes.
        requested: The collectives that the function asked for, in order.
        collectives: The collectives of the program that came of it, after packing, in order.
        is_padded: Whether its batch is a remainder, padded to the shape of a full batch.
        jaxpr: What one replica runs, without its constants.
        proof_seconds: How long the proof took; of a padded batch with the second trace.
    """

    function: str
    inputs: tuple[Crossing, ...]
    outputs: tuple[Crossing, ...]
    requested: tuple[Entry, ...]
    collectives: tuple[ProvedCollective, ...]
    is_padded: bool
    jaxpr: Any
    proof_seconds: float
