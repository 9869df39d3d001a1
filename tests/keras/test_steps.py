"""Keras objects in place inside of replica functions."""

from __future__ import annotations

import gc
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

keras = pytest.importorskip("keras", reason="Keras is not installed")

TOLERANCE = 1e-6


class Training:
    """A model, an optimizer, a loss of rows and a metric, made in a strategy's scope."""

    def __init__(self, strategy, *, built=True, small=False):
        keras.utils.set_random_seed(5)
        self.strategy = strategy
        layers = [keras.layers.Dense(2, kernel_regularizer="l2", activity_regularizer="l2")]
        if not small:
            layers.insert(0, keras.layers.Dense(4, activation="tanh", activity_regularizer="l2"))
        with strategy.scope():
            self.model = keras.Sequential([keras.Input((3,)), *layers] if built else layers)
            rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
            self.optimizer = keras.optimizers.SGD(0.1 if small else rate)
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()
        self.losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
        self.runs = 0

    def replica_step(self, batch):
        self.runs += 1
        x, y = batch
        ctx = rx.get_replica_context()
        if not self.model.built:
            self.model(x)

        def loss_fn():
            logits = self.model(x, training=True)
            extra = sum(ctx.all_reduce("mean", loss) for loss in self.model.losses)
            return ctx.global_mean(self.losses(y, logits)) + extra, logits

        variables = self.model.trainable_variables
        (loss, logits), gradients = rx.value_and_grad(loss_fn, variables, has_aux=True)()
        rx.apply_gradients(self.optimizer, ctx.all_reduce("mean", gradients), variables)
        self.accuracy.update_state(y, logits, sample_weight=ctx.example_mask)
        return loss

    def run(self, runner, batches):
        step = runner(lambda batch: self.strategy.run(self.replica_step, args=(batch,)))
        return [float(self.strategy.reduce("mean", step(b), axis=None)) for b in batches]

    def state(self):
        variables = [*self.model.variables, *self.optimizer.variables]
        return {f"{i}": np.asarray(v.value) for i, v in enumerate(variables)}


@pytest.fixture(scope="module")
def one_device(data):
    training = Training(rx.OneDeviceStrategy("cpu:0"))
    batches = [(data.x[:6], data.classes[:6]), (data.x[5:], data.classes[5:])]
    losses = training.run(rx.function, training.strategy.distribute_dataset(batches))
    return losses, training, batches


@pytest.mark.slow
@pytest.mark.parametrize("built", [True, False], ids=["built", "unbuilt"])
def test_a_training_equals_one_device(strategy, one_device, apart, built):
    losses, expected, batches = one_device
    training = Training(strategy, built=built)

    found = training.run(rx.function, strategy.distribute_dataset(batches))
    assert apart(found, losses) <= TOLERANCE
    assert apart(training.state(), expected.state()) <= TOLERANCE
    assert float(training.accuracy.result()) == float(expected.accuracy.result())
    assert training.runs == (1 if built else 2)  # Again where variables are created.


@pytest.mark.slow
def test_an_eager_step_equals_a_compiled_one(data, apart):
    """In the eager runner all replicas share the layers, and what those remember."""
    two = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    (batch,) = two.distribute_dataset([(data.x[:6], data.classes[:6])])
    eager, compiled = (Training(two, built=False, small=True) for _ in range(2))

    found = eager.run(lambda step: step, [batch])
    assert apart(found, compiled.run(rx.function, [batch])) <= TOLERANCE
    assert apart(eager.state(), compiled.state()) <= TOLERANCE


@pytest.mark.slow
def test_fit_and_a_loop_share_their_models(strategy, data, make_model, apart):
    """The same numbers both ways, with one model in turn."""
    one = make_model()
    one.fit(data.x[:6], data.y[:6], batch_size=6, epochs=2, verbose=0, shuffle=False)
    with strategy.scope():
        model = make_model()

    @rx.function
    def step(batch):
        def replica_step(batch):
            ctx = rx.get_replica_context()

            def loss_fn():
                return ctx.global_mean(jnp.mean((model(batch[0]) - batch[1]) ** 2, axis=1))

            _, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
            gradients = ctx.all_reduce("mean", gradients)
            model.optimizer.apply(gradients, model.trainable_variables)  # as Keras has it

        strategy.run(replica_step, args=(batch,))

    (batch,) = strategy.distribute_dataset([(data.x[:6], data.y[:6])])
    step(batch)
    rx.keras.fit(model, data.x[:6], data.y[:6], batch_size=6, verbose=0, shuffle=False)
    assert apart(model, one) <= TOLERANCE


@pytest.fixture
def weight(strategy):
    with strategy.scope():
        return keras.Variable(2.0, name="weight"), keras.optimizers.SGD(1.0)


