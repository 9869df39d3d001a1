"""Handwritten digits with a Keras model in a training loop of one's own."""

from __future__ import annotations

import keras
from sklearn.datasets import load_digits

import replicax as rx


def make():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(10, kernel_regularizer="l2")]
        )
        optimizer = keras.optimizers.SGD(0.01)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    row_losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def replica_step(x, y):
        ctx = rx.get_replica_context()

        def loss_fn():
            logits = model(x, training=True)
            return ctx.global_mean(row_losses(y, logits)) + sum(model.losses), logits

        variables = model.trainable_variables
        (loss, logits), gradients = rx.value_and_grad(loss_fn, variables, has_aux=True)()
        rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients), variables)
        accuracy.update_state(y, logits, sample_weight=ctx.example_mask)
        return loss

    @rx.function
    def step(batch):
        return strategy.run(replica_step, args=batch)

    images, labels = load_digits(return_X_y=True)
    data = rx.data.from_arrays((images[:20].astype("float32") / 16, labels[:20]))
    dataset = strategy.distribute_dataset(data.shuffle(seed=0).batch(8))
    return strategy, step, [*model.variables, *optimizer.variables, *accuracy.variables], dataset
