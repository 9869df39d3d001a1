"""An MLP in bfloat16 with optax: gradients in micro-batches, clipped, applied where finite."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import replicax as rx

rx.devices.logical(cpu=4)
strategy = rx.MirroredStrategy()
policy = rx.precision.Policy("mixed_bfloat16")

rng = np.random.default_rng(0)
with strategy.scope():
    weights = {
        "first": rx.Variable(rng.normal(size=(64, 64)) / 8, dtype=jnp.float32, name="first"),
        "second": rx.Variable(rng.normal(size=(64, 10)) / 8, dtype=jnp.float32, name="second"),
    }
    optimizer = rx.Optimizer(optax.adam(3e-3), weights)
    accuracy = rx.metrics.SparseCategoricalAccuracy()


def scores(x: jax.Array) -> jax.Array:
    """Bfloat16 products of float32 weights; the scores are float32 again."""
    half = policy.to_compute({name: w.value for name, w in weights.items()})
    hidden = jax.nn.relu(policy.to_compute(x) @ half["first"])
    return policy.to_variable(hidden @ half["second"])


@rx.function
def train_step(batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """One step: each replica takes its rows in four micro-batches, and all meet once."""

    def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
        def losses(rows: tuple[jax.Array, jax.Array]) -> jax.Array:
            x, y = rows
            return optax.softmax_cross_entropy_with_integer_labels(scores(x), y)

        loss, gradients = rx.accumulate(losses, (x, y), 4, weights)
        gradients, _ = rx.clip_by_global_norm(gradients, 1.0)
        is_finite = rx.precision.all_finite(gradients)
        rx.apply_gradients(optimizer, gradients, apply_if=is_finite)
        accuracy.update_state(y, scores(x))
        return loss

    return strategy.run(replica_step, args=batch)


images, labels = load_digits(return_X_y=True)
options = rx.InputOptions(global_batch_size=128)
dataset = strategy.distribute_dataset(
    ((images / 16).astype(np.float32), labels.astype(np.int32)), options
)
for epoch in range(10):
    accuracy.reset_state()
    losses = [float(train_step(batch)) for batch in dataset]
    print(f"epoch {epoch}: loss {np.mean(losses):.4f}, accuracy {float(accuracy.result()):.3f}")
