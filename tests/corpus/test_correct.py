"""Correct steps are never refused, and give the numbers of one device."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import replicax as rx

from . import correct_in_place, correct_models, correct_optimizers, correct_steps
from .correct import ENTRIES, Functional, InPlace

MODULES = (correct_models, correct_optimizers, correct_steps, correct_in_place)


@pytest.fixture(autouse=True)
def quick_compilation():
    """Nearly all the time goes into compiling programs that run three times."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def devices(count):
    return [f"cpu:{i}" for i in range(count)]


def fetched(strategy, tree):
    """The tree as numpy arrays; components joined in replica order, without padding."""

    def fetch(leaf):
        if isinstance(leaf, rx.PerReplica):
            leaf = strategy.gather(leaf, axis=0)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.asarray(leaf)

    return jax.tree.map(fetch, tree, is_leaf=lambda leaf: isinstance(leaf, rx.PerReplica))


def run_functional(program, strategy, batches):
    @rx.function(donate="state")
    def step(state, batch):
        return strategy.run(program.replica_step, args=(state, batch))

    state, results = program.start(strategy), []
    for batch in strategy.distribute_dataset(batches):
        state, result = step(state, batch)
        results.append(fetched(strategy, result))
    return fetched(strategy, state), results


def run_reference(program, num_replicas, batches):
    step = jax.jit(program.replica_step)
    if program.reference is not None:
        step = jax.jit(lambda state, batch: program.reference(state, batch, num_replicas))
    state, results = program.start(None), []
    for batch in batches:
        state, result = step(state, batch)
        results.append(fetched(None, result))
    return fetched(None, state), results


def run_in_place(program, strategy, batches):
    with strategy.scope():
        step, variables = program.make(strategy)
    step = rx.function(step)
    batches = strategy.distribute_dataset(batches)
    results = [fetched(strategy, step(batch)) for batch in batches]
    return [np.asarray(variable) for variable in variables], results


def assert_close(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    with_paths = jax.tree_util.tree_leaves_with_path(found)
    for (path, a), b in zip(with_paths, jax.tree.leaves(expected), strict=True):
        where = jax.tree_util.keystr(path)
        assert a.dtype == b.dtype, where
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=where)


SLOW = {correct_models.__name__, correct_optimizers.__name__}
PARAMETERS = [
    pytest.param(
        entry, id=entry.name, marks=[pytest.mark.slow] if entry.make.__module__ in SLOW else []
    )
    for entry in ENTRIES
]


@pytest.mark.sampled(5)
@pytest.mark.timeout(240)  # Compiling takes its time where other work runs beside it.
@pytest.mark.parametrize("entry", PARAMETERS)
def test_gives_the_numbers_of_its_reference(entry):
    program = entry.make()
    rng = np.random.default_rng(1)
    batches = [program.batch(rng, rows) for rows in entry.rows]
    strategy = rx.MirroredStrategy(devices(entry.replicas))
    if isinstance(program, Functional):
        found = run_functional(program, strategy, batches)
        expected = run_reference(program, entry.replicas, batches)
    else:
        assert isinstance(program, InPlace)
        found = run_in_place(program, strategy, batches)
        expected = run_in_place(program, rx.OneDeviceStrategy("cpu:0"), batches)
    assert_close(found[1], expected[1])
    assert_close(found[0], expected[0])


def test_the_corpus_is_whole():
    names = [entry.name for entry in ENTRIES]
    assert len(names) == len(set(names)) >= 45
    assert {entry.make.__module__ for entry in ENTRIES} == {module.__name__ for module in MODULES}
    assert sum(entry.rows[-1] % entry.replicas > 0 for entry in ENTRIES) >= 75
