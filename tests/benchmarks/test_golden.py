"""All-reduces, bytes and copies of the five workloads are what they were."""

from __future__ import annotations

import pytest

WORKLOADS = ["mlp", "convnet", "transformer", "layers", "embedding"]
IN_PACKS = "layers in packs"


@pytest.mark.parametrize("name", [*WORKLOADS, IN_PACKS])
def test_the_compiled_program_has_its_golden_values(strategy, name):
    from golden import differences, facts, golden

    assert differences(name, facts(strategy, name), golden()[name]) == [], (
        "if this is meant: python benchmarks/golden.py --update"
    )


def test_every_workload_has_values():
    from golden import golden
    from workloads import WORKLOADS as DEFINED

    assert list(DEFINED) == WORKLOADS
    assert golden().keys() == {*DEFINED, IN_PACKS}


def test_a_difference_is_named():
    from golden import differences

    assert differences("mlp", {"bytes": 5, "arrays": 2}, {"bytes": 4, "arrays": 2}) == [
        "mlp, bytes: 5, but the golden value is 4"
    ]
