"""All contenders compute the same, on small versions of the workloads."""

from __future__ import annotations

import keras  # noqa: F401 - it sets variables of the environment when it is imported
import numpy as np
import pytest

SPARSE = ["functional, sparse rows", "variables, sparse rows", "by hand, sparse rows"]
PACKED = ["functional, packed state", "variables, packed state", "by hand, state in one buffer"]
LOOPS = ["Keras loop", "Keras fit", "NNX loop"]
HANDS = ["an all-reduce a leaf", "one buffer", "buckets of 4 MB", "automatic sharding"]
PLAIN = ["variables", *(f"by hand, {name}" for name in HANDS)]


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("mlp", PLAIN),
        ("mlp", LOOPS),
        ("embedding", SPARSE),
        pytest.param("layers", PACKED, marks=pytest.mark.slow),
        pytest.param("convnet", PLAIN, marks=pytest.mark.slow),
    ],
    ids=["mlp", "loops", "embedding", "layers", "convnet"],
)
def test_all_contenders_have_the_same_losses(strategy, name, others, monkeypatch):
    import contenders as functions
    from ours import contenders
    from workloads import WORKLOADS

    monkeypatch.setattr(functions, "BUCKET_BYTES", 1024)
    makers = contenders(strategy, WORKLOADS[name](small=True), processes=1)
    trained = {each: makers[each]() for each in ["functional", *others]}
    losses = {each: [advance(1) for _ in range(3)] for each, advance in trained.items()}

    first = losses["functional"]
    assert first[0] > first[-1] > 0
    for each in losses.values():
        np.testing.assert_allclose(each, first, rtol=1e-4)


def test_a_workload_has_the_contenders_it_is_for(strategy):
    from ours import contenders
    from workloads import WORKLOADS

    made = {
        name: set(contenders(strategy, WORKLOADS[name](small=True), processes=2))
        for name in ("mlp", "convnet", "embedding", "layers")
    }

    assert made["embedding"] - made["mlp"] == set(SPARSE)
    assert made["layers"] - made["mlp"] == set(PACKED)
    assert made["mlp"] - made["convnet"] == {"Keras fit"}  # it normalises over the global batch


def test_other_libraries_get_weights_and_rows_by_name(tmp_path):
    from workloads import WORKLOADS, save

    save(tmp_path / "layers.npz", WORKLOADS["layers"](small=True))

    with np.load(tmp_path / "layers.npz") as file:
        assert {"rate", "batch/0", "batch/1", "weights/0/w", "weights/11/b"} < set(file)
        assert file["weights/11/w"].shape == (8, 8)
