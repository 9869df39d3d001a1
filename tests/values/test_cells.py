"""Variables that a step replaces together share one list of arrays."""

from __future__ import annotations

import gc
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.values._cells import shared_cell


@pytest.fixture
def three(strategy: rx.MirroredStrategy) -> list[rx.Variable]:
    with strategy.scope():
        return [rx.Variable(jnp.full(2, i, jnp.float32), name=f"v{i}") for i in range(3)]


def values(variables: list[rx.Variable]) -> list[float]:
    return [float(v.value[0]) for v in variables]


def adder(strategy: rx.MirroredStrategy, variables: list[rx.Variable]) -> Any:
    @rx.function
    def step() -> None:
        def add() -> None:
            for variable in variables:
                variable.assign_add(jnp.ones(2))

        strategy.run(add)

    return step


def test_steps_with_all_some_and_other_variables_see_one_another(
    strategy: rx.MirroredStrategy, three: list[rx.Variable]
) -> None:
    steps = [adder(strategy, vs) for vs in (three[:2], three[1:], three, three[::-1], three[:1])]
    expected = np.arange(3.0)
    for chosen in (0, 1, 2, 3, 0, 2, 4, 1, 3, 0):
        steps[chosen]()
        expected += [[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 0]][chosen]
        three[1].assign(three[1].value + 1)
        expected[1] += 1
        assert values(three) == expected.tolist()


def test_variables_move_together_and_never_away_from_others(three: list[rx.Variable]) -> None:
    pair = shared_cell(three[:2])
    assert shared_cell(three[:2]) is pair
    assert shared_cell(three[1:]).arrays is None
    assert shared_cell(three[:1]).arrays is None
    everything = shared_cell(three)
    assert everything.arrays is not None
    assert pair.arrays is None
    assert values(three) == [0, 1, 2]


def test_an_array_goes_with_its_variable(three: list[rx.Variable]) -> None:
    cell = shared_cell(three)
    del three[0]
    gc.collect()
    assert cell.arrays is not None
    assert [array is None for array in cell.arrays] == [True, False, False]
    assert values(three) == [1, 2]
