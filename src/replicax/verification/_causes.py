"""Why a step differs from one device, where the pattern of the difference is known."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ._compared import Entry
from ._mixing import mixings
from ._state import Array

if TYPE_CHECKING:
    from ._one_device import Hosted, OneDevice, Taken
    from ._program import Program

_MOST_REPLICAS = 16
_MOST_LINES = 2
_FACTOR_SLACK = 0.25


@dataclasses.dataclass(frozen=True)
class Cause:
    """What is known of a difference.

    Attributes:
        why: The cause.
        fix: What to do.
    """

    why: str
    fix: str


def cause_of(
    before: Mapping[str, Array],
    differing: Sequence[Entry],
    taken: Taken,
    one: OneDevice,
    program: Program,
) -> Cause | None:
    """The cause, found by what else would give the same numbers; None if none is known."""
    entries = [x for x in differing if not x.is_exact and x.scale]
    counts = taken.rows.counts
    if not entries or counts is None:
        return None
    replicas = len(counts)
    found = _by_factor(entries, replicas)
    if found is not None:
        return found
    if replicas > _MOST_REPLICAS:
        return None
    found = _by_replicas_alone(before, entries, counts, one.alone(taken), program)
    return found or _counted_once_a_replica(differing, taken, one, program)


# -- a factor --------------------------------------------------------------------------------------


def _by_factor(entries: Sequence[Entry], replicas: int) -> Cause | None:
    """Whether the changes are those of one device times the number of replicas."""
    larger = _all_scaled(entries, float(replicas))
    if larger:
        squared = any(not each.fits(each.one * replicas) for each in entries)
        return _sum_for_mean(replicas, squared=squared)
    if _all_scaled(entries, 1 / replicas):
        return _divided_twice(replicas)
    return None


def _all_scaled(entries: Sequence[Entry], factor: float) -> bool:
    """Whether each is that of one device times the factor, or its square (second moments)."""
    linear = [each.fits(each.one * factor) for each in entries]
    squares = [each.fits(each.one * factor**2) for each in entries]
    return any(linear) and all(a or b for a, b in zip(linear, squares, strict=True))


def cause_among_noise(entries: Sequence[Entry], replicas: int) -> Cause | None:
    """The cause where random numbers differ: by the factor that fits all changes best."""
    entries = [x for x in entries if not x.is_exact and x.scale]
    if not entries or replicas < 2:  # noqa: PLR2004 - a factor of 1 is none
        return None
    one = np.concatenate([each.one.ravel() / each.scale for each in entries])
    there = np.concatenate([each.replicas.ravel() / each.scale for each in entries])
    factor = float(np.real(np.vdot(one, there)) / np.real(np.vdot(one, one)))
    alike = float(np.real(np.vdot(one, there)))
    alike /= float(np.linalg.norm(one) * np.linalg.norm(there)) or 1.0
    if alike < 0.8:  # noqa: PLR2004 - the changes point elsewhere, so no factor is known
        return None
    if abs(factor / replicas - 1) < _FACTOR_SLACK:
        return _sum_for_mean(replicas, squared=False)
    if abs(factor * replicas - 1) < _FACTOR_SLACK:
        return _divided_twice(replicas)
    return None


def _sum_for_mean(replicas: int, *, squared: bool) -> Cause:
    slots = "; second moments of an optimizer by its square" if squared else ""
    return Cause(
        f"What changes is {replicas} times that of one device, the number of replicas{slots}: "
        "gradients (or losses) that are means over a replica's rows are summed.",
        "Combine gradients with MEAN: `ctx.all_reduce('mean', gradients)`. With losses divided by "
        "the global batch size (`rx.compute_average_loss`), use SUM.",
    )


def _divided_twice(replicas: int) -> Cause:
    return Cause(
        f"What changes is 1/{replicas} of that of one device, one over the number of replicas: "
        "something is divided by the number of replicas once too often.",
        "Combine gradients of `ctx.global_mean` or of a mean over a replica's rows with MEAN, and "
        "divide by nothing; or divide the loss by the global batch size, and use SUM.",
    )


# -- what the replicas would do alone --------------------------------------------------------------


def _by_replicas_alone(
    before: Mapping[str, Array],
    entries: Sequence[Entry],
    counts: Sequence[int],
    alone: Sequence[Hosted],
    program: Program,
) -> Cause | None:
    """Whether the changes are a simple combination of what each replica would do alone."""
    changes = []
    for each in entries:
        found = [_change(each.name, hosted, before) for hosted in alone]
        known = [x for x in found if x is not None]
        if len(known) < len(alone):
            return None
        changes.append((each, known))

    def fits(combine: Callable[[list[Array]], Array]) -> bool:
        return all(each.fits(combine(parts)) for each, parts in changes)

    is_uneven = len(set(counts)) > 1
    if fits(lambda x: np.mean(x, axis=0)):
        return _half_weighted(counts) if is_uneven else _nonlinear(entries, program)
    if is_uneven and fits(lambda x: np.sum(x, axis=0) / len(counts)):
        return _half_weighted(counts)
    if fits(lambda x: np.sum(x, axis=0)):
        return _sum_for_mean(len(alone), squared=False)
    for number in range(len(alone)):
        if fits(operator.itemgetter(number)):
            return _only(number)
    return None


def _change(name: str, hosted: Hosted, before: Mapping[str, Array]) -> Array | None:
    after = hosted.state.get(name, hosted.aux.get(name))
    if after is None:
        return None
    start = before.get(name)
    return after.astype(np.float64) - (0 if start is None else start.astype(np.float64))


def _counted_once_a_replica(
    differing: Sequence[Entry], taken: Taken, one: OneDevice, program: Program
) -> Cause | None:
    """Whether the difference to one device is the same for other rows: it comes from none."""
    if program.flow is None:
        return None
    is_sent = any(x.common is not None for x in program.flow.meetings)
    if not is_sent or taken.other is None:
        return None
    again = {each.name: each for each in one.compare(taken.other, 4).state}
    for each in differing:
        other = again.get(each.name)
        if each.is_exact or other is None:
            continue
        gap = (each.replicas - each.one) - (other.replicas - other.one)
        if np.max(np.abs(gap), initial=0.0) > 0.01 * each.apart:
            return None
    return Cause(
        "The difference to one device is the same for other rows: a part of the loss (or of the "
        "gradient) that is equal on all replicas, such as a regularizer of the weights, is counted "
        f"once a replica. Such a part is added at {program.flow.common[0]}.",
        "Divide that part by the number of replicas where losses are summed "
        "(`ctx.num_replicas_in_sync`), or add its gradient after the all-reduce; or use "
        "`ctx.global_mean` and MEAN.",
    )


def _half_weighted(counts: Sequence[int]) -> Cause:
    return Cause(
        f"The replicas hold {', '.join(map(str, counts))} rows, and each counts as much as the "
        "others: a mean of means, in which rows of a short batch weigh more.",
        "Give the per-row losses to `ctx.global_mean`, which weighs rows; or "
        "`rx.compute_average_loss` with SUM.",
    )


def _nonlinear(entries: Sequence[Entry], program: Program) -> Cause:
    results = [each.name for each in entries if each.name.startswith("result")]
    where = _where(program)
    if results:
        return Cause(
            "The step gives the mean of what each replica would give alone, its loss "
            f"(`{results[0]}`) too: the forward pass computes something of a replica's own rows "
            "together. "
            + (
                where
                or "That may be BatchNorm with the statistics of its own batch, a ratio of sums "
                "that it divides by itself (a mean over tokens), a top-k, or a product of rows "
                "with rows (contrast)."
            ),
            "Combine before what is not linear: gather the rows (`ctx.all_gather`), or sum "
            "numerator and denominator (`ctx.global_sum`). Statistics of a batch (BatchNorm): "
            "`ctx.all_reduce('mean', ...)` of the mean and of the mean of squares; Flax NNX: "
            "`nnx.BatchNorm(..., axis_name='replica')`; Keras: `fit`, or "
            "`BatchNormalization(synchronized=True)`.",
        )
    return Cause(
        "The step gives the mean of what each replica would do alone, and that is no mean over "
        "rows: something is done to a replica's own gradient before it is combined. Most often "
        "it is clipped, normalised or given to an optimizer before the all-reduce; or its own "
        f"rows were mixed before (BatchNorm, a ratio of sums, top-k, contrast). {where}".rstrip(),
        "First `gradients = ctx.all_reduce('mean', gradients)`, then clip "
        "(`rx.clip_by_global_norm(gradients, ...)`) and apply them.",
    )


def _where(program: Program) -> str:
    """What mixes a replica's rows in the step, with its line; empty if that is not known."""
    found = () if program.look is None else mixings(program.look.traced)
    return f"In the step: {'; '.join(map(str, found[:_MOST_LINES]))}." if found else ""


def _only(number: int) -> Cause:
    return Cause(
        f"That is what replica {number} would do alone: the rows of the others do not count.",
        "Combine what the replicas have: `ctx.all_reduce('mean', gradients)`. A variable with the "
        "aggregation ONLY_FIRST_REPLICA takes the value of replica 0: use MEAN or SUM.",
    )
