"""Optimizer slots follow the rules of variables: optax states, in place and functional."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

OPTIMIZER = optax.adamw(0.05)
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
Y = (X @ np.array([1.0, -2.0, 0.5], np.float32)).astype(np.float32)
STEPS = 5


def row_losses(w: Any, x: Any, y: Any) -> Any:
    return (x @ w - y) ** 2


def expected() -> np.ndarray[Any, Any]:
    w = jnp.zeros(3)
    state = OPTIMIZER.init(w)
    for _ in range(STEPS):
        grads = jax.grad(lambda w: row_losses(w, X, Y).mean())(w)
        updates, state = OPTIMIZER.update(grads, state, w)
        w = optax.apply_updates(w, updates)
    return np.asarray(w)


def values_of(tree: Any) -> Any:
    return jax.tree.map(lambda variable: variable.value, tree)


class Model:
    """Weights and slots in variables; the slots are made by the first step if asked for."""

    def __init__(self, strategy: rx.MirroredStrategy, *, late: bool) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.w = rx.Variable(jnp.zeros(3), name="w")
            self.slots = None if late else self.new_slots()

    def new_slots(self) -> Any:
        return jax.tree.map(rx.Variable, OPTIMIZER.init(np.zeros(3, np.float32)))

    def replica_step(self, x: Any, y: Any) -> Any:
        ctx = rx.get_replica_context()
        if self.slots is None:
            with jax.ensure_compile_time_eval():
                self.slots = self.new_slots()
        loss, (grad,) = rx.value_and_grad(
            lambda: ctx.global_mean(row_losses(self.w.value, x, y)), [self.w]
        )()
        updates, state = OPTIMIZER.update(
            ctx.all_reduce("mean", grad), values_of(self.slots), self.w.value
        )
        self.w.assign(optax.apply_updates(self.w.value, updates))
        jax.tree.map(lambda slot, new: slot.assign(new), self.slots, state)
        return loss


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("n", "late"), [(1, False), (2, True), (4, False)], ids=["1", "2, made by the first step", "4"]
)
def test_slots_in_variables(runner: Any, n: int, *, late: bool) -> None:
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(n)])
    model = Model(strategy, late=late)
    step = runner(lambda x, y: strategy.run(model.replica_step, args=(x, y)))
    for _ in range(STEPS):
        for x, y in strategy.distribute_dataset([(X, Y)]):
            step(x, y)
    np.testing.assert_allclose(model.w.value, expected(), atol=1e-6)
    assert all(isinstance(slot, rx.MirroredVariable) for slot in jax.tree.leaves(model.slots))
    rx.check_replicas_equal(strategy)


@pytest.mark.parametrize("n", [1, 3])
def test_slots_as_pytrees(runner: Any, n: int) -> None:
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(n)])

    def replica_step(state: Any, x: Any, y: Any) -> Any:
        ctx = rx.get_replica_context()
        w, slots = state
        grad = jax.grad(lambda w: ctx.global_mean(row_losses(w, x, y)))(w)
        updates, slots = OPTIMIZER.update(ctx.all_reduce("mean", grad), slots, w)
        return optax.apply_updates(w, updates), slots

    step = runner(lambda state, x, y: strategy.run(replica_step, args=(state, x, y)))
    state = (jnp.zeros(3), OPTIMIZER.init(jnp.zeros(3)))
    for _ in range(STEPS):
        for x, y in strategy.distribute_dataset([(X, Y)]):
            state = step(state, x, y)
    np.testing.assert_allclose(state[0], expected(), atol=1e-6)
    rx.check_replicas_equal(state)


@pytest.mark.parametrize("owner", ["another strategy", "no strategy"])
def test_a_slot_of_another_owner_is_refused(
    runner: Any, strategy: Any, other: Any, owner: str
) -> None:
    model = Model(strategy, late=False)
    if owner == "another strategy":
        with other.scope():
            model.slots = model.new_slots()
    else:
        model.slots = model.new_slots()
    step = runner(lambda x, y: strategy.run(model.replica_step, args=(x, y)))
    (batch,) = strategy.distribute_dataset([(X, Y)])
    with pytest.raises(rx.errors.MixedStrategiesError, match=r"with strategy\.scope"):
        step(*batch)
    assert model.w.value.tolist() == [0, 0, 0]
