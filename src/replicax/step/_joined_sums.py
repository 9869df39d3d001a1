"""Sums over the replicas that were asked for one by one, and can travel in one message.

The loss of a step is summed where it is computed, its gradients at the end, a metric in between:
each sum would be a message of its own. Those that do not depend on each other are sent together,
where the last of them is ready; what needs an earlier one comes afterwards. The numbers are those
of packs: a sum has the bits that it would have alone, where the replicas are added in one order.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from replicax.collectives import PackLimits
from replicax.step import _compat

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn


def with_joined_sums(
    closed_jaxpr: Any, axis_name: str, num_replicas: int, limits: PackLimits
) -> Any:
    """The program with small sums joined where none of them needs another. Context: any.

    Looks at the outermost equations only: what a branch or a loop sends stays as it is. Equations
    with effects keep their order.

    Args:
        closed_jaxpr: What one replica runs, from `jax.make_jaxpr`.
        axis_name: Axis of the replicas.
        num_replicas: Size of this axis.
        limits: Which leaves are packed, and how large a pack grows.

    Returns:
        The program; the same object if nothing is joined.
    """
    jaxpr, _ = _compat.opened(closed_jaxpr)
    sums = _sums(jaxpr, axis_name, limits)
    groups = _groups(jaxpr.eqns, sums, limits.pack_bytes)
    joined = [[sums[place] for place in group] for group in groups if len(group) > 1]
    if not joined:
        return closed_jaxpr
    nodes = _ordered(jaxpr.eqns, [_Joined(group) for group in joined])
    axis = (axis_name, num_replicas)
    equations = [
        eqn
        for node in nodes
        for eqn in (node.emitted(axis) if isinstance(node, _Joined) else [node])
    ]
    return _compat.with_equations(closed_jaxpr, equations)


@dataclass(frozen=True)
class _Sum:
    """One sum of one array.

    Attributes:
        place: Number of its equation.
        eqn: Its equation.
        pack: The equation that joins its leaves, if it is a pack already, and its number.
        bytes: Of the array.
    """

    place: int
    eqn: JaxprEqn
    pack: tuple[int, JaxprEqn] | None
    bytes: int

    @property
    def members(self) -> Sequence[Any]:
        """What travels."""
        return self.eqn.invars if self.pack is None else self.pack[1].invars


def _sums(jaxpr: Any, axis_name: str, limits: PackLimits) -> dict[int, _Sum]:
    """The sums that may be joined, by the numbers of their equations."""
    uses: dict[Any, int] = {}
    for atom in itertools.chain(jaxpr.outvars, *(eqn.invars for eqn in jaxpr.eqns)):
        if not _is_literal(atom):
            uses[atom] = uses.get(atom, 0) + 1
    packs: dict[Any, tuple[int, JaxprEqn]] = {}
    found = {}
    for place, eqn in enumerate(jaxpr.eqns):
        if _is_pack(eqn) and uses.get(eqn.outvars[0]) == 1:
            packs[eqn.outvars[0]] = (place, eqn)
        if not _sums_one_array(eqn, axis_name):
            continue
        operand = eqn.invars[0]
        pack = packs.get(operand)
        size = math.prod(operand.aval.shape) * operand.aval.dtype.itemsize
        if size <= (limits.leaf_bytes if pack is None else limits.pack_bytes):
            found[place] = _Sum(place, eqn, pack, size)
    return found


def _is_pack(eqn: JaxprEqn) -> bool:
    """Whether it joins flat leaves; to join more of them costs no second copy."""
    results: Any = eqn.outvars
    return eqn.primitive.name == "concatenate" and results[0].aval.ndim == 1


def _sums_one_array(eqn: JaxprEqn, axis_name: str) -> bool:
    return (
        eqn.primitive.name == "psum"
        and len(eqn.invars) == 1
        and not _is_literal(eqn.invars[0])
        and tuple(eqn.params["axes"]) == (axis_name,)
        and eqn.params["axis_index_groups"] is None
    )


# -- which -----------------------------------------------------------------------------------------


def _groups(
    equations: Sequence[JaxprEqn], sums: dict[int, _Sum], most_bytes: int
) -> list[list[int]]:
    """Sums of one dtype that need not wait for each other, by their places.

    Sets of sums are integers with a bit for each. To join two makes all that waited for one of
    them wait for both, and for what the other waits for.
    """
    waits = _waits(equations, sums)
    groups: list[tuple[Any, list[int], int]] = []
    for place, each in sums.items():
        total: Any = each.eqn.outvars[0]
        dtype = total.aval.dtype
        for number in reversed(range(len(groups))):
            kind, members, filled = groups[number]
            if kind != dtype or filled + each.bytes > most_bytes:
                continue
            together = sum(1 << member for member in members)
            if waits[place] & together or waits[members[0]] & (1 << place):
                continue
            groups[number] = (kind, [*members, place], filled + each.bytes)
            _join(waits, together | (1 << place), waits[place] | waits[members[0]])
            break
        else:
            groups.append((dtype, [place], each.bytes))
    return [members for _, members, _ in groups]


def _join(waits: dict[int, int], together: int, needs: int) -> None:
    for place, before in waits.items():
        if (1 << place) & together:
            waits[place] = needs
        elif before & together:
            waits[place] = before | together | needs


def _waits(equations: Sequence[JaxprEqn], sums: dict[int, _Sum]) -> dict[int, int]:
    """For each sum those that it needs, directly or not."""
    needs: dict[Any, int] = {}
    of_effects = 0
    found = {}
    for place, eqn in enumerate(equations):
        before = 0
        for atom in eqn.invars:
            if not _is_literal(atom):
                before |= needs.get(atom, 0)
        if _compat.acts_in_order(eqn):
            before = of_effects = before | of_effects
        if place in sums:
            found[place] = before
            before |= 1 << place
        if before:
            needs.update(dict.fromkeys(eqn.outvars, before))
    return found


# -- where -----------------------------------------------------------------------------------------


class _Joined:
    """Some sums as one, in the place of the last.

    Args:
        sums: In the order of their equations.
    """

    def __init__(self, sums: Sequence[_Sum]) -> None:
        self._sums = sums
        self.place = sums[-1].place
        self.replaced = {each.place for each in sums}
        self.replaced |= {each.pack[0] for each in sums if each.pack is not None}
        self.invars = [atom for each in sums for atom in each.members]
        self.outvars = [each.eqn.outvars[0] for each in sums]

    def emitted(self, axis: tuple[str, int]) -> list[JaxprEqn]:
        """The equations that join the members, sum them, and part the total."""
        avals: list[Any] = [variable.aval for variable in self.outvars]

        def summed(*members: jax.Array) -> list[jax.Array]:
            # The barrier is that of a pack: see `collectives/_mapped.py`.
            members = lax.optimization_barrier(members)
            joined = lax.concatenate([lax.reshape(x, (x.size,)) for x in members], 0)
            parts = lax.split(lax.psum(joined, axis[0]), [aval.size for aval in avals])
            return [lax.reshape(x, aval.shape) for x, aval in zip(parts, avals, strict=True)]

        operands = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in self.invars]
        template, _ = _compat.opened(jax.make_jaxpr(summed, axis_env=[axis])(*operands))
        names = dict(zip(template.invars, self.invars, strict=True))
        names |= dict(zip(template.outvars, self.outvars, strict=True))
        largest = max(self._sums, key=lambda each: each.bytes)
        return [
            eqn.replace(
                invars=[x if _is_literal(x) else names.get(x, x) for x in eqn.invars],
                outvars=[names.get(x, x) for x in eqn.outvars],
                source_info=largest.eqn.source_info,
            )
            for eqn in template.eqns
        ]


def _ordered(equations: Sequence[JaxprEqn], joined: Sequence[_Joined]) -> list[JaxprEqn | _Joined]:
    """All of them, each as early as its operands allow and not before those that stood first."""
    replaced = frozenset().union(*(each.replaced for each in joined))
    nodes: dict[int, Any] = {
        place: eqn for place, eqn in enumerate(equations) if place not in replaced
    }
    nodes |= {each.place: each for each in joined}
    maker = {result: place for place, node in nodes.items() for result in node.outvars}
    waiting: dict[int, int] = {}
    followers: dict[int, list[int]] = {}
    last_to_act = None
    for place in sorted(nodes):
        node = nodes[place]
        needs = {maker[x] for x in node.invars if not _is_literal(x) and x in maker}
        if not isinstance(node, _Joined) and _compat.acts_in_order(node):
            needs |= set() if last_to_act is None else {last_to_act}
            last_to_act = place
        waiting[place] = len(needs)
        for need in needs:
            followers.setdefault(need, []).append(place)
    ready = [place for place, count in waiting.items() if not count]  # Sorted, so it is a heap.
    found = []
    while ready:
        place = heapq.heappop(ready)
        found.append(nodes[place])
        for follower in followers.get(place, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, follower)
    return found


def _is_literal(atom: Any) -> bool:
    return isinstance(atom, _compat.literal_type())
