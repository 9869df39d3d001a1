"""Twenty steps of training give the weights of one device."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

from .models import (
    OPTIMIZERS,
    STEPS,
    Functional,
    InPlace,
    cut,
    cut_sizes,
    epochs,
    largest_difference,
    mirrored,
    rows,
    train_on_one_device,
)

TOLERANCE = 1e-6

BATCHES = {
    # 24 rows: the same number on each replica, however many there are.
    "even": lambda: cut(rows(48), 24),
    # The last batch of an epoch has 7 rows: fewer than 8 replicas.
    "short_last": lambda: cut(rows(55), 24),
    # 7 rows, which no number of replicas but 1 divides.
    "indivisible": lambda: cut(rows(42), 7),
    # The last batch has 2 rows: fewer than 3 and 8 replicas.
    "few_rows": lambda: cut(rows(26), 24),
    # All of it in turn.
    "mixed": lambda: cut_sizes([24, 7, 24, 2]),
}


@functools.cache
def batches_of(kind: str) -> list[Any]:
    return epochs(BATCHES[kind]())


@functools.cache
def expected(optimizer: str, kind: str) -> Any:
    return train_on_one_device(optimizer, batches_of(kind))


@functools.cache  # one compiled step serves the batches of all kinds
def trainer(style: str, optimizer: str, n: int, *, compiled: bool) -> Functional | InPlace:
    if style == "variables":
        return InPlace(optimizer, mirrored(n), compiled=compiled)
    return Functional(optimizer, mirrored(n), compiled=compiled, donate=style == "donated")


def check(style: str, optimizer: str, n: int, kind: str, *, compiled: bool) -> None:
    weights, losses = trainer(style, optimizer, n, compiled=compiled).train(batches_of(kind))
    one_device_weights, one_device_losses = expected(optimizer, kind)
    assert len(losses) == STEPS
    assert largest_difference(weights, one_device_weights) <= TOLERANCE
    assert losses == pytest.approx(one_device_losses, rel=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("style", "optimizer", "kind"),
    [
        *itertools.product(
            ["variables", "functional"],
            ["sgd", "adam"],
            ["even", "short_last", "indivisible", "few_rows"],
        ),
        *itertools.product(["donated"], ["sgd", "adam"], ["few_rows"]),
        ("functional", "momentum", "short_last"),
    ],
)
@pytest.mark.parametrize(
    "n", [pytest.param(1, marks=pytest.mark.slow), 2, 3, pytest.param(8, marks=pytest.mark.slow)]
)
def test_compiled_training_gives_the_weights_of_one_device(n, optimizer, style, kind):
    check(style, optimizer, n, kind, compiled=True)


# An eager step costs a hundred compiled ones, so one sequence holds all kinds of batches; and
# there is nothing to donate. Each device compiles for itself, so eight are asked once.
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("n", "style", "optimizer"),
    [
        *itertools.product([1, 2, 3], ["variables", "functional"], ["sgd", "adam"]),
        (8, "variables", "adam"),
    ],
)
def test_eager_training_gives_the_weights_of_one_device(n, optimizer, style):
    check(style, optimizer, n, "mixed", compiled=False)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_tolerance_is_far_below_what_training_changes(optimizer):
    """Weights that stood still, or took one step less, would fail the comparison."""
    weights, losses = expected(optimizer, "mixed")
    one_step_less, _ = train_on_one_device(optimizer, batches_of("mixed")[:-1])
    assert largest_difference(weights, one_step_less) > 1e3 * TOLERANCE
    assert losses[-1] < losses[0]


def test_the_tolerance_notices_a_wrongly_weighted_last_batch():
    """Means of means, the classical mistake with uneven batches, would fail the comparison."""
    # Two replicas hold 13 and 12 of 25 rows: here their means get equal weight.
    batches = cut(rows(50), 25)
    right, _ = train_on_one_device("sgd", epochs(batches))
    wrong, _ = train_on_one_device("sgd", epochs(cut_sizes_by_weight(batches)))
    assert largest_difference(wrong, right) > 100 * TOLERANCE


def cut_sizes_by_weight(batches: list[Any]) -> list[Any]:
    """Each row as often as a mean of the two replicas' means counts it."""
    first, second = [0] * 12, [0] * 13
    index = [i for i in range(13) for _ in first] + [13 + i for i in range(12) for _ in second]
    return [tuple(part[index] for part in batch) for batch in batches]
