"""`rx.precision.Policy` and reductions in float32."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float32", "float32"), ("mixed_bfloat16", "bfloat16"), ("mixed_float16", "float16")],
)
def test_computing_has_a_dtype_of_its_own(name, dtype):
    policy = rx.precision.Policy(name)
    tree = {"w": jnp.ones(2), "label": np.arange(2), "half": jnp.ones(2, jnp.float16)}

    there = policy.to_compute(tree)
    back = policy.to_variable(there)

    assert str(there["w"].dtype) == str(there["half"].dtype) == dtype
    assert there["label"] is tree["label"]
    assert back["w"].dtype == jnp.float32
    assert policy.needs_loss_scale == (name == "mixed_float16")
    assert policy == rx.precision.Policy(name)


def test_other_names_are_refused():
    with pytest.raises(rx.errors.InvalidArgumentError, match="mixed_float16"):
        rx.precision.Policy("float16")


def test_sums_of_half_precision_do_not_overflow_on_the_way(run):
    def replica_fn(x):
        ctx = rx.get_replica_context()
        tree = {"half": x, "other": jnp.float32(2.0)}
        return (
            ctx.all_reduce("sum", x),
            rx.precision.all_reduce_in_float32(ctx, "mean", tree),
            rx.precision.all_reduce_in_float32(ctx, "sum", x, keep_float32=True),
        )

    plain, mean, total = run(replica_fn, rx.PerReplica([np.float16(60000), np.float16(59936)]))

    assert np.isinf(plain)
    assert float(mean["half"]) == 59968
    assert mean["half"].dtype == jnp.float16
    assert total.dtype == jnp.float32
    assert float(total) == 60000 + 59936