PER_REPLICA = [1.0, 2.0, 6.0]


def test_a_gradient_that_was_not_reduced_is_named(strategy, runner, weight):
    w, optimizer = weight

    def replica_step(x):
        _, gradients = rx.value_and_grad(lambda: w.value * x, [w])()
        rx.apply_gradients(optimizer, gradients, [w])

    step = runner(lambda x: strategy.run(replica_step, args=(x,)))
    with pytest.raises(rx.errors.VaryingWriteError, match=r"rx\.apply_gradients") as caught:
        step(rx.PerReplica(PER_REPLICA))
    assert "the gradient of `weight`" in str(caught.value)
    assert float(w) == 2.0


def test_a_variable_from_outside_of_the_scope_is_named(strategy, runner):
    w = keras.Variable(2.0, name="weight")
    step = runner(lambda: strategy.run(lambda: w.value * 2))
    with pytest.raises(rx.errors.MixedStrategiesError) as caught:
        step()
    assert "Keras variable `weight` was used in a replica" in str(caught.value)
    assert "rx.keras.adopt" in str(caught.value)
    with strategy.scope():
        rx.keras.adopt(Holder(w))
    assert float(strategy.local_results(step())[0]) == 4.0


class Holder:
    def __init__(self, *variables):
        self.variables = variables


def test_arrays_that_the_user_holds_stay_valid(strategy, weight):
    w, _ = weight
    with strategy.scope():
        same = keras.Variable(0.0)
    before = w.value
    same.assign(before)  # the same array in two variables
    step = rx.function(lambda: strategy.run(lambda: (w.assign_add(1.0), None)[1]))
    step()
    after = w.value
    step()
    step()

    assert [float(x) for x in (before, same, after, w)] == [2.0, 2.0, 3.0, 5.0]


def test_arrays_that_nobody_holds_are_not_copied(strategy, weight, monkeypatch):
    from replicax.keras import _lifted

    w, _ = weight
    with strategy.scope():
        other = keras.Variable(jnp.ones(3))
    copies = []
    copied = _lifted.copied
    monkeypatch.setattr(_lifted, "copied", lambda array: copies.append(1) or copied(array))

    def replica_step():
        w.assign_add(1.0)
        other.assign_add(w * jnp.ones(3))

    step = rx.function(lambda: strategy.run(replica_step))
    for _ in range(3):
        step()
    assert len(copies) == 2  # before the first step
    held = other.value
    step()
    assert len(copies) == 3
    assert np.asarray(held).tolist() == [13.0] * 3

    one = rx.function(lambda: strategy.run(lambda: (w.assign_add(1.0), None)[1]))
    for run in (one, step, one, one, step, one):  # Each takes over what the other made.
        run()
    assert len(copies) == 3
    held = w.value
    step()
    one()
    assert len(copies) == 4
    assert [float(held), float(w)] == [12.0, 14.0]


@pytest.mark.slow
def test_metrics_count_each_row_once(strategy, runner, data):
    with strategy.scope():
        mean = keras.metrics.Mean()

    def replica_step(x):
        mean.update_state(x, sample_weight=rx.get_replica_context().example_mask)
        return mean.result()  # of this replica's own rows

    step = runner(lambda x: strategy.run(replica_step, args=(x,)))
    dataset = strategy.distribute_dataset([data.weights[:7], data.weights[:3]])
    seen = [step(batch) for batch in dataset]

    expected = np.concatenate([data.weights[:7], data.weights[:3]]).mean()
    assert abs(float(mean.result()) - expected) <= TOLERANCE
    assert abs(float(seen[0].values[1]) - data.weights[3:6].mean()) <= TOLERANCE
    mean.reset_state()
    assert float(mean.result()) == 0.0


@pytest.mark.slow
def test_padding_that_a_metric_would_count_is_refused(strategy, data):
    with strategy.scope():
        mean = keras.metrics.Mean()
    step = rx.function(lambda x: strategy.run(mean.update_state, args=(x,)))
    (batch,) = strategy.distribute_dataset([data.weights[:7]])
    with pytest.raises(rx.errors.UnusedMaskError):
        step(batch)


@pytest.mark.slow
def test_dropout_differs_between_replicas_and_repeats(strategy, runner):
    def masks():
        with strategy.scope():
            dropout = keras.layers.Dropout(0.5, seed=7)

        def replica_fn(x):
            return dropout(x, training=True)

        step = runner(lambda: strategy.run(replica_fn, args=(jnp.ones(64),)))
        return [np.asarray(x) for _ in range(2) for x in strategy.local_results(step())]

    first, second = masks(), masks()
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert len({x.tobytes() for x in first}) == 6


