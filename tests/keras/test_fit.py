from __future__ import annotations

import contextlib

import jax
import numpy as np
import pytest

import replicax as rx

keras = pytest.importorskip("keras", reason="Keras is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(115)]

TOLERANCE = 1e-6
# Everything whose numbers could depend on how rows lie on replicas.
OPTIONS = {"shuffle": False, "verbose": 0}


def rich_model(**options):
    """BatchNorm, Dropout, a regulariser and Adam."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            # A bias before BatchNorm has no gradient but rounding, which Adam would enlarge.
            keras.layers.Dense(5, use_bias=False, kernel_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3, seed=1),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        "adam",
        "binary_crossentropy",
        metrics=["accuracy"],
        **options,
    )
    return model


@pytest.fixture(scope="module")
def reference(data):
    """Keras on one device: the model after fit, its history, an evaluation and predictions."""
    model = rich_model()
    history = model.fit(
        data.x,
        data.classes,
        batch_size=6,
        epochs=2,
        sample_weight=data.weights,
        validation_data=(data.x[:5], data.classes[:5]),
        **OPTIONS,
    )
    return (
        model,
        history,
        model.evaluate(data.x[:5], data.classes[:5], batch_size=6, verbose=0),
        model.predict(data.x, batch_size=6, verbose=0),
    )


def test_fit_evaluate_and_predict_equal_one_device(strategy, data, reference, apart):
    with strategy.scope():
        model = rich_model()
    history = rx.keras.fit(
        model,
        data.x,
        data.classes,
        batch_size=6,
        epochs=2,
        sample_weight=data.weights,
        validation_data=(data.x[:5], data.classes[:5]),
        **OPTIONS,
    )
    first = data.x[:5], data.classes[:5]
    evaluated = rx.keras.evaluate(model, *first, batch_size=6, verbose=0)
    predicted = rx.keras.predict(model, data.x, batch_size=6, verbose=0)

    assert apart(model, reference[0]) <= TOLERANCE
    assert apart(history, reference[1]) <= TOLERANCE
    assert apart(evaluated, reference[2]) <= TOLERANCE
    assert apart(predicted, reference[3]) <= TOLERANCE
    assert {len(v.value.devices()) for v in model.variables} == {3}


def test_keras_own_methods_take_distributed_datasets(strategy, data, reference, apart):
    def distributed(*arrays):
        return strategy.distribute_dataset(arrays, rx.InputOptions(global_batch_size=6))

    first = data.x[:5], data.classes[:5]
    with strategy.scope():
        model = rich_model()
    history = model.fit(
        distributed(data.x, data.classes, data.weights),
        epochs=2,
        validation_data=strategy.distribute_dataset([first]),
        verbose=0,
    )
    with strategy.scope():  # inside of the scope or outside
        evaluated = model.evaluate(strategy.distribute_dataset([first]), verbose=0)
        predicted = model.predict(distributed(data.x), verbose=0)

    assert apart(model, reference[0]) <= TOLERANCE
    assert apart(history, reference[1]) <= TOLERANCE
    assert apart(evaluated, reference[2]) <= TOLERANCE
    assert apart(predicted, reference[3]) <= TOLERANCE
    assert {len(v.value.devices()) for v in model.variables} == {3}


def test_each_replica_computes_its_own_rows(strategy, data, make_model):
    with strategy.scope():
        model = make_model()
        batches = strategy.distribute_dataset([(data.x[:6], data.y[:6])])
        batch = next(batches.get_jax_iterator()).batch

    assert [shard.data.shape for shard in batch[0].addressable_shards] == [(2, 3)] * 3
    weights = [v.value for v in model.trainable_variables]
    step = jax.jit(lambda w, x: x @ w).lower(weights[0], batch[0]).compile().as_text()
    assert "f32[2,3]" in step
    assert "f32[6,3]" not in step


# --- forms of data ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(data, make_model):
    """One epoch of Keras on one device, in global batches of 4, 4 and 3 rows."""
    model = make_model()
    history = model.fit(data.x, data.y, batch_size=4, **OPTIONS)
    return model, history


class Batches(keras.utils.PyDataset):
    def __init__(self, data):
        super().__init__()
        self.data = data

    def __len__(self):
        return 3

    def __getitem__(self, i):
        rows = slice(4 * i, 4 * i + 4)
        return self.data.x[rows], self.data.y[rows]


FORMS = {
    "generator": lambda data: (Batches(data)[i] for i in range(3)),
    "PyDataset": Batches,
    "list": lambda data: [Batches(data)[i] for i in range(3)],
    "rx.data": lambda data: rx.data.from_arrays((data.x, data.y)).batch(4),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_data(strategy, data, make_model, trained, apart, form):
    source = FORMS[form](data)
    with strategy.scope():
        model = make_model()
    if form in ("list", "rx.data"):
        source = strategy.distribute_dataset(source)
    # Keras says of a generator that it ended, which it was expected to.
    is_once = form == "generator"
    ended = pytest.warns(UserWarning, match="ran out") if is_once else contextlib.nullcontext()
    with ended:
        history = rx.keras.fit(model, source, **OPTIONS)

    assert apart(model, trained[0]) <= TOLERANCE
    assert apart(history, trained[1]) <= TOLERANCE


@pytest.mark.parametrize("once", [False, True], ids=["list", "generator"])
def test_the_batch_that_keras_looks_at_is_trained_with(
    strategy, data, make_model, trained, apart, once
):
    with strategy.scope():
        model = make_model()  # its metrics are not built, so Keras looks at a batch
        batches = [Batches(data)[i] for i in range(3)]
        dataset = strategy.distribute_dataset(iter(batches) if once else batches)
    if once:
        with pytest.warns(UserWarning, match="ran out of data"):
            model.fit(dataset, steps_per_epoch=4, verbose=0)
    else:
        model.fit(dataset, verbose=0)

    assert apart(model, trained[0]) <= TOLERANCE


def test_epochs_are_shuffled_anew_from_the_first_on(strategy, data, make_model):
    source = rx.data.from_arrays((data.x, data.y)).shuffle(seed=5).batch(4)
    seen = []

    class Sees(keras.Sequential):
        def train_step(self, state, data):
            jax.debug.callback(lambda x: seen.append(np.asarray(x)), data[0], ordered=False)
            return super().train_step(state, data)

    with rx.MirroredStrategy(["cpu:0"]).scope() as alone:
        model = make_model(kind=Sees)
        model.fit(alone.distribute_dataset(source), epochs=2, verbose=0)
    jax.effects_barrier()

    first = [np.asarray(batch[0]) for epoch in (0, 1) for batch in source.open(epoch=epoch)]
    assert all(any(np.array_equal(a, b) for b in seen) for a in first)
    del strategy


def test_inputs_outputs_and_weights_by_name(strategy, data, apart):
    def make():
        keras.utils.set_random_seed(1)
        a, b = keras.Input((3,), name="a"), keras.Input((1,), name="b")
        joined = keras.layers.Concatenate()([a, b])
        outputs = {"p": keras.layers.Dense(2, name="p")(joined)}
        outputs["q"] = keras.layers.Dense(1, name="q")(joined)
        model = keras.Model({"a": a, "b": b}, outputs)
        model.compile("sgd", {"p": "mse", "q": "mae"}, loss_weights={"p": 2.0, "q": 1.0})
        return model

    x = {"a": data.x, "b": data.weights[:, None]}
    y = {"p": data.y, "q": data.weights[:, None]}
    options = {"batch_size": 4, "sample_weight": {"p": data.weights, "q": data.weights}, **OPTIONS}
    one = make()
    expected = one.fit(x, y, **options)
    with strategy.scope():
        model = make()

    assert apart(rx.keras.fit(model, x, y, **options), expected) <= TOLERANCE
    assert apart(model, one) <= TOLERANCE
    predicted = rx.keras.predict(model, x, batch_size=4, verbose=0)
    assert apart(predicted, one.predict(x, batch_size=4, verbose=0)) <= TOLERANCE


# --- forms of steps --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"steps_per_execution": 2}, {"run_eagerly": True}], ids=["executions", "eagerly"]
)
def test_forms_of_steps(strategy, data, make_model, trained, apart, options):
    with strategy.scope():
        model = make_model(**options)
    history = rx.keras.fit(model, data.x, data.y, batch_size=4, **OPTIONS)
    predicted = rx.keras.predict(model, data.x, batch_size=4, verbose=0)

    assert apart(model, trained[0]) <= TOLERANCE
    assert apart(history, trained[1]) <= TOLERANCE
    expected = trained[0].predict(data.x, batch_size=4, verbose=0)
    assert apart(predicted, expected) <= TOLERANCE


def test_a_train_step_of_ones_own(strategy, data, make_model, apart):
    class Own(keras.Sequential):
        def train_step(self, state, data):
            x, y = data
            return super().train_step(state, (x - x.mean(axis=0), y * x.shape[0]))

    one = make_model(kind=Own)
    expected = one.fit(data.x, data.y, batch_size=4, **OPTIONS)
    with strategy.scope():
        model = make_model(kind=Own)

    history = rx.keras.fit(model, data.x, data.y, batch_size=4, **OPTIONS)
    assert apart(history, expected) <= TOLERANCE
    assert apart(model, one) <= TOLERANCE


def test_class_weights(strategy, data, make_model, apart):
    options = {"batch_size": 11, "class_weight": {0: 1.0, 1: 3.0}, **OPTIONS}
    loss = {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "metrics": None}
    one = make_model(**loss)
    expected = one.fit(data.x, data.classes, **options)
    with strategy.scope():
        model = make_model(**loss)

    assert apart(rx.keras.fit(model, data.x, data.classes, **options), expected) <= TOLERANCE


@pytest.mark.parametrize("rows", [1, 2], ids=["one_row", "two_rows"])
def test_fewer_rows_than_replicas(strategy, data, make_model, apart, rows):
    one = make_model()
    expected = one.fit(data.x[:rows], data.y[:rows], **OPTIONS)
    with strategy.scope():
        model = make_model()

    assert (
        apart(rx.keras.fit(model, data.x[:rows], data.y[:rows], **OPTIONS), expected) <= TOLERANCE
    )
    assert rx.keras.predict(model, data.x[:rows], verbose=0).shape == (rows, 2)


def test_a_model_that_is_built_by_fit(strategy, data, apart):
    def make():
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile("adam", "mse")
        return model

    one = make()
    one.fit(data.x, data.y, batch_size=4, **OPTIONS)
    with strategy.scope():
        model = make()
    rx.keras.fit(model, data.x, data.y, batch_size=4, **OPTIONS)

    assert apart(model, one) <= TOLERANCE
    assert {len(v.value.devices()) for v in model.variables} == {3}


def test_many_steps_without_waiting_end(strategy, data, make_model):
    """XLA's collectives on CPUs dead-lock if hundreds of programs are under way."""
    with strategy.scope():
        model = make_model()
        batches = strategy.distribute_dataset([(data.x[:6], data.y[:6])] * 400)
        model.fit(batches, verbose=0)

    assert np.isfinite(model.get_weights()[0]).all()


# --- the mixin -------------------------------------------------------------------------------


def test_models_that_train_on_replicas_by_themselves(strategy, data, make_model, apart):
    options = {"batch_size": 4, "validation_split": 0.3, **OPTIONS}
    one = make_model()
    expected = one.fit(data.x, data.y, **options)
    with strategy.scope():
        model = make_model(kind=rx.keras.Sequential)
        inputs = keras.Input((3,))
        functional = rx.keras.Model(inputs, model(inputs))

    assert apart(model.fit(data.x, data.y, **options), expected) <= TOLERANCE
    assert (
        apart(model.evaluate(data.x, data.y, 4, 0), one.evaluate(data.x, data.y, 4, 0)) <= TOLERANCE
    )
    predicted = functional.predict(data.x, 4, 0)
    assert apart(predicted, one.predict(data.x, 4, 0)) <= TOLERANCE
    assert isinstance(functional, rx.keras.Distributed)
