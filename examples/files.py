"""Train from files, stop half way, and go on in a new training with fewer replicas.

The files are the digits of scikit-learn, written to a temporary folder. At the end the weights are
compared with those of a training that was never stopped.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import replicax as rx

EPOCHS, BATCH, FILES = 5, 128, 4


def write_files(folder: Path) -> None:
    """Write `FILES` files of rows: images f64[N, 64] and labels i64[N]."""
    images, labels = load_digits(return_X_y=True)
    for i in range(FILES):
        np.savez(folder / f"digits-{i}.npz", image=images[i::FILES], label=labels[i::FILES])


def scaled(row: dict[str, Any]) -> tuple[Any, Any]:
    """A row of a file as the training wants it: the image from 0 to 1, and the label."""
    return row["image"] / 16, row["label"]


def global_batches(folder: Path) -> rx.data.Dataset:
    """The global batches of all epochs, each epoch in its own order."""
    files = rx.input.files(f"{folder}/*.npz", rx.data.read_npz).interleave(FILES)
    return files.map(scaled).cache().shuffle(seed=0).repeat(EPOCHS).batch(BATCH)


class Training:
    """A linear classifier on some replicas, and its place in the input.

    Args:
        num_replicas: How many logical CPU devices take part.
        folder: Where the files are, and where the training is saved.
    """

    def __init__(self, num_replicas: int, folder: Path) -> None:
        self._folder = folder
        self._strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
        with self._strategy.scope():
            self.weights = rx.Variable(jnp.zeros((64, 10)), name="weights")
        dataset = self._strategy.distribute_dataset(global_batches(folder))
        self.batches = iter(dataset)
        self._checkpoint = rx.checkpoint.Checkpoint(weights=self.weights)

    @rx.function
    def _step(self, batch: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            x, y = batch
            ctx = rx.get_replica_context()

            def loss_fn(weights: Any) -> Any:
                logits = x @ weights
                return ctx.global_mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))

            loss, gradient = jax.value_and_grad(loss_fn)(self.weights.value)
            self.weights.assign_sub(0.5 * ctx.all_reduce("mean", gradient))
            return loss

        return self._strategy.run(replica_step, args=(batch,))

    def train(self, last_step: int | None = None) -> None:
        """Go on to a step, or to the end of the input."""
        first, loss = self.batches.step, None
        while self.batches.step != last_step:
            batch = self.batches.get_next_as_optional()
            if not batch.has_value():
                break
            loss = self._step(batch.get_value())
        print(f"steps {first} to {self.batches.step}: loss {loss:.4f}")

    def save(self) -> None:
        """Save the weights and the place in the input."""
        self._checkpoint.save(self._folder / "weights")
        (self._folder / "place.json").write_text(json.dumps(self.batches.get_state()))

    def restore(self) -> None:
        """Go to where `save` was called, with any number of replicas."""
        self._checkpoint.restore(self._folder / "weights")
        self.batches.set_state(json.loads((self._folder / "place.json").read_text()))


def main() -> None:
    """Train with and without a stop, and compare."""
    rx.devices.logical(cpu=4)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)

        whole = Training(4, folder)
        whole.train()

        stopped = Training(4, folder)
        stopped.train(last_step=30)
        stopped.save()
        resumed = Training(2, folder)
        resumed.restore()
        resumed.train()

    apart = np.abs(np.asarray(whole.weights) - np.asarray(resumed.weights)).max()
    print(f"weights with and without the stop differ by at most {apart:.1e}")


if __name__ == "__main__":
    main()
