"""Two networks that are trained against each other, in one step, with an optimizer each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        mean = rx.Variable(0.0, name="mean")
        slope = rx.Variable(1.0, name="slope")
        makers = rx.Optimizer(optax.sgd(0.1), [mean])
        judges = rx.Optimizer(optax.adam(0.1), [slope])

    def replica_step(x):
        ctx = rx.get_replica_context()

        def made_score():
            return ctx.global_mean(slope.value * (0 * x + mean.value))

        def judge_loss():
            return ctx.global_mean(jax.nn.softplus(-slope.value * x)) + made_score()

        _, of_judge = rx.value_and_grad(judge_loss, [slope])()
        _, of_maker = rx.value_and_grad(lambda: jnp.negative(made_score()), [mean])()
        of_judge, of_maker = ctx.all_reduce("mean", (of_judge, of_maker))
        rx.apply_gradients(judges, of_judge)
        rx.apply_gradients(makers, of_maker)

    @rx.function
    def step(x):
        strategy.run(replica_step, args=(x,))

    x = np.array([1, 3, 2, 2], np.float32)
    slots = jax.tree.leaves((makers.state, judges.state))
    return strategy, step, [mean, slope, *slots], strategy.distribute_dataset([x, x])
