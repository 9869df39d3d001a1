"""What each of two workers with two devices does with Keras; results go to files."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import keras
import numpy as np

import replicax as rx
from replicax import cluster

ROWS = 11


def rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3)).astype(np.float32)
    return x, (x[:, :1] > 0).astype(np.float32)


def rich_model(seed: int | None = 3) -> Any:
    if seed is not None:
        keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3, seed=1),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def options() -> dict[str, Any]:
    x, y = rows()
    return {
        "x": x,
        "y": y,
        "batch_size": 6,
        "epochs": 5,  # until EarlyStopping
        "shuffle": True,
        "validation_data": (x[:5], y[:5]),
        "verbose": 0,
    }


def arrays(model: Any) -> list[list[float]]:
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(v.value).astype(np.float64).ravel().tolist() for v in variables]


def fit_on_arrays(strategy: Any, folder: Path) -> Any:
    with strategy.scope():
        model = rich_model()
    shared = folder / "shared"
    stop = keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=1)
    found = rx.keras.fit(
        model,
        **options(),
        callbacks=[
            stop,
            keras.callbacks.ModelCheckpoint(shared / "best.keras", "val_loss", save_best_only=True),
            keras.callbacks.CSVLogger(shared / "log.csv"),
            keras.callbacks.BackupAndRestore(shared / "backup"),
        ],
    )
    predicted = rx.keras.predict(model, rows()[0], batch_size=6, verbose=0)
    return found.history, arrays(model), predicted.tolist(), stop.stopped_epoch


def own_methods_on_datasets(strategy: Any, folder: Path) -> Any:
    del folder
    with strategy.scope():
        model = rich_model()
    x, y = rows()

    def batches(context: Any) -> list[Any]:
        """5 rows on the first worker, 6 on the second."""
        mine = slice(0, 5) if context.input_pipeline_id == 0 else slice(5, ROWS)
        return [(x[mine][i : i + 2], y[mine][i : i + 2]) for i in range(0, 6, 2)]

    with strategy.scope():
        whole = strategy.distribute_dataset((x, y), rx.InputOptions(global_batch_size=ROWS))
        whole_history = model.fit(whole, verbose=0).history
        own = strategy.distribute_datasets_from_function(batches)
        evaluated = model.evaluate(own, verbose=0)
    return whole_history, arrays(model), evaluated


def a_step(strategy: Any, folder: Path) -> Any:
    del folder
    keras.utils.set_random_seed(4)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        mean = keras.metrics.MeanSquaredError()

    @rx.function
    def step(batch: Any) -> Any:
        def replica_step(batch: Any) -> Any:
            x, y = batch
            ctx = rx.get_replica_context()

            def loss_fn() -> Any:
                p = model(x, training=True)
                return ctx.global_mean((p - y)[:, 0] ** 2), p

            variables = model.trainable_variables
            (loss, p), gradients = rx.value_and_grad(loss_fn, variables, has_aux=True)()
            rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients), variables)
            mean.update_state(y, p, sample_weight=ctx.example_mask)
            return loss

        return strategy.run(replica_step, args=(batch,))

    dataset = strategy.distribute_dataset(rows(), rx.InputOptions(global_batch_size=6))
    losses = [float(np.asarray(step(batch).addressable_data(0))) for batch in dataset]
    weights = [np.asarray(v.value).tolist() for v in model.variables]
    return losses, weights, float(mean.result())


def unseeded(strategy: Any, folder: Path) -> Any:
    """Workers draw other numbers; all start from those of worker 0."""
    del folder
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with strategy.scope():
        rx.keras.adopt(model)
    return [np.asarray(v.value).tolist() for v in model.variables]


class Dies(keras.callbacks.Callback):  # type: ignore[misc]
    """Kills a worker in the middle of the second epoch, once."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker, self.epoch = marker, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del logs
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        if (self.epoch, batch) == (1, 0) and not self.marker.exists():
            backup = self.marker.with_name("backup.whole") / "training_metadata.json"
            while not backup.exists():
                time.sleep(0.01)
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def small_model() -> Any:
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def resumed(strategy: Any, folder: Path) -> Any:
    """Three epochs, in whose second one worker 1 is killed the first time."""
    with strategy.scope():
        model = small_model()
    callbacks = [keras.callbacks.BackupAndRestore(folder / "backup")]
    if not strategy.is_chief:
        callbacks.append(Dies(folder / "killed"))
    x, y = (part[:8] for part in rows())
    options = {"batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0}
    history = rx.keras.fit(model, x, y, callbacks=callbacks, **options).history
    cluster.agree("the end of the backups", {})  # The chief takes them away.
    return history, arrays(model), (folder / "backup").exists()


def refused(strategy: Any, folder: Path) -> Any:
    """Keras' own methods where they would be wrong."""
    x, y = rows()
    with strategy.scope():
        model = small_model()
        dataset = strategy.distribute_dataset((x, y), rx.InputOptions(global_batch_size=ROWS))
        log = [keras.callbacks.CSVLogger(folder / "never.csv")]
        calls = {
            "fit of arrays": lambda: model.fit(x, y, verbose=0),
            "evaluate of arrays": lambda: model.evaluate(x[:4], y[:4], verbose=0),
            "predict of arrays": lambda: model.predict(x, verbose=0),
            "train_on_batch": lambda: model.train_on_batch(x[:4], y[:4]),
            "validation": lambda: model.fit(dataset, validation_data=(x, y), verbose=0),
            "fit that writes": lambda: model.fit(dataset, callbacks=log, verbose=0),
            "predict": lambda: model.predict(dataset, verbose=0),
        }
        told = {}
        for name, call in calls.items():
            try:
                call()
            except rx.errors.UnimplementedError as error:
                told[name] = error.args[0]
    return told, (folder / "never.csv").exists()


CHECKS = (resumed, refused, unseeded, a_step, fit_on_arrays, own_methods_on_datasets)


def main() -> None:
    folder = Path(sys.argv[1])
    strategy = rx.MultiWorkerMirroredStrategy()
    results = {}
    rank = int(not strategy.is_chief)
    for check in CHECKS:
        try:
            results[check.__name__] = check(strategy, folder)
        except Exception:  # told to the test
            results[check.__name__] = traceback.format_exc()
            raise
        finally:
            part = folder / f"worker{rank}.part"
            part.write_text(json.dumps(results))
            part.rename(folder / f"worker{rank}.json")


if __name__ == "__main__":
    main()
