"""Names of Keras that have no public form are still there and mean what they meant."""

from __future__ import annotations

import jax
import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="Keras is not installed")


@pytest.fixture
def compat():
    import replicax.keras._compat as compat

    return compat


def test_arrays_and_layouts_of_variables(compat):
    variable = keras.Variable(np.ones(2))
    assert compat.array_of(variable) is variable.value
    assert compat.arrays_of([variable])[0] is variable.value
    compat.set_array(variable, jax.numpy.zeros(2))
    assert np.asarray(variable.value).tolist() == [0, 0]
    compat.set_arrays([variable], [jax.numpy.ones(2)])
    assert np.asarray(variable.value).tolist() == [1, 1]
    assert compat.layout_of(variable) is None
    assert not compat.is_uninitialized(variable)


def test_variables_of_a_stateless_scope_are_given_values_in_it(compat):
    with keras.StatelessScope(initialize_variables=False) as scope:
        variable = keras.Variable("ones", shape=(2,))
        assert compat.is_uninitialized(variable)
        assert compat.get_stateless_scope() is scope
        assert [v is variable for v in compat.take_uninitialized()] == [True]
        compat.initialize(variable, lambda value: 3 * value, None)
        assert compat.get_stateless_scope() is scope
    assert np.asarray(variable.value).tolist() == [3, 3]
    with keras.StatelessScope():  # which initializes what waits
        pass


def test_a_data_adapter_is_taken_as_it_is(compat):
    adapter = compat.DataAdapter()
    assert compat.get_data_adapter(adapter) is adapter


def test_the_call_of_a_model_is_found(compat):
    found = []

    class Looks(compat.DataAdapter):
        @property
        def num_batches(self):
            found.append(compat.trainer_of_this_call())
            raise ZeroDivisionError

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ZeroDivisionError):
        model.fit(Looks(), class_weight={0: 1.0}, callbacks=[])

    assert (found[0].model, found[0].method, found[0].callbacks) == (model, "fit", [])
    assert found[0].given["class_weight"] == {0: 1.0}


def test_a_layer_keeps_which_losses_are_its_own(compat):
    class Scope(keras.StatelessScope):
        def add_loss(self, loss):
            layers.append(compat.layer_of_this_loss())
            super().add_loss(loss)

    layers = []
    layer = keras.layers.Dense(1, activity_regularizer="l2")
    layer.build((1, 1))
    with Scope(collect_losses=True):
        layer(np.ones((1, 1), np.float32))
        (loss,) = layer.losses
        layer._loss_ids.clear()
        compat.remember_loss(layer, loss)
        assert layer.losses == [loss]
    assert layers == [layer]


def test_random_seed_and_sublayers(compat):
    keras.utils.set_random_seed(11)
    assert compat.get_random_seed() == 11
    layer = keras.layers.Dense(1)
    assert layer in list(compat.sublayers(keras.Sequential([layer])))


def test_where_fit_looks_for_its_state(compat):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    compat.set_state_of_fit(
        model, {"trainable_variables": [jax.numpy.ones((1, 1)), jax.numpy.ones(1)]}
    )
    model._jax_state_synced = False
    model.jax_state_sync()
    assert [np.asarray(w).item() for w in model.get_weights()] == [1, 1]