@pytest.mark.slow
def test_an_embedding_is_reduced_and_changed_as_rows(strategy):
    optax = pytest.importorskip("optax", reason="optax is not installed")
    with strategy.scope():
        layer = rx.keras.Embedding(9, 2)
        layer.build()
        optimizer = rx.Optimizer(optax.sgd(0.5), [layer.embeddings])
    table = np.asarray(layer.embeddings.value)
    kinds = []

    @rx.function
    def step(ids):
        def replica_step(ids):
            ctx = rx.get_replica_context()
            loss, gradients = rx.value_and_grad(
                lambda: ctx.global_mean((layer(ids) ** 2).sum((1, 2))), [layer.embeddings]
            )()
            gradients = ctx.all_reduce("mean", gradients)
            kinds.append(type(gradients[0]))
            rx.apply_gradients(optimizer, gradients)
            return loss

        return strategy.run(replica_step, args=(ids,))

    ids = np.array([[3, 3], [0, -1], [7, 2]], np.int32)
    (batch,) = strategy.distribute_dataset([ids])
    np.testing.assert_allclose(step(batch), (table[ids] ** 2).sum() / 3, rtol=1e-6)

    gradient = np.zeros_like(table)
    np.add.at(gradient, ids, 2 * table[ids] / 3)
    np.testing.assert_allclose(layer.embeddings.value, table - 0.5 * gradient, atol=1e-6)
    np.testing.assert_array_equal(layer(ids), np.asarray(layer.embeddings.value)[ids])
    assert kinds == [rx.IndexedSlices]
    same = keras.layers.deserialize(keras.layers.serialize(layer))
    assert isinstance(same, rx.keras.Embedding)


def test_statistics_of_batch_norm_are_averaged(strategy, runner):
    with strategy.scope():
        norm = keras.layers.BatchNormalization(momentum=0.5)
        norm.build((None, 1))
    rows = rx.PerReplica([jnp.full((2, 1), x) for x in PER_REPLICA])
    step = runner(lambda x: strategy.run(lambda x: norm(x, training=True), args=(x,)))
    step(rows)

    assert float(norm.moving_mean.value[0]) == 0.5 * np.mean(PER_REPLICA)


@pytest.mark.slow
def test_a_loss_scale_is_kept_together(strategy):
    with strategy.scope():
        w = keras.Variable([1.0, 1.0], name="w")
        inner = keras.optimizers.SGD(0.5)
        optimizer = keras.optimizers.LossScaleOptimizer(
            inner, initial_scale=4.0, dynamic_growth_steps=2
        )

    @rx.function
    def step(x):
        def replica_step(x):
            ctx = rx.get_replica_context()
            loss, gradients = rx.value_and_grad(
                lambda: optimizer.scale_loss(jnp.sum(w.value * x)), [w]
            )()
            rx.apply_gradients(optimizer, ctx.all_reduce("mean", gradients), [w])
            return loss

        strategy.run(replica_step, args=(x,))

    fine = rx.PerReplica([jnp.full(2, x) for x in PER_REPLICA])
    step(rx.PerReplica([jnp.full(2, x) for x in (1.0, jnp.inf, 1.0)]))
    assert np.asarray(w.value).tolist() == [1.0, 1.0]  # all skip together
    assert float(optimizer.dynamic_scale) == 2.0
    step(fine)
    step(fine)
    assert np.asarray(w.value).tolist() == [-2.0, -2.0]
    assert float(optimizer.dynamic_scale) == 4.0
    assert int(optimizer.iterations) == 2


def test_nothing_is_applied_where_a_condition_is_false(strategy, weight):
    w, optimizer = weight
    step = rx.function(
        lambda x: strategy.run(lambda: rx.apply_gradients(optimizer, [x], [w], apply_if=x < 0))
    )
    step(jnp.float32(1.0))
    assert (float(w), int(optimizer.iterations)) == (2.0, 0)
    step(jnp.float32(-1.0))
    assert (float(w), int(optimizer.iterations)) == (3.0, 1)
    with pytest.raises(rx.errors.InvalidArgumentError, match="0 gradients for 1 variables"):
        rx.apply_gradients(optimizer, [], [w])


def test_variables_that_are_gone_leave_nothing_behind(strategy):
    from replicax.keras import _lifted

    def used():
        with strategy.scope():
            w = keras.Variable(1.0)
        strategy.run(lambda: w.value)
        return weakref.ref(_lifted._LIFTED[id(w)][1])

    lifted = used()
    gc.collect()
    assert lifted() is None


def test_without_a_strategy():
    w = keras.Variable(3.0)
    value, gradients = rx.value_and_grad(lambda: w.value**2, [w])()
    assert (float(value), float(gradients[0])) == (9.0, 6.0)
