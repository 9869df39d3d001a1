"""A training on two devices a worker, of which worker 1 fails while worker 0 is in a step."""

import jax.numpy as jnp
import numpy as np

import replicax as rx

strategy = rx.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = rx.Variable(jnp.zeros(4), name="w")


@rx.function
def step(rows):
    def replica_step(rows):
        ctx = rx.get_replica_context()
        w.assign_sub(ctx.all_reduce("mean", jnp.ones(4) * ctx.global_mean(rows.sum(1))))
        return ctx.global_mean(rows.sum(1) ** 2)

    return strategy.run(replica_step, args=(rows,))


rows = rx.data.from_arrays(np.ones((103, 4), np.float32)).shuffle(seed=0).batch(20)
dataset = strategy.distribute_dataset(rows)
for epoch in range(3):
    for number, batch in enumerate(dataset):
        loss = step(batch)
        if (epoch, number) == (2, 3) and not strategy.is_chief:
            raise ValueError("the fault")
    loss.block_until_ready()
