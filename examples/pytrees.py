"""Train on several replicas, with state that goes in and comes back: any pytree, and optax."""

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import replicax as rx

rx.devices.logical(cpu=4)
strategy = rx.MirroredStrategy()
optimizer = optax.adam(1e-2)
weights = {"kernel": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
state = (weights, optimizer.init(weights))


@rx.function(donate="state")  # the step may reuse the memory of the old state
def train_step(state, batch):
    def replica_step(state, batch):
        (weights, moments), (x, y) = state, batch
        ctx = rx.get_replica_context()

        def loss_fn(weights):
            logits = x @ weights["kernel"] + weights["bias"]
            return ctx.global_mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))

        loss, gradients = jax.value_and_grad(loss_fn)(weights)
        gradients = ctx.all_reduce("mean", gradients)
        updates, moments = optimizer.update(gradients, moments, weights)
        return (optax.apply_updates(weights, updates), moments), loss

    return strategy.run(replica_step, args=(state, batch))


images, labels = load_digits(return_X_y=True)
options = rx.InputOptions(global_batch_size=128)
dataset = strategy.distribute_dataset((images / 16, labels), options)
for epoch in range(10):
    for batch in dataset:
        state, loss = train_step(state, batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
