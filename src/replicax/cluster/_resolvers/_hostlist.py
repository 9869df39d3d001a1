"""Slurm's short form of many host names: `gpu[01-03,07],login`."""

from __future__ import annotations

import itertools
import re

from replicax.errors import InvalidArgumentError, describe

MOST_HOSTS = 1 << 16
_PIECES = re.compile(r"([^\[\],\s]+)|\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand_hostlist(text: str) -> list[str]:
    """Returns the hosts that a Slurm host list means, in order. Context: any.

    A name may have several groups in brackets; a group lists numbers and ranges, and numbers
    keep their leading zeros.

    Args:
        text: The list, as `SLURM_STEP_NODELIST` has it.

    Raises:
        InvalidArgumentError: The text is no host list, or means more than 65536 hosts.

    Examples:
        >>> expand_hostlist("gpu[08-10,12],login")
        ['gpu08', 'gpu09', 'gpu10', 'gpu12', 'login']
        >>> expand_hostlist("r[1-2]n[1-2]")
        ['r1n1', 'r1n2', 'r2n1', 'r2n2']
    """
    hosts: list[str] = []
    for item in _items(text):
        pieces = _pieces(text, item)
        count = 1
        for piece in pieces:
            count *= len(piece)
        if len(hosts) + count > MOST_HOSTS:
            raise _wrong(text, f"it means more than {MOST_HOSTS} hosts.")
        hosts += ["".join(combined) for combined in itertools.product(*pieces)]
    if not hosts:
        raise _wrong(text, "it is empty.")
    return hosts


def _items(text: str) -> list[str]:
    """The parts between the commas that stand outside of brackets."""
    items, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if depth not in (0, 1):
            raise _wrong(text, "its brackets do not match.")
        if sign == "," and depth == 0:
            items.append(text[start:place].strip())
            start = place + 1
    if depth:
        raise _wrong(text, "its brackets do not match.")
    return [*items, text[start:].strip()]


def _pieces(text: str, item: str) -> list[list[str]]:
    """What may stand at each place of a name."""
    pieces, end = [], 0
    for match in _PIECES.finditer(item):
        if match.start() != end:
            break
        end = match.end()
        plain, group = match.groups()
        pieces.append([plain] if plain is not None else _numbers(text, group))
    if end != len(item) or not pieces:
        raise _wrong(text, f"{item!r} is no host.")
    return pieces


def _numbers(text: str, group: str) -> list[str]:
    found: list[str] = []
    for part in group.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise _wrong(text, f"{part!r} is neither a number nor a range.")
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if count < 1 or len(found) + count > MOST_HOSTS:
            raise _wrong(text, f"the range {part!r} runs backwards, or is too long.")
        found += [str(value).zfill(len(first)) for value in range(int(first), int(last) + 1)]
    return found


def _wrong(text: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        describe(
            f"{text!r} is no Slurm host list.", why=why, fix="write it as gpu[01-03,07],login."
        )
    )
