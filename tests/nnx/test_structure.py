"""Modules that change, and modules that nobody adopted."""

from __future__ import annotations

import importlib
import sys

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

from .modules import Line, Normalised, nnx

X = np.arange(24.0, dtype=np.float32).reshape(4, 6) / 24


def scores(strategy, module):
    return rx.function(lambda x: strategy.run(module, args=(x,)))


def test_train_and_eval_are_two_programs(strategy):
    with strategy.scope():
        dropout = rx.nnx.adopt(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    step = scores(strategy, dropout)
    traced = []
    counted = rx.function(lambda x: (traced.append(1), step.fn(x))[1])

    for _ in range(2):
        dropout.train()
        assert 0.0 in np.asarray(counted(jnp.ones(64)).values)
        dropout.eval()
        np.testing.assert_array_equal(counted(jnp.ones(64)), np.ones(64))
    assert len(traced) == 2


def test_an_attribute_that_is_set_anew_to_the_same_costs_no_trace(strategy):
    with strategy.scope():
        dropout = rx.nnx.adopt(nnx.Dropout(0.25, rngs=nnx.Rngs(0)))
    traced = []
    step = rx.function(lambda: (traced.append(1), strategy.run(lambda: dropout(jnp.ones(4))))[1])
    step()
    dropout.rate = float("0.25")
    step()
    dropout.rate = 0.5
    step()

    assert len(traced) == 2


def test_a_layer_that_is_put_in_later_must_be_adopted(strategy):
    with strategy.scope():
        module = rx.nnx.adopt(Line(nnx.Rngs(0)))
    step = scores(strategy, module)
    x = rx.PerReplica([X[:2], X[2:]])
    step(x)
    module.layer = nnx.Linear(6, 1, rngs=nnx.Rngs(1))

    with pytest.raises(rx.errors.ContextError, match=r"Line\.layer\.(bias|kernel)"):
        step(x)
    with strategy.scope():
        rx.nnx.adopt(module)
    results = np.concatenate(strategy.local_results(step(x)))
    np.testing.assert_allclose(results, module(X), rtol=1e-5)


def test_a_step_may_not_change_the_structure(runner, strategy):
    with strategy.scope():
        module = rx.nnx.adopt(Line(nnx.Rngs(0)))

    def replica_step():
        module.extra = nnx.Param(jnp.ones(2))

    with pytest.raises(rx.errors.ContextError, match="extra"):
        runner(lambda: strategy.run(replica_step))()
    assert not hasattr(module, "extra")


@pytest.mark.parametrize("how", ["argument", "closure"])
def test_a_module_that_nobody_adopted_is_refused(runner, strategy, how):
    module = Line(nnx.Rngs(0))

    def closing_over():
        module.layer.bias[...] += 1.0

    def given(module):
        module.layer.bias[...] += 1.0

    step = runner(
        (lambda: strategy.run(given, args=(module,)))
        if how == "argument"
        else (lambda: strategy.run(closing_over))
    )
    with pytest.raises(rx.errors.ContextError, match="adopt"):
        step()
    np.testing.assert_array_equal(module.layer.bias[...], [0.0])


def test_a_module_of_another_strategy_is_refused(strategy, other):
    with other.scope():
        module = rx.nnx.adopt(Line(nnx.Rngs(0)))

    with pytest.raises(rx.errors.MixedStrategiesError, match="for each strategy"):
        scores(strategy, module)(X)


def test_a_module_is_no_argument_of_a_function_but_a_static_one(strategy):
    with strategy.scope():
        module = rx.nnx.adopt(Line(nnx.Rngs(0)))

    def evaluate(module, x):
        return strategy.run(module, args=(x,))

    with pytest.raises(rx.errors.ArgumentTypeError, match="static_argnames"):
        rx.function(evaluate)(module, X)
    step = rx.function(evaluate, static_argnames="module")
    np.testing.assert_allclose(step(module, X), module(X), rtol=1e-6)


def test_intermediates_may_be_taken_out_again(strategy):
    with strategy.scope():
        module = rx.nnx.adopt(Line(nnx.Rngs(0)))

    def replica_step(x):
        module.seen = nnx.Intermediate(x.sum())
        return nnx.pop(module, nnx.Intermediate)["seen"][...]

    step = rx.function(lambda x: strategy.run(replica_step, args=(x,)))
    np.testing.assert_allclose(step(rx.PerReplica([X[:2], X[2:]])).values[0], X[:2].sum())


def test_adopting_needs_a_scope_and_a_module(strategy):
    with pytest.raises(rx.errors.ContextError, match="scope"):
        rx.nnx.adopt(Line(nnx.Rngs(0)))
    with (
        strategy.scope(),
        pytest.raises(rx.errors.ArgumentTypeError, match="no module or optimizer"),
    ):
        rx.nnx.adopt(optax.adam(0.1))
    with pytest.raises(rx.errors.ContextError, match="never adopted"):
        rx.nnx.variables(Normalised(nnx.Rngs(0)))


def test_what_is_adopted_ends_with_its_module(strategy):
    from replicax.nnx._model_variable import BY_PART

    before = len(BY_PART)
    with strategy.scope():
        module = rx.nnx.adopt(Line(nnx.Rngs(0)))
    assert len(BY_PART) == before + 2
    del module
    import gc

    gc.collect()
    assert len(BY_PART) <= before


def test_the_private_names_of_flax_are_there():
    from replicax.nnx import _compat

    module = Line(nnx.Rngs(0))
    part = module.layer.bias

    _compat.set_value(part, 3)
    assert part.get_raw_value() == _compat.value_of(part) == 3
    assert _compat.level_of(part) == _compat.level_of_node(module) == _compat.current_level()
    _compat.set_level(part, "elsewhere")
    assert _compat.level_of(part) == "elsewhere"
    _compat.set_level_of_node(module, "elsewhere")
    assert _compat.level_of_node(module) == "elsewhere"
    assert set(_compat.attributes_of(module)) == {"layer"}
    assert (nnx.Pytree.__module__, nnx.Pytree.__name__) == ("flax.nnx.pytreelib", "Pytree")


def test_without_flax_the_way_to_install_it_is_named(monkeypatch):
    importlib.import_module("replicax.nnx")
    monkeypatch.setitem(sys.modules, "flax.nnx", None)
    monkeypatch.delitem(sys.modules, "replicax.nnx._compat")

    with pytest.raises(ImportError, match=r"pip install 'replicax\[flax\]'"):
        importlib.import_module("replicax.nnx._compat")


def test_padding_is_counted_by_no_step_while_a_module_that_draws_is_alive(strategy):
    with strategy.scope():
        dropout = rx.nnx.adopt(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    (remainder,) = strategy.distribute_dataset([np.arange(1, 6, dtype=np.float32)])

    def mean(x):
        return rx.get_replica_context().local_sum(x) / len(x)

    with pytest.raises(rx.errors.UnusedMaskError, match="used as a number"):
        rx.function(lambda x: strategy.run(mean, args=(x,)))(remainder)
    assert dropout is not None
