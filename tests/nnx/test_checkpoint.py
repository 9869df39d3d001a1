"""Checkpoints of modules and optimizers that are used in place."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.checkpoint import Checkpoint

from .modules import nnx

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)


class Small(nnx.Module):
    """Parameters, statistics and a stream of random numbers."""

    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(2, 1, rngs=rngs)])

    def __call__(self, x):
        return self.layers[0](self.drop(self.norm(x)))[:, 0]


def adopted(strategy, seed):
    module = Small(nnx.Rngs(seed))
    optimizer = nnx.Optimizer(module, optax.adam(0.1), wrt=nnx.Param)
    with strategy.scope():
        return rx.nnx.adopt(module, optimizer)


def training(strategy, module, optimizer):
    def replica_step(x):
        ctx = rx.get_replica_context()
        gradients = nnx.grad(lambda module: ctx.global_mean((module(x) - 1.0) ** 2))(module)
        optimizer.update(module, ctx.all_reduce("mean", gradients))

    step = rx.function(lambda batch: strategy.run(replica_step, args=(batch,)))
    (batch,) = strategy.distribute_dataset([X])
    return lambda: step(batch)


def bits(*objects):
    def on_host(x):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x).tobytes()

    return [on_host(x) for x in jax.tree.leaves(nnx.state(objects))]


@pytest.mark.slow
def test_a_checkpoint_restores_modules_in_place_on_any_number_of_replicas(strategy, tmp_path):
    first = adopted(strategy, 0)
    step = training(strategy, *first)
    step()
    Checkpoint(model=first[0], optimizer=first[1]).save(tmp_path)
    saved = bits(*first)
    step()
    after = bits(*first)

    again = adopted(strategy, 1)
    assert bits(*again) != saved
    Checkpoint(model=again[0], optimizer=again[1]).restore(tmp_path).assert_consumed()
    assert bits(*again) == saved
    training(strategy, *again)()
    assert bits(*again) == after  # the same masks of Dropout, too

    others = adopted(rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]), 2)
    held = {"of": [others[1], others[0]]}
    Checkpoint(model=others[0], optimizer=others[1], both=held).restore(tmp_path)
    assert bits(*others) == saved
    assert len(others[0].layers[0].kernel[...].devices()) == 3


def test_what_would_not_be_restored_in_place_is_refused(strategy, tmp_path):
    with pytest.raises(rx.errors.ContextError, match=r"rx\.nnx\.adopt\(object\)"):
        Checkpoint(model=Small(nnx.Rngs(0))).save(tmp_path)
    module, _ = adopted(strategy, 0)
    Checkpoint(bias=module.layers[0].bias).save(tmp_path)  # a part alone
    module.layers[0].bias[...] = np.float32([7.0])
    Checkpoint(bias=module.layers[0].bias).restore(tmp_path)
    assert float(module.layers[0].bias[...][0]) == 0.0
