"""scan, while, cond: fixed points, and collectives under conditions that vary."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from replicax.errors import VaryingControlFlowError

X = jnp.arange(4.0)


def psum(x):
    return lax.psum(x, "replica")


def replica_id():
    return lax.axis_index("replica")


def scan(body, init, xs=None, length=None):
    return lax.scan(body, init, xs, length=length)


def shift(carry, y):
    """Passes a varying value on by one carried value a round."""
    a, b, c = carry
    return (y, a, b), c


PROGRAMS = {
    "scan with a mirrored carry": (lambda x: scan(lambda c, y: (c + psum(y), y), 0.0, x), "mv"),
    "scan with a varying carry": (lambda x: scan(lambda c, y: (c + y, psum(c)), 0.0, x), "vm"),
    "scan that reduces its carry": (lambda x: scan(lambda c, y: (psum(c + y), c), 0.0, x), "mm"),
    "scan, varying in the third round": (lambda x: scan(shift, (0.0, 0.0, 0.0), x), "vvvv"),
    "scan with two apart": (
        lambda x: scan(lambda c, y: ((c[0] + y, c[1] * 2), c[1]), (0.0, 1.0), x),
        "vmm",
    ),
    "scan over nothing mirrored": (
        lambda x: scan(lambda c, _: (c * 2, c), psum(x), length=3),
        "mm",
    ),
    "reverse scan": (lambda x: lax.scan(lambda c, y: (c + y, c), 0.0, x, reverse=True), "vv"),
    "nested scan": (
        lambda x: scan(lambda c, y: scan(lambda d, z: (d + psum(z), d), c, x * y), 0.0, x),
        "mm",
    ),
    "grad of scan": (
        jax.grad(lambda x: scan(lambda c, y: (jnp.sin(c * y), c), 1.0, x)[0]),
        "v",
    ),
    "fori": (lambda x: lax.fori_loop(0, 3, lambda _, c: c + psum(x), jnp.zeros(4)), "m"),
    "fori to a varying bound": (
        lambda x: lax.fori_loop(0, x[0].astype(int), lambda _, c: c + 1, 0),
        "v",
    ),
    "map": (lambda x: lax.map(lambda y: (y, psum(y)), x), "vm"),
    "associative_scan": (lambda x: lax.associative_scan(jnp.add, psum(x)), "m"),
    "while, mirrored": (
        lambda _x: lax.while_loop(lambda c: c < 9, lambda c: c + psum(1.0), 0.0),
        "m",
    ),
    "while with a varying carry": (
        lambda x: lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + x, c[2] * 2), (0, x, 1.0)
        ),
        "mvm",
    ),
    "while with a varying condition": (
        lambda x: lax.while_loop(lambda c: c[0] < x[0], lambda c: (c[0] + 1, c[1] * 2), (0.0, 1.0)),
        "vv",
    ),
    "while, varying condition of a later round": (
        lambda x: lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + c[1], c[2], x[0], 2 * c[3]), (0.0, 1.0, 1.0, 5.0)
        ),
        "vvvv",
    ),
    "while that never touches a value": (
        lambda x: lax.while_loop(lambda c: c[0] < x[0], lambda c: (c[0] + 1, c[1]), (0.0, 1.0)),
        "vm",
    ),
    "while with a collective in its mirrored condition": (
        lambda x: lax.while_loop(lambda c: psum(c) < 9.0, lambda c: c + x[0], 0.0),
        "v",
    ),
    "cond, mirrored": (
        lambda x: lax.cond(psum(x)[0] > 0, lambda y: (y, 1.0), lambda y: (-y, 2.0), x),
        "vm",
    ),
    "cond, mirrored, one branch reduces": (
        lambda x: lax.cond(psum(x)[0] > 0, psum, lambda y: y, x),
        "v",
    ),
    "cond, mirrored, both reduce": (
        lambda x: lax.cond(psum(x)[0] > 0, psum, lambda y: psum(2 * y), x),
        "m",
    ),
    "cond on varying": (lambda x: lax.cond(x[0] > 0, lambda: 1.0, lambda: 2.0), "v"),
    "switch on varying": (
        lambda _x: lax.switch(replica_id(), [lambda: 1.0, lambda: 2.0, lambda: 3.0]),
        "v",
    ),
    "switch, mirrored": (
        lambda x: lax.switch(psum(1), [lambda y: y, psum], psum(x)),
        "m",
    ),
    "cond in scan": (
        lambda x: scan(
            lambda c, y: (lax.cond(c > 0, lambda: c + 1, lambda: c - 1), y), psum(x[0]), x
        ),
        "mv",
    ),
    "vmap of cond on varying": (
        jax.vmap(lambda y: lax.cond(y > 0, lambda: 1.0, lambda: 2.0)),
        "v",
    ),
    "platform_dependent": (
        lambda x: lax.platform_dependent(psum(x), cpu=psum, default=lambda y: y),
        "m",
    ),
    "cond on varying before psum": (
        lambda x: psum(lax.cond(x[0] > 0, lambda: 1.0, lambda: 2.0)),
        "m",
    ),
    "replica id under a varying condition": (
        lambda x: lax.cond(x[0] > 0, replica_id, lambda: 0),
        "v",
    ),
    "other collective than ours under a varying condition": (
        lambda x: lax.cond(
            x[0] > 0,
            jax.vmap(lambda z: lax.psum(z, "i"), axis_name="i"),
            lambda y: y,
            x,
        ),
        "v",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(kinds, name):
    fn, expected = PROGRAMS[name]
    assert expected == kinds(fn, X, varies=[0])


REFUSED = {
    "cond": lambda x: lax.cond(x[0] > 0, psum, lambda y: y, x),
    "cond, the same in both branches": lambda x: lax.cond(x[0] > 0, psum, psum, x),
    "if replica_id == 0": lambda x: lax.cond(replica_id() == 0, psum, lambda y: y, x),
    "switch": lambda x: lax.switch(replica_id(), [psum, psum, psum, lambda y: y], x),
    "jit in cond": lambda x: lax.cond(x[0] > 0, jax.jit(psum), lambda y: y, x),
    "scan in cond": lambda x: lax.cond(
        x[0] > 0, lambda: scan(lambda c, y: (c + psum(y), y), 0.0, x)[0], lambda: 0.0
    ),
    "cond in scan": lambda x: scan(lambda c, y: (lax.cond(y > 0, psum, lambda z: z, c), y), 0.0, x),
    "mirrored cond in varying cond": lambda x: lax.cond(
        x[0] > 0, lambda: lax.cond(psum(1.0) > 3, lambda: psum(1.0 * x), lambda: x), lambda: x
    ),
    "remat and custom_jvp in cond": lambda x: lax.cond(
        x[0] > 0, jax.checkpoint(lambda y: jax.nn.relu(psum(y))), lambda y: y, x
    ),
    "while body": lambda x: lax.while_loop(lambda c: c < x[0], lambda c: c + psum(1.0 * c), 0.0),
    "while condition": lambda x: lax.while_loop(
        lambda c: psum(c) + c < 3.0, lambda c: c + x[0], 0.0
    ),
    "while, varying condition of a later round": lambda x: lax.while_loop(
        lambda c: c[0] < 3,
        lambda c: (c[0] + c[1], c[2], x[0], psum(c[3])),
        (0.0, 1.0, 1.0, 5.0),
    ),
    "while condition reduces, and varies later": lambda x: lax.while_loop(
        lambda c: psum(c[1]) + c[0] < 3.0, lambda c: (c[1], x[0]), (0.0, 1.0)
    ),
    "fori to a varying bound": lambda _x: lax.fori_loop(
        0, replica_id(), lambda _, c: psum(c), jnp.zeros(4)
    ),
    "ppermute": lambda x: lax.cond(
        x[0] > 0, lambda y: lax.ppermute(y, "replica", [(0, 1)]), lambda y: y, x
    ),
    "all_gather": lambda x: lax.cond(
        x[0] > 0, lambda y: lax.all_gather(y, "replica")[0], lambda y: y, x
    ),
    "psum in groups": lambda x: lax.cond(
        x[0] > 0,
        lambda y: lax.psum(y, "replica", axis_index_groups=[[0, 1], [2, 3]]),
        lambda y: y,
        x,
    ),
    "grad of cond": jax.grad(
        lambda x: jnp.sum(lax.cond(lax.stop_gradient(x)[0] > 0, psum, lambda y: y, x))
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_collective_under_varying_control_is_refused(proved, name):
    with pytest.raises(VaryingControlFlowError):
        proved(REFUSED[name], X, varies=[0])


def test_message_names_both_lines_and_the_cause(proved):
    def step(x):
        flag = replica_id() == 0

        def reduce_it(y):
            return lax.psum(y, "replica")

        return lax.cond(flag, reduce_it, lambda y: y, x)

    with pytest.raises(VaryingControlFlowError) as caught:
        proved(step, X, varies=[0])

    first = step.__code__.co_firstlineno
    message = str(caught.value)
    assert f"test_control.py:{first + 4} in reduce_it" in message  # the collective
    assert f"test_control.py:{first + 6} in step" in message  # the branch
    assert "the replica id" in message
    assert "in replica_id" in message
    assert "`psum`" in message
    assert "`cond`" in message
    assert "jnp.where" in message
    assert caught.value.origin.call_site.line == first + 4
    assert str(pickle.loads(pickle.dumps(caught.value))) == message  # noqa: S301 - our own bytes


def test_message_of_a_loop_names_the_argument(proved):
    with pytest.raises(VaryingControlFlowError, match="rounds") as caught:
        proved(REFUSED["while body"], X, varies=[0])

    assert "argument `0`" in str(caught.value)
    assert "`while`" in str(caught.value)


def test_the_same_program_passes_when_its_condition_is_reduced(kinds):
    assert kinds(REFUSED["cond"], X) == "m"


def test_times_of_collectives(proved):
    def fn(x):
        def outer(c, y):
            inner, _ = lax.scan(lambda d, z: (d + psum(z), None), c, x)
            return inner + psum(y), None

        total, _ = lax.scan(outer, 0.0, jnp.ones(3))
        total = lax.while_loop(lambda c: c < 9, lambda c: c + psum(1.0 * c), total)
        return lax.cond(total > 0, psum, lambda y: y, total)

    found = [(c.times, c.under_loop) for c in proved(fn, X, varies=[0]).collectives]

    assert found == [(12, True), (3, True), (None, True), (None, False)]


def test_collectives_of_a_fixed_point_count_once(proved):
    proof = proved(
        lambda x: scan(lambda c, y: ((y, c[0], psum(c[1])), None), (0.0, 0.0, 0.0), x),
        X,
        varies=[0],
    )

    assert [c.times for c in proof.collectives] == [4]
