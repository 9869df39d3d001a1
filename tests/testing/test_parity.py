"""`rx.testing.assert_one_device_parity`."""

from __future__ import annotations

import numpy as np
import pytest

import replicax as rx


def test_it_raises_with_the_table_and_returns_the_report():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        total = rx.Variable(0.0, name="total")

    def step(op):
        def replica_step(x):
            total.assign_add(rx.get_replica_context().all_reduce(op, x.sum()))

        return rx.function(lambda batch: strategy.run(replica_step, args=(batch,)))

    rows = rx.data.from_arrays(np.arange(8, dtype=np.float32)).batch(4)

    assert rx.testing.assert_one_device_parity(strategy, step("sum"), None, rows).ok
    with pytest.raises(rx.errors.VerificationError, match=r"total +3 +6"):
        rx.testing.assert_one_device_parity(strategy, step("mean"), None, rows)
