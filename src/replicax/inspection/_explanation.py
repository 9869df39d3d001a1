"""What `explain` finds out of a step, as data."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from replicax.collectives import CompiledCollective

from ._costs import Fabric, Prediction, predictions


@dataclasses.dataclass(frozen=True)
class Value:
    """An array at the boundary of the step, or of a replica function.

    Attributes:
        name: What it is called: an argument, a result or a variable.
        shape: Its shape; of a per-replica value that of one replica.
        dtype: Its dtype.
        bytes: Its size on one device.
        is_mirrored: Whether it is equal on all replicas.
        note: Why it is mirrored or not, or what happens to it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    is_mirrored: bool
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Pack:
    """Arrays of one collective that travel together.

    Attributes:
        arrays: Their paths in the tree that is combined, or their numbers, in the order in which
            they are produced.
        dtype: Of all of them, and as what they travel if it is another one.
        bytes: Of all of them together, as they travel.
    """

    arrays: tuple[str, ...]
    dtype: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Request:
    """A collective as the replica function asks for it.

    Attributes:
        kind: Such as `all_reduce`.
        op: Name of the reduce op, or None.
        group_key: Key of the group.
        instance_key: Key of the collective in the group.
        leaves: How many arrays it combines.
        bytes: Bytes that one replica puts in.
        call_site: Line of user code.
        packs: How the arrays of an all-reduce travel, in the order in which they are ready.
    """

    kind: str
    op: str | None
    group_key: int
    instance_key: int
    leaves: int
    bytes: int
    call_site: str
    packs: tuple[Pack, ...] = ()


@dataclasses.dataclass(frozen=True)
class Sent:
    """A collective of the traced program, after packing.

    Attributes:
        primitive: Name of the JAX primitive, such as `psum`.
        arrays: How many arrays it takes.
        dtypes: The dtypes of those, each once.
        bytes: Bytes that one replica puts in, in one call.
        times: How often one step calls it; None where only the run tells.
        call_site: Line of user code.
        seconds: What the stated network would take for it, once.
    """

    primitive: str
    arrays: int
    dtypes: tuple[str, ...]
    bytes: int
    times: int | None
    call_site: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device, as XLA counts them.

    Attributes:
        arguments: Of what goes in.
        results: Of what comes out, without what reuses the memory of an argument.
        reused: Of results that take the place of donated arguments and variables.
        temporary: Of what is needed in between.
    """

    arguments: int
    results: int
    reused: int
    temporary: int


@dataclasses.dataclass(frozen=True)
class Program:
    """One compiled program of the step.

    Attributes:
        batch: `"full"`, or `"remainder"` for a batch that is padded.
        functions: The replica functions that it runs, in order.
        inputs: What goes into them.
        outputs: What comes out of them, and why it is mirrored or not.
        requests: The collectives that they ask for, in order.
        sent: The collectives of the traced program, in order.
        compiled: Those of XLA's optimised program; None if it cannot be compiled here.
        memory: None if it cannot be compiled here.
        flops: Floating-point operations of one replica, as XLA counts them; None if unknown.
        trace_seconds: How long tracing took.
        proof_seconds: How long the proof took, with the second trace that padded batches need.
        compile_seconds: How long XLA took; None if it was not asked.
        compile_cache: Whether the program was in the folder of `rx.set_compilation_cache`: `"hit"`,
            `"miss"` or `"not in use"`; None if XLA was not asked.
    """

    batch: str
    functions: tuple[str, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    requests: tuple[Request, ...]
    sent: tuple[Sent, ...]
    compiled: tuple[CompiledCollective, ...] | None
    memory: Memory | None
    flops: float | None
    trace_seconds: float
    proof_seconds: float
    compile_seconds: float | None
    compile_cache: str | None

    @property
    def bytes_sent(self) -> int:
        """Bytes that one replica puts into the collectives of the traced program."""
        return sum((each.times or 1) * each.bytes for each in self.sent)

    @property
    def bytes_compiled(self) -> int | None:
        """Bytes of the results of the compiled program's collectives, on one device."""
        if self.compiled is None:
            return None
        return sum(each.bytes for each in self.compiled)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The boundary of a step made visible. Printing it gives a report.

    Attributes:
        function: Name of the step.
        strategy: Name of its strategy, or None.
        replicas: Number of replicas.
        is_imagined: Whether those are not there.
        arguments: The arguments of the step.
        variables: The variables that it reads or writes.
        programs: The program of full batches, and of the remainder where there is one.
        fabric: The network that predictions assume.
        compute_seconds: What the arithmetic of one replica takes, if that was said.
    """

    function: str
    strategy: str | None
    replicas: int
    is_imagined: bool
    arguments: tuple[Value, ...]
    variables: tuple[Value, ...]
    programs: tuple[Program, ...]
    fabric: Fabric
    compute_seconds: float | None

    def predict(self, *replicas: int) -> tuple[Prediction, ...]:
        """What full batches take on other numbers of replicas, with as many rows on each.

        The bytes are those of this explanation; gathered results grow with the replicas.

        Args:
            replicas: The numbers; by default 1, 2, 4, ... up to those of the explanation, at
                least up to 8.
        """
        most = max(self.replicas, 8)
        counts = replicas or [1 << i for i in range(most.bit_length()) if 1 << i <= most]
        return predictions(self.fabric, self.programs[0].sent, counts, self.compute_seconds)

    def to_json(self) -> str:
        """All of it as JSON, the predictions too."""
        facts = dataclasses.asdict(self)
        facts["predictions"] = [dataclasses.asdict(each) for each in self.predict()]
        return json.dumps(facts, indent=2, default=str)

    def to_svg(self) -> str:
        """A picture of the boundary: what goes in, what crosses replicas, what comes out."""
        from ._picture import picture  # noqa: PLC0415 - it needs this module's classes

        return picture(self)

    def to_html(self) -> str:
        """All of it as one HTML page that needs nothing else; it fits a phone."""
        from ._page import page  # noqa: PLC0415 - it needs this module's classes

        return page(self)

    def __str__(self) -> str:
        """The report, as text."""
        from ._report import report  # noqa: PLC0415 - it needs this module's classes

        return report(self)

    def _repr_html_(self) -> str:  # What notebooks ask for.
        return self.to_svg()

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain Python values."""
        facts: dict[str, Any] = json.loads(self.to_json())
        return facts
