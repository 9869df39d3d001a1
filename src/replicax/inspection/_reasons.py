"""Why a result of a replica function is equal on all replicas: what made it so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicax.step._proof import COLLECTIVES
from replicax.step._run_facts import RunFacts


def reasons(run: RunFacts) -> tuple[str, ...]:
    """For each output of a run, why it is mirrored or may differ, in words."""
    causes = [output.cause for output in run.outputs]
    makers = _makers(run)
    return tuple(
        f"differs: comes from {cause}" if cause is not None else _mirrored(found, run)
        for cause, found in zip(causes, makers, strict=True)
    )


def _mirrored(makers: frozenset[int], run: RunFacts) -> str:
    if not makers:
        return "equal: computed from mirrored values alone"
    if max(makers) >= len(run.collectives):
        return "equal: collectives combined what differs"
    names = ", ".join(f"#{number + 1}" for number in sorted(makers)[:4])
    more = f" and {len(makers) - 4} more" if len(makers) > 4 else ""  # noqa: PLR2004 - as above
    return f"equal: collective {names}{more} combined what differs"


def _makers(run: RunFacts) -> list[frozenset[int]]:
    """For each output the numbers of the nearest collectives that it depends on."""
    first, numbers = 0, {}
    for equation in run.jaxpr.eqns:
        count = _count(equation)
        numbers[id(equation)] = range(first, first + count)
        first += count
    known: dict[int, frozenset[int]] = {}
    for equation in run.jaxpr.eqns:  # In order: what an equation needs is known.
        own = frozenset(numbers[id(equation)])
        before = frozenset().union(*(known.get(id(x), frozenset()) for x in equation.invars))
        for result in equation.outvars:
            known[id(result)] = own or before
    return [known.get(id(result), frozenset()) for result in run.jaxpr.outvars]


def _count(equation: Any) -> int:
    """How many collectives an equation holds."""
    if equation.primitive.name in COLLECTIVES:
        return 1
    return sum(_count(each) for inner in _inner(equation) for each in inner.eqns)


def _inner(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for one in value if isinstance(value, (list, tuple)) else (value,):
            jaxpr = getattr(one, "jaxpr", one)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr
