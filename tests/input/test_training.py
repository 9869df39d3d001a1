"""Training over uneven batches equals training on one device."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import replicax as rx

WEIGHTS = np.float32([1.0, -2.0, 0.5])


CHAINS = {
    "batched": lambda rows: rows.batch(7),
    "over epochs": lambda rows: rows.repeat(2).batch(7),
}


@functools.cache
def strategy_of(replicas):
    return rx.MirroredStrategy(jax.devices()[:replicas])


class Training:
    """Steps of a linear model, compiled once for all the examples that use them."""

    def __init__(self, replicas, runner):
        self._strategy = strategy_of(replicas)
        with self._strategy.scope():
            self._w = rx.Variable(np.zeros(3, np.float32))
        self._step = runner(lambda batch: self._strategy.run(self._replica_step, args=(batch,)))

    def _replica_step(self, batch):
        x, y = batch
        grads = x * (jnp.dot(x, self._w.value, precision="highest") - y)[:, None]
        self._w.assign_sub(0.1 * rx.get_replica_context().global_mean(grads))

    def weights(self, dataset):
        """The weights after two epochs."""
        self._w.assign(np.zeros(3, np.float32))
        dataset = self._strategy.distribute_dataset(dataset)
        for _ in range(2):
            for batch in dataset:
                self._step(batch)
        return np.asarray(self._w.value)


compiled = functools.cache(lambda replicas: Training(replicas, rx.function))


def check_training(training, rows, chain="batched", seed=1):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 3)).astype(np.float32)
    dataset = CHAINS[chain](rx.data.from_arrays(x, x @ WEIGHTS).shuffle(seed=seed))
    found, alone = training.weights(dataset), compiled(1).weights(dataset)
    np.testing.assert_allclose(found, alone, rtol=0, atol=1e-6)
    assert np.abs(found - WEIGHTS).sum() < np.abs(WEIGHTS).sum()  # it learns


@settings(max_examples=15)
@given(
    rows=st.sampled_from([2, 9, 16, 23]),  # global batches of 7, 4 and 2 rows: each is a program
    replicas=st.sampled_from([3, 5]),
    seed=st.integers(0, 7),
    chain=st.sampled_from(list(CHAINS)),
)
def test_a_linear_model_trains_as_on_one_device(rows, replicas, seed, chain):
    check_training(compiled(replicas), rows, chain, seed)


def test_a_linear_model_trains_eagerly_as_on_one_device():
    check_training(Training(3, lambda step: step), rows=9)  # shares of 3, 3, 1 and of 1, 1, 0
