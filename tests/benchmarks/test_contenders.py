"""All contenders compute the same, on small versions of the workloads."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("name", ["mlp", pytest.param("convnet", marks=pytest.mark.slow)])
def test_all_contenders_have_the_same_losses(strategy, name):
    from contenders import made
    from workloads import WORKLOADS

    steps = made(strategy, WORKLOADS[name](small=True))
    losses = {each: [float(step()) for _ in range(3)] for each, step in steps.items()}

    first = losses["functional"]
    assert first[0] > first[-1] > 0
    for each in losses.values():
        np.testing.assert_allclose(each, first, rtol=1e-4)
