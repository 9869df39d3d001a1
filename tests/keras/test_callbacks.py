from __future__ import annotations

import numpy as np
import pytest

import replicax as rx

keras = pytest.importorskip("keras", reason="Keras is not installed")
pytest.importorskip("h5py", reason="h5py is not installed")

callbacks = keras.callbacks
OPTIONS = {"batch_size": 6, "epochs": 5, "shuffle": False, "verbose": 0}

pytestmark = pytest.mark.slow


def given(folder):
    return [
        callbacks.ModelCheckpoint(folder / "best.keras", "val_loss", save_best_only=True),
        callbacks.EarlyStopping("val_loss", min_delta=0.3, patience=1, restore_best_weights=True),
        callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=0.4),
        callbacks.CSVLogger(folder / "log.csv"),
        callbacks.TerminateOnNaN(),
        callbacks.BackupAndRestore(folder / "backup"),
    ]


def test_callbacks_decide_and_write_as_on_one_device(strategy, data, make_model, apart, tmp_path):
    folders = [tmp_path / "one", tmp_path / "replicas"]
    validation = (data.x[6:], data.y[6:])
    histories, models = [], []
    for folder in folders:
        folder.mkdir()
        if folder is folders[0]:
            model = make_model()
            fit = model.fit
        else:
            with strategy.scope():
                model = make_model()
            fit = lambda *a, m=model, **o: rx.keras.fit(m, *a, **o)  # noqa: E731 - two ways
        histories.append(
            fit(data.x, data.y, validation_data=validation, callbacks=given(folder), **OPTIONS)
        )
        models.append(model)

    assert len(histories[0].history["loss"]) < 5  # stopped early, and both alike
    assert apart(histories[1], histories[0]) <= 1e-6
    assert apart(models[1], models[0]) <= 1e-6
    logs = [np.genfromtxt(folder / "log.csv", delimiter=",")[1:] for folder in folders]
    assert apart(logs[1], logs[0]) <= 1e-6
    loaded = keras.saving.load_model(folders[1] / "best.keras")  # on one device
    best = keras.saving.load_model(folders[0] / "best.keras")
    assert len(loaded.weights[0].value.devices()) == 1
    assert apart(loaded, best) <= 1e-6


def test_a_saved_model_predicts_alike_on_one_device(strategy, data, make_model, tmp_path):
    with strategy.scope():
        model = make_model(kind=rx.keras.Sequential)
    model.fit(data.x[:6], data.y[:6], verbose=0)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        again = keras.saving.load_model(tmp_path / "model.keras")
    alone = keras.saving.load_model(tmp_path / "model.keras")

    expected = model.predict(data.x[:6], verbose=0)
    assert np.array_equal(again.predict(data.x[:6], verbose=0), expected)
    assert np.max(np.abs(np.asarray(alone(data.x[:6])) - expected)) <= 1e-6
    assert len(again.weights[0].value.devices()) == 3
