"""The padded number of rows must not be used as a number."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

ROWS = np.arange(1.0, 6.0, dtype=np.float32)  # three rows and two: one is padding


def remainder(strategy: Any) -> Any:
    (batch,) = strategy.distribute_dataset([ROWS])
    return batch


def ctx() -> Any:
    return rx.get_replica_context()


def nested(x: Any) -> Any:
    return jax.jit(lambda x: ctx().local_sum(x) / x.shape[0])(x)


def scanned(x: Any) -> Any:
    total = ctx().local_sum(x)
    return jax.lax.scan(lambda c, _: (c + len(x), None), total, None, length=2)[0]


def in_a_branch(x: Any) -> Any:
    total = ctx().local_sum(x)
    return jax.lax.cond(total > 0, lambda t: t * len(x), lambda t: t, total)


COUNTED = {
    "the length": lambda x: jnp.int32(len(x)),
    "a mean by hand": lambda x: ctx().local_sum(x) / len(x),
    "its inverse": lambda x: ctx().local_sum(x) * (1 / x.shape[0]),
    "all reduced": lambda x: ctx().all_reduce("sum", jnp.float32(len(x))),
    "in a jitted function": nested,
    "in a scan": scanned,
    "in a branch": in_a_branch,
}

PLACES = {
    "a range": lambda x: ctx().local_sum(jnp.where(jnp.arange(len(x)) < 2, x, 0)),
    "the last place": lambda x: ctx().local_sum(x * (jnp.arange(len(x)) != len(x) - 1)),
    "its own rows of all": lambda x: ctx().local_sum(
        jax.lax.dynamic_slice_in_dim(
            ctx().all_gather(x, 0), ctx().replica_id_in_sync_group * len(x), len(x)
        )
    ),
    "real rows": lambda x: ctx().local_sum(jnp.ones(len(x))),
}


@pytest.mark.parametrize("replica_fn", COUNTED.values(), ids=COUNTED)
def test_a_padded_row_count_is_refused(strategy: Any, replica_fn: Any) -> None:
    step = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))
    with pytest.raises(rx.errors.UnusedMaskError, match="used as a number") as caught:
        step(remainder(strategy))
    # A constant result has no equation, and so no line.
    assert ("test_row_count.py" in str(caught.value)) is (replica_fn is not COUNTED["the length"])


def test_a_variable_that_counts_rows_keeps_its_value(strategy: Any) -> None:
    with strategy.scope():
        rows = rx.Variable(0, synchronization="on_read", aggregation="sum", name="rows")
    step = rx.function(lambda x: strategy.run(lambda x: rows.assign_add(len(x)), args=(x,)))
    with pytest.raises(rx.errors.UnusedMaskError, match="number of rows was used as a number"):
        step(remainder(strategy))
    assert int(rows) == 0


@pytest.mark.parametrize("replica_fn", PLACES.values(), ids=PLACES)
def test_places_are_no_counts(strategy: Any, replica_fn: Any) -> None:
    step = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))
    assert np.isfinite(strategy.reduce("sum", step(remainder(strategy)), axis=None))


def test_full_batches_may_count(strategy: Any) -> None:
    (batch,) = strategy.distribute_dataset([ROWS[:4]])
    step = rx.function(lambda x: strategy.run(lambda x: jnp.int32(len(x)), args=(x,)))
    assert int(step(batch)) == 2
