"""The ledger: what each collective was, so that two participants can compare."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Sequence

from replicax.errors import ArgumentTypeError, CallSite, InvalidArgumentError, describe

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "merge_call",
    "create_variable",
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One collective as one participant sees it.

    Attributes:
        group_key: Key of the group of devices.
        instance_key: Key of this collective in the group.
        kind: One of `KINDS`.
        op: Name of the reduce op, or of the function of a `merge_call`, or None.
        dtypes: Name of the dtype of each leaf.
        shapes: Shape of each leaf.
        call_site: Line of user code, or None where not known.
        names: Path of each leaf in the tree that is combined, where that is known.
        packs: How the leaves travel: their numbers, one tuple for each collective of a compiled
            program. Empty where nothing is packed.
        wire_dtype: In what float32 arrays travel, where it is not float32.

    Raises:
        InvalidArgumentError: `kind` is none of `KINDS`.
    """

    group_key: int
    instance_key: int
    kind: str
    op: str | None
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    call_site: CallSite | None = None
    names: tuple[str, ...] = ()
    packs: tuple[tuple[int, ...], ...] = ()
    wire_dtype: str | None = None

    def __post_init__(self) -> None:
        """Checks the kind."""
        if self.kind not in KINDS:
            message = describe(
                f"`kind={self.kind!r}` is no collective.", fix=f"pass one of {KINDS}."
            )
            raise InvalidArgumentError(message)


def differences(entries: Sequence[Entry]) -> list[str]:
    """Returns the names of the fields in which the entries differ. Context: any.

    The call site is left out: the same collective may be reached over two lines. So are names
    and packs, which follow from the rest of a program.

    Examples:
        >>> a = Entry(1, 100, "all_reduce", "SUM", ("float32",), ((2,),))
        >>> differences([a, dataclasses.replace(a, op="MEAN", shapes=((3,),))])
        ['op', 'shapes']
    """
    left_out = {"call_site", "names", "packs"}
    names = [field.name for field in dataclasses.fields(Entry) if field.name not in left_out]
    return [name for name in names if len({getattr(entry, name) for entry in entries}) > 1]


class Ledger:
    """The last collectives of a participant, and a fingerprint of all of them.

    Not locked: each participant keeps its own.

    Args:
        capacity: How many entries are kept. Older ones stay in the count and fingerprint.

    Raises:
        InvalidArgumentError: `capacity` is not a number above 0.

    Examples:
        >>> ledger = Ledger(capacity=2)
        >>> for key in (100, 101, 102):
        ...     ledger.record(Entry(1, key, "broadcast", None, (), ()))
        >>> ledger.count, [entry.instance_key for entry in ledger.entries]
        (3, [101, 102])
    """

    def __init__(self, capacity: int = 1024) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            message = describe(f"`capacity={capacity!r}` is not accepted.", fix="pass 1 or more.")
            raise InvalidArgumentError(message)
        self._entries: deque[Entry] = deque(maxlen=capacity)
        self._count = 0
        self._fingerprint = b""

    def record(self, entry: Entry) -> None:
        """Adds an entry. Context: any.

        Raises:
            ArgumentTypeError: `entry` is no `Entry`.
        """
        if not isinstance(entry, Entry):
            raise ArgumentTypeError(describe(f"`entry={entry!r}` is no `Entry`."))
        self._entries.append(entry)
        self._count += 1
        # Workers may run the same program from different folders: no call site.
        seen = repr((entry.kind, entry.op, entry.dtypes, entry.shapes, entry.group_key))
        seen += repr(entry.instance_key) + (entry.wire_dtype or "")
        chained = self._fingerprint + seen.encode()
        self._fingerprint = hashlib.blake2b(chained, digest_size=16).digest()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The kept entries, the oldest first."""
        return tuple(self._entries)

    @property
    def count(self) -> int:
        """How many entries were recorded in all."""
        return self._count

    @property
    def fingerprint(self) -> str:
        """A hash of all entries in order, equal where two participants did the same."""
        return self._fingerprint.hex()
