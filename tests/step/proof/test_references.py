"""Mutable references: varying once something varying was written."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from replicax.errors import UnprovenError, VaryingWriteError

X = jnp.arange(4.0)


def psum(x):
    return lax.psum(x, "replica")


def start_only(x):
    ref = jax.new_ref(psum(x))
    return ref[...], x


def overwritten(x):
    ref = jax.new_ref(x)
    ref[...] = psum(x)
    return ref[...]


def partly_overwritten(x):
    ref = jax.new_ref(x)
    ref[0] = 1.0
    return ref[...]


def written_with_varying(x):
    ref = jax.new_ref(jnp.zeros(4))
    before = ref[...]
    ref[...] = x
    return before, ref[...], psum(ref[...])


def written_at_a_varying_place(_x):
    ref = jax.new_ref(jnp.zeros(4))
    ref[lax.axis_index("replica")] = 1.0
    return ref[0]


def read_at_a_varying_place(_x):
    ref = jax.new_ref(jnp.zeros(4))
    return ref[lax.axis_index("replica")], ref[0]


def added_in_scan(x):
    local, whole = jax.new_ref(0.0), jax.new_ref(0.0)

    def body(c, y):
        local[...] += y
        whole[...] += psum(y)
        return c + whole[...], local[...]

    c, ys = lax.scan(body, 0.0, x)
    return c, ys, local[...], whole[...]


def passed_round_in_scan(x):
    first, second = jax.new_ref(0.0), jax.new_ref(0.0)

    def body(c, y):
        seen = second[...]
        second[...] = first[...]
        first[...] = y
        return c, seen

    return lax.scan(body, 0.0, x)


def written_in_while(x):
    ref = jax.new_ref(0.0)

    def body(i):
        ref[...] += psum(x[0])
        return i + 1

    return lax.while_loop(lambda i: i < 3, body, 0), ref[...]


def written_in_varying_while(x):
    ref = jax.new_ref(0.0)

    def body(i):
        ref[...] += 1.0
        return i + 1

    lax.while_loop(lambda i: i < x[0], body, 0.0)
    return ref[...]


def written_in_cond(x):
    ref = jax.new_ref(0.0)

    def write():
        ref[...] = 1.0

    lax.cond(psum(x)[0] > 0, write, lambda: None)
    return ref[...]


def written_in_varying_cond(x):
    ref = jax.new_ref(0.0)

    def write():
        ref[...] = 1.0

    lax.cond(x[0] > 0, write, lambda: None)
    return ref[...]


def written_in_jit(x):
    ref = jax.new_ref(jnp.zeros(4))

    @jax.jit
    def write(value):
        ref[...] = value

    write(psum(x))
    between = ref[...]
    write(x)
    return between, ref[...]


def frozen(x):
    return jax.freeze(jax.new_ref(x)), jax.freeze(jax.new_ref(psum(x)))


PROGRAMS = {
    start_only: "mv",
    overwritten: "m",
    partly_overwritten: "v",
    written_with_varying: "mvm",
    written_at_a_varying_place: "v",
    read_at_a_varying_place: "vm",
    added_in_scan: "mvvm",
    passed_round_in_scan: "mv",
    written_in_while: "mm",
    written_in_varying_while: "v",
    written_in_cond: "m",
    written_in_varying_cond: "v",
    written_in_jit: "mv",
    frozen: "vm",
}


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(kinds, fn):
    assert PROGRAMS[fn] == kinds(fn, X, varies=[0])


def write_to_argument(ref, x):
    ref[...] = x


def test_varying_write_to_a_mirrored_argument_is_refused(proved):
    with pytest.raises(VaryingWriteError, match=r"input 0 .*argument `1`"):
        proved(write_to_argument, jax.new_ref(X), X, varies=[1])


def test_mirrored_write_to_a_mirrored_argument(proved):
    proved(lambda ref, x: write_to_argument(ref, psum(x)), jax.new_ref(X), X, varies=[1])


def test_varying_write_to_a_varying_argument(proved):
    proved(write_to_argument, jax.new_ref(X), X, varies=[0, 1])


def test_a_second_name_for_a_reference_is_refused():
    from replicax.step._proof import prove

    made = jax.make_jaxpr(lambda x: jax.new_ref(x)[...])(X).eqns[0]
    called = jax.make_jaxpr(jax.jit(jnp.sin))(X)
    inner = getattr(called, "jaxpr", called)
    renamed = inner.eqns[0].replace(outvars=made.outvars)

    with pytest.raises(UnprovenError, match="returns a mutable reference"):
        prove(inner.replace(eqns=[renamed], outvars=[]), [None])


def test_one_reference_given_twice_is_refused():
    from replicax.step._proof import prove

    def fn(a, b):
        return jax.jit(lambda x, y: x[...] + y[...])(a, b)

    jaxpr = jax.make_jaxpr(fn)(jax.new_ref(X), jax.new_ref(X))
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    call = inner.eqns[0]
    same = call.replace(invars=[call.invars[0]] * 2)

    with pytest.raises(UnprovenError, match="one mutable reference twice"):
        prove(inner.replace(eqns=[same]), [None, None])
