"""Sums that were asked for one by one travel together, and the numbers stay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import replicax as rx
from replicax.collectives import PackLimits
from replicax.step._joined_sums import with_joined_sums

AXIS = ("replica", 2)
LIMITS = PackLimits(leaf_bytes=64, pack_bytes=256)


def psum(x):
    return lax.psum(x, "replica")


def joined(function, *args):
    """The program before and after, of one replica."""
    before = jax.make_jaxpr(function, axis_env=[AXIS])(*args)
    return before, with_joined_sums(before, *AXIS, LIMITS)


def sums(closed_jaxpr):
    """Of each sum the number of elements, in order."""
    eqns = closed_jaxpr.jaxpr.eqns if hasattr(closed_jaxpr, "jaxpr") else closed_jaxpr.eqns
    return [eqn.invars[0].aval.size for eqn in eqns if eqn.primitive.name == "psum"]


def on_replicas(programs, *stacked):
    """What each program gives on two replicas; one compilation for both."""

    def run(*args):
        return [
            jax.core.eval_jaxpr(getattr(each, "jaxpr", each), each.consts, *args)
            for each in programs
        ]

    return jax.jit(jax.vmap(run, axis_name="replica"))(*stacked)


def loss_and_pack(x, w):
    """An early loss, a pack of two leaves behind it, and a metric of other leaves."""
    loss = psum(jnp.sin(x).sum())
    pack = psum(jnp.concatenate([x * w, jnp.cos(x).ravel()]))
    return loss / 2, pack[:3], psum(w.sum()) * loss, pack[3:].reshape(3, 1)


def crossing(x, w):
    """`c` needs `a`, and `b` needs `d`: only one of both pairs can travel together."""
    a, d = psum(x[0]), psum(w)
    return psum(x[1:] * a), psum(x[1] * d[0])


def of_several_kinds(x, w):
    """Only sums of one dtype travel together."""
    return psum(x), psum(w.astype(jnp.bfloat16)), psum(w), psum(x[0].astype(jnp.bfloat16))


def of_several_sizes(x, w):
    """A leaf above 64 bytes travels alone, and a pack ends at 256."""
    large, parts = jnp.tile(x, 6), [psum(jnp.tile(w, 5) * i) for i in range(5)]
    return psum(large), *parts


@pytest.mark.parametrize(
    ("function", "before", "after"),
    [
        (loss_and_pack, [1, 6, 1], [8]),
        (crossing, [1, 3, 2, 1], [4, 3]),
        (of_several_kinds, [3, 3, 3, 1], [6, 4]),
        (of_several_sizes, [15, 15, 15, 15, 15, 18], [60, 15, 18]),
        (lambda x, w: psum(w * psum(x)), [3, 3], [3, 3]),
    ],
    ids=["loss_and_pack", "crossing", "of_several_kinds", "of_several_sizes", "one needs another"],
)
def test_sums_that_need_no_other_are_one(function, before, after):
    args = jnp.arange(3.0) / 7, jnp.array([0.3, -0.1, 5.0])
    old, new = joined(function, *args)

    assert (sums(old), sums(new)) == (before, after)
    stacked = [jnp.stack([x, x * 1.7 - 1]) for x in args]
    for x, y in zip(*on_replicas([old, new], *stacked), strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


def test_a_program_in_which_nothing_is_joined_stays():
    old, new = joined(lambda x: (psum(x), lax.pmax(x, "replica")), jnp.ones(3))
    assert new is old


def test_what_has_effects_keeps_its_order():
    def function(x):
        first = psum(x)
        jax.debug.print("{}", first)
        jax.debug.print("{}", x)
        reference = jax.new_ref(x)
        reference[...] = first
        second = psum(x * 2)
        return second, jax.freeze(reference)

    old, new = joined(function, 1.0)

    def names(closed_jaxpr, wanted):
        eqns = closed_jaxpr.jaxpr.eqns if hasattr(closed_jaxpr, "jaxpr") else closed_jaxpr.eqns
        return [(e.primitive.name, e.invars) for e in eqns if e.primitive.name in wanted]

    act = {"debug_callback", "debug_print", "new_ref", "swap", "freeze"}
    assert len(names(old, act)) >= 4
    assert names(new, act) == names(old, act)
    assert sums(new) == [2]


def test_what_a_branch_sends_stays_in_it():
    def function(flag, x):
        inside = lax.cond(flag, lambda: psum(x), lambda: x)
        return inside, psum(x * 2), psum(x * 3)

    old, new = joined(function, True, 1.0)

    assert (sums(old), sums(new)) == ([1, 1], [2])
    assert "cond" in str(new)


@pytest.fixture(scope="module")
def strategy():
    return rx.MirroredStrategy(["cpu:0", "cpu:1"])


def test_a_step_that_combines_leaf_by_leaf_sends_one_message(strategy):
    """Its loss and its gradients; where the step says what travels together, that is kept."""
    alone = rx.CommunicationOptions(bytes_per_pack=1)

    def step(options):
        def replica_step(w, x):
            ctx = rx.get_replica_context()

            def loss(w):
                return ctx.global_mean(jnp.square(jnp.tanh(x @ w["a"]) @ w["b"]))

            loss, gradients = jax.value_and_grad(loss)(w)
            return loss, {name: ctx.all_reduce("mean", g, options) for name, g in gradients.items()}

        return rx.function(lambda w, x: strategy.run(replica_step, args=(w, x)))

    rows = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    args = (
        {"a": jnp.ones((3, 2)) / 3, "b": jnp.array([0.1, -0.7])},
        rx.PerReplica([rows[:2], rows[2:]]),
    )
    together, apart = step(None), step(alone)

    [sent] = rx.explain(together, *args).programs[0].sent
    assert (sent.primitive, sent.bytes) == ("psum", 4 * (1 + 2 + 6))
    assert "test_joined_sums.py" in sent.call_site
    assert [len(each.packs) for each in together.requested_collectives(*args)] == [1, 1, 1]
    assert len(rx.explain(apart, *args).programs[0].sent) == 3
    for x, y in zip(*map(jax.tree.leaves, (together(*args), apart(*args))), strict=True):
        np.testing.assert_array_equal(x, y)
