"""Train on several replicas, with variables that are written in place."""

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import replicax as rx

rx.devices.logical(cpu=4)  # four replicas on the CPU; changes nothing on GPUs and TPUs
strategy = rx.MirroredStrategy()  # every local accelerator, else the logical CPU devices
with strategy.scope():
    w = rx.Variable(jnp.zeros((64, 10)), name="w")  # one copy a replica, written together


@rx.function  # traced once, proved, compiled as one program over all replicas
def train_step(batch):
    def replica_step(batch):  # runs on every replica, with that replica's rows
        x, y = batch
        ctx = rx.get_replica_context()

        def loss_fn(w):  # the mean over all rows of the global batch
            return ctx.global_mean(optax.softmax_cross_entropy_with_integer_labels(x @ w, y))

        loss, gradient = jax.value_and_grad(loss_fn)(w.value)
        w.assign_sub(0.5 * ctx.all_reduce("mean", gradient))
        return loss

    return strategy.run(replica_step, args=(batch,))


images, labels = load_digits(return_X_y=True)
options = rx.InputOptions(global_batch_size=128)  # 1,797 rows: the last batch has 5
dataset = strategy.distribute_dataset((images / 16, labels), options)
for epoch in range(10):
    for batch in dataset:
        loss = train_step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
