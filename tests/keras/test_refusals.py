from __future__ import annotations

import pytest

import replicax as rx

keras = pytest.importorskip("keras", reason="Keras is not installed")


@pytest.fixture
def distributed(strategy, data):
    return strategy.distribute_dataset((data.x, data.y), rx.InputOptions(global_batch_size=4))


def test_a_model_from_outside_of_the_scope_is_named(strategy, data, make_model, distributed):
    model = make_model()
    for train in (
        lambda: rx.keras.fit(model, data.x, data.y, verbose=0),
        lambda: model.fit(distributed, verbose=0),
    ):
        with strategy.scope(), pytest.raises(rx.errors.MixedStrategiesError) as caught:
            train()
        assert "uses variable `sequential" in str(caught.value).replace("sequential_", "sequential")
        assert "with strategy.scope():" in str(caught.value)
        assert "rx.keras.adopt(model)" in str(caught.value)


@pytest.mark.slow
def test_adopted_models_train_as_if_made_in_the_scope(strategy, data, make_model, apart):
    one = make_model(optimizer="adam")
    one.fit(data.x, data.y, batch_size=4, shuffle=False, verbose=0)
    model = make_model(optimizer="adam")
    model.fit(data.x, data.y, batch_size=4, shuffle=False, verbose=0)
    with strategy.scope():
        assert rx.keras.adopt(model) is model
    for each in (one.fit, lambda **o: rx.keras.fit(model, **o)):
        each(x=data.x, y=data.y, batch_size=4, shuffle=False, verbose=0)

    assert apart(model, one) <= 1e-6


def test_without_a_strategy(data, make_model):
    with pytest.raises(rx.errors.ContextError, match="belongs to no strategy"):
        rx.keras.fit(make_model(), data.x, data.y)
    with pytest.raises(rx.errors.ContextError, match="outside of every"):
        rx.keras.adopt(make_model())


@pytest.mark.parametrize("name", ["y", "sample_weight", "class_weight", "batch_size"])
def test_what_keras_would_ignore_beside_a_dataset(strategy, data, make_model, distributed, name):
    value = {"y": data.y, "batch_size": 4}.get(name, {0: 1.0})
    with strategy.scope():
        model = make_model()
    with pytest.raises(rx.errors.InvalidArgumentError, match=f"`{name}` was given beside"):
        model.fit(distributed, **{name: value})
    with pytest.raises(rx.errors.InvalidArgumentError, match=f"`{name}` was given beside"):
        rx.keras.fit(model, distributed, **{name: value})


def test_half_precision_on_the_way_where_xla_combines_gradients(data, make_model):
    options = rx.CommunicationOptions(wire_dtype="bfloat16")
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"], options=options)
    with strategy.scope():
        model = make_model()
    dataset = strategy.distribute_dataset((data.x, data.y), rx.InputOptions(global_batch_size=4))
    for train in (lambda: rx.keras.fit(model, data.x, data.y), lambda: model.fit(dataset)):
        with pytest.raises(rx.errors.UnimplementedError, match="wire_dtype='bfloat16'"):
            train()


@pytest.mark.parametrize("form", ["arrays", "dataset"])
def test_more_steps_than_there_are_global_batches(strategy, data, make_model, distributed, form):
    with strategy.scope():
        model = make_model()
    given = {"x": data.x, "y": data.y, "batch_size": 4} if form == "arrays" else {"x": distributed}

    with pytest.raises(rx.errors.InvalidArgumentError) as caught:
        rx.keras.fit(model, steps_per_epoch=9, **given)
    assert "`steps_per_epoch` = 9, but the data has 3 global batches" in str(caught.value)


def test_a_dataset_of_another_strategy(data, make_model, distributed):
    with rx.MirroredStrategy(["cpu:0"]).scope():
        model = make_model()
    with pytest.raises(rx.errors.MixedStrategiesError, match="the dataset to another strategy"):
        rx.keras.fit(model, distributed)


def test_sparse_rows(strategy, data, make_model):
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    with strategy.scope():
        model = make_model()
    with pytest.raises(rx.errors.UnimplementedError, match="no dense array"):
        rx.keras.fit(model, sparse.csr_matrix(data.x), data.y)


@pytest.mark.slow
def test_another_backend_of_keras(run_python):
    done = run_python(
        """
        import os
        os.environ["KERAS_BACKEND"] = "numpy"
        import keras
        import replicax as rx
        with rx.OneDeviceStrategy("cpu:0").scope():  # no concern of Keras
            pass
        try:
            rx.keras
        except rx.errors.FailedPreconditionError as error:
            print(error)
        """
    )
    assert "KERAS_BACKEND='numpy'" in done.stdout
    assert "KERAS_BACKEND=jax" in done.stdout


def test_keras_is_imported_by_the_program_alone(run_python):
    done = run_python(
        """
        import sys
        import replicax as rx
        with rx.OneDeviceStrategy("cpu:0").scope() as strategy:
            strategy.distribute_dataset([])
        print("keras" in sys.modules)
        sys.modules["keras"] = None  # as if it were not installed
        try:
            rx.keras
        except rx.errors.FailedPreconditionError as error:
            print(error)
        """
    )
    assert done.stdout.startswith("False\n")
    assert "python -m pip install 'replicax[keras]'" in done.stdout
