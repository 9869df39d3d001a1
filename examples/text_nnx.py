"""A model of characters, with a Flax NNX module that is used in place on several replicas.

The text is Python's own help on its language: `pydoc_data.topics`.
"""

from pydoc_data.topics import topics

import jax
import numpy as np
import optax
from flax import nnx

import replicax as rx

rx.devices.logical(cpu=4)
strategy = rx.MirroredStrategy()

text = "\n".join(topics[name] for name in ("for", "if", "while", "with"))
letters = sorted(set(text))
codes = np.array([letters.index(letter) for letter in text])
length = 16
starts = np.arange(0, len(codes) - length - 1, length)
rows = np.stack([codes[start : start + length + 1] for start in starts]).astype(np.int32)


class Characters(nnx.Module):
    """Guess the next character from those before."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Start from random weights."""
        self.embed = nnx.Embed(len(letters), 32, rngs=rngs)
        self.rnn = nnx.RNN(nnx.SimpleCell(32, 64, rngs=rngs))
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.scores = nnx.Linear(64, len(letters), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """i32[B, T] to f32[B, T, letters]."""
        return self.scores(self.dropout(self.rnn(self.embed(x))))


with strategy.scope():
    model = Characters(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    rx.nnx.adopt(model, optimizer)


@rx.function
def train_step(batch: jax.Array) -> jax.Array:
    """One step on all replicas; the last batch of an epoch is uneven."""

    def replica_step(batch: jax.Array) -> jax.Array:
        ctx = rx.get_replica_context()

        def loss_fn(model: Characters) -> jax.Array:
            losses = optax.softmax_cross_entropy_with_integer_labels(
                model(batch[:, :-1]), batch[:, 1:]
            )
            return ctx.global_mean(losses.mean(axis=1))

        loss, gradients = nnx.value_and_grad(loss_fn)(model)
        gradients, _ = rx.clip_by_global_norm(ctx.all_reduce("mean", gradients), 1.0)
        optimizer.update(model, gradients)
        return loss

    return strategy.run(replica_step, args=(batch,))


dataset = strategy.distribute_dataset(rows, rx.InputOptions(global_batch_size=64))
for epoch in range(6):
    losses = [float(train_step(batch)) for batch in dataset]
    print(f"epoch {epoch}: loss {np.mean(losses):.4f}")

model.eval()  # A step that is called now would be traced anew, without dropout.
next_letter = rx.function(lambda window: model(window)[0, -1].argmax())
written = [letters.index(letter) for letter in "The statement is "]
for _ in range(60):
    written.append(int(next_letter(np.array([written[-length:]]))))
print("".join(letters[code] for code in written))
