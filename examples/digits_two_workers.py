"""Handwritten digits with Keras: `fit` on two workers, which start with the same command.

    replicax run --standalone --nproc-per-node 2 examples/digits_two_workers.py

Every worker passes the whole dataset, and reads its own rows of each global batch. Worker 0 then
trains the same model by Keras alone; losses, metrics and weights must agree.
"""

from __future__ import annotations

import sys
from typing import Any

import digits_keras_fit as one_process

import replicax as rx

TOLERANCE = 1e-4


def main() -> int:
    """Train on all workers, and compare on worker 0."""
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    strategy = rx.MultiWorkerMirroredStrategy()  # before anything uses a device
    images, labels = one_process.digits()
    data: dict[str, Any] = {"x": images, "y": labels, "batch_size": 100, "epochs": epochs}
    data |= {"shuffle": False, "verbose": 0}

    with strategy.scope():
        model = one_process.compiled_model()
    history = rx.keras.fit(model, **data).history
    if not strategy.is_chief:
        return 0
    for epoch in range(epochs):
        line = ", ".join(f"{name} {values[epoch]:.4f}" for name, values in history.items())
        print(f"epoch {epoch + 1}: {line}")
    one = one_process.compiled_model()
    expected = one.fit(**data).history
    names = sorted(expected)
    apart = one_process.largest_difference(
        [*(history[name] for name in names), *model.get_weights()],
        [*(expected[name] for name in names), *one.get_weights()],
    )
    print(f"{strategy.num_replicas_in_sync} replicas on {strategy.worker_count} workers, and one")
    print(f"device: {apart:.1e} apart at most in losses, metrics and weights")
    return int(not apart <= TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
