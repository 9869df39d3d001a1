"""A model stays usable whatever ends its training; H11."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import replicax as rx

keras = pytest.importorskip("keras", reason="Keras is not installed")

pytestmark = pytest.mark.slow


def interrupt():
    signal.raise_signal(signal.SIGINT)


class InterruptsAtBatch(keras.callbacks.Callback):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_begin(self, batch, logs=None):  # noqa: ARG002 - what Keras calls
        if batch == self.batch:
            interrupt()


class InterruptsInStep(keras.Sequential):
    """As if Ctrl-C came while the second step ran, of other shapes than the first."""

    is_armed = True

    def train_step(self, state, data):
        if self.is_armed and data[0].shape[0] == 3:
            interrupt()
        return super().train_step(state, data)


OPTIONS = {"batch_size": 4, "shuffle": False, "verbose": 0}


@pytest.mark.parametrize("moment", ["between_steps", "in_a_step"])
def test_after_ctrl_c_a_model_has_its_weights_and_trains_on(
    strategy, data, make_model, apart, moment
):
    kind = keras.Sequential if moment == "between_steps" else InterruptsInStep
    rows = 7  # batches of 4 and 3 rows
    with strategy.scope():
        model = make_model(kind=kind)
    callbacks = [InterruptsAtBatch(1)] if moment == "between_steps" else []
    with pytest.raises(KeyboardInterrupt):
        rx.keras.fit(model, data.x[:rows], data.y[:rows], callbacks=callbacks, **OPTIONS)

    one = make_model()
    done = 4 if moment == "between_steps" else rows  # A step that runs is run to its end.
    one.fit(data.x[:done], data.y[:done], **OPTIONS)
    assert apart(model, one) <= 1e-6
    model.is_armed = False
    for each in (model, one):
        fit = one.fit if each is one else lambda *a, **o: rx.keras.fit(model, *a, **o)
        fit(data.x[:4], data.y[:4], **OPTIONS)
    assert apart(model, one) <= 1e-6
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_after_an_error_in_the_data(strategy, data, make_model):
    def batches():
        for _ in range(3):  # Keras looks at two before it trains
            yield data.x[:4], data.y[:4]
        raise ZeroDivisionError

    with strategy.scope():
        model = make_model()
    before = [np.asarray(v.value) for v in model.variables]
    source = batches()
    with pytest.raises(ZeroDivisionError):
        rx.keras.fit(model, source, epochs=2, shuffle=False, verbose=0)

    after = [np.asarray(v.value) for v in model.variables]
    assert all(np.isfinite(a).all() for a in after)
    assert not np.array_equal(before[0], after[0])
    rx.keras.fit(model, data.x, data.y, **OPTIONS)


def test_after_an_error_in_the_first_step(strategy, data, make_model):
    class Fails(keras.Sequential):
        def train_step(self, state, data):  # noqa: ARG002 - what Keras calls
            raise ZeroDivisionError

    with strategy.scope():
        model = make_model(kind=Fails)
    before = [np.asarray(v.value) for v in model.variables]
    with pytest.raises(ZeroDivisionError):
        rx.keras.fit(model, data.x, data.y, **OPTIONS)

    assert all(
        np.array_equal(a, np.asarray(v.value)) for a, v in zip(before, model.variables, strict=True)
    )
