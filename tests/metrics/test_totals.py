"""Totals lose nothing: neither single rows in a large count, nor the ends of a long sum."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.metrics._totals import _added, rounded

LIMIT = 2.0**24  # float32(LIMIT) + 1 is LIMIT


@pytest.mark.accelerator
def test_a_long_sum_does_not_drift():
    values = np.random.default_rng(0).uniform(0, 1, 20_000).astype(np.float32)

    @jax.jit
    def added_up(values):
        pair, plain = jnp.zeros(2), jnp.float32(0)
        (pair, plain), _ = jax.lax.scan(
            lambda sums, x: ((_added(sums[0], x), sums[1] + x), None), (pair, plain), values
        )
        return pair, plain

    pair, plain = added_up(values)
    exact = math.fsum(values.tolist())

    assert float(rounded(pair)) == float(np.float32(exact))
    assert math.fsum(np.asarray(pair).tolist()) == pytest.approx(exact, rel=1e-12)
    assert float(plain) != float(np.float32(exact))  # or the numbers above show nothing


@pytest.mark.accelerator
def test_a_sum_of_both_signs_keeps_what_is_small():
    values = np.float32([1e8, 1.0, -1e8, 2.0**-20])
    pair = jnp.zeros(2)
    for value in values:
        pair = _added(pair, value)
    assert float(rounded(pair)) == 1.0 + 2.0**-20


def test_counts_go_on_where_a_float32_stops(runner, strategy):
    with strategy.scope():
        metric = rx.metrics.Mean()
    full = rx.PerReplica([np.float32([LIMIT, 0])] * 2)
    metric.count.assign(full)
    metric.total.assign(full)
    step = runner(lambda x: strategy.run(metric.update_state, args=(x,)))
    for _ in range(6):
        step(rx.PerReplica([np.zeros(1), np.zeros(1)]))

    assert np.float32(LIMIT) + np.float32(1) == LIMIT
    assert [math.fsum(np.asarray(copy).tolist()) for copy in metric.count.values] == [LIMIT + 6] * 2
    assert float(metric.result()) == float(np.float32(LIMIT / (LIMIT + 6)))


def test_one_infinite_replica_makes_the_total_infinite(strategy):
    with strategy.scope():
        metric = rx.metrics.Sum()
    step = rx.function(lambda x: strategy.run(metric.update_state, args=(x,)))
    for rows in ([np.inf], [1.0]), ([1.0], [1.0]):
        step(rx.PerReplica([np.float32(row) for row in rows]))
    assert float(metric.result()) == np.inf
