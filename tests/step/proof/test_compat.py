"""What `_compat` reads off jax without a documented name is still there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from replicax.step import _compat

X = jnp.ones(4)


def first_equation(fn, *args):
    return _compat.opened(jax.make_jaxpr(fn)(*args))[0].eqns[0]


def test_opened():
    constant = jnp.arange(3.0)
    jaxpr, constants = _compat.opened(jax.make_jaxpr(lambda x: x + constant)(1.0))

    assert jaxpr.eqns[-1].primitive.name == "add"
    assert len(jaxpr.constvars) == len(constants) == 1
    assert len(jaxpr.invars) == 1


def test_without_mesh_context():
    mesh = jax.sharding.AbstractMesh((2,), ("x",))
    with jax.sharding.use_abstract_mesh(mesh):
        eqn = first_equation(jnp.sin, X)
    assert eqn.ctx.cur_abstract_mesh == mesh

    plain = _compat.without_mesh_context(eqn)

    assert plain.ctx.cur_abstract_mesh.empty
    assert plain.primitive is eqn.primitive
    assert _compat.without_mesh_context(plain) is plain


def test_scan_lengths():
    factor = jnp.arange(4.0)
    eqn = first_equation(
        lambda x, y: lax.scan(lambda c, z: ((c[0] * z, c[1] + factor[0]), z), (x, y), factor),
        1.0,
        2.0,
    )

    assert eqn.primitive.name == "scan"
    assert _compat.scan_lengths(eqn.params) == (1, 2)


def test_scan_lengths_of_a_derivative():
    def fn(x):
        return lax.scan(lambda c, y: (c * y, c), 1.0, x)[0]

    jaxpr, _ = _compat.opened(jax.make_jaxpr(jax.grad(fn))(X))
    lengths = [_compat.scan_lengths(e.params) for e in jaxpr.eqns if e.primitive.name == "scan"]

    assert lengths == [(0, 1), (0, 1)]


def test_is_reference():
    eqn = first_equation(lambda x: jax.new_ref(x)[...], X)

    assert _compat.is_reference(eqn.outvars[0].aval)
    assert not _compat.is_reference(eqn.invars[0].aval)


def test_is_dead_tracer():
    kept = []

    def outer(x):
        lax.scan(lambda c, y: (kept.append(c), (c, y))[1], 0.0, x)
        found = [_compat.is_dead_tracer(x), _compat.is_dead_tracer(kept[0])]
        jax.vmap(lambda y: (found.extend(map(_compat.is_dead_tracer, (x, y))), y)[1])(x)
        jax.grad(lambda y: (found.extend(map(_compat.is_dead_tracer, (x, y))), y)[1])(1.0)
        kept.append(found)
        return x

    jax.make_jaxpr(outer)(X)

    assert kept[-1] == [False, True, False, False, False, False]
    assert _compat.is_dead_tracer(kept[0])
    assert not _compat.is_dead_tracer(X)


def test_equation_site_is_the_line_of_the_user():
    def user_code(x):
        return jnp.where(x > 0, x, 0.0)

    site = _compat.equation_site(first_equation(user_code, X))

    assert site.file == __file__
    assert site.line == user_code.__code__.co_firstlineno + 1
    assert site.function.endswith("user_code")


def test_equation_site_without_a_traceback():
    eqn = first_equation(jnp.sin, X)
    bare = eqn.replace(source_info=eqn.source_info.replace(traceback=None))

    assert _compat.equation_site(bare) is None


def test_expand_high_primitive():
    """jax 0.12 writes custom_root as a primitive of its high level; jax 0.10 has none here."""
    eqn = first_equation(
        lambda x: lax.custom_root(lambda y: y - x, 1.0, lambda f, y: y - f(y), lambda _g, y: y), 1.0
    )
    if eqn.primitive.name == "call_hi_primitive":
        assert _compat.opened(_compat.expand_high_primitive(eqn))[0].eqns


def test_registered_primitives():
    names = set(_compat.registered_primitives())

    assert {"add", "psum", "scan", "while", "cond", "all_gather"} <= names


def test_calls_after_one_that_failed_while_traced_are_quick_again():
    fails = [True]

    def double(x):
        if fails.pop():
            raise ValueError("not yet")
        return 2 * x

    def is_quick():
        fails.append(False)
        jitted(X)
        jax.config.update("jax_no_tracing", True)
        try:
            jitted(X)
        except RuntimeError:  # The call has passed through jax's Python.
            return False
        finally:
            jax.config.update("jax_no_tracing", False)
        return True

    jitted = jax.jit(double)
    with pytest.raises(ValueError, match="not yet"):
        jitted(X)
    assert not is_quick()  # Else `forget_calls` is needed no more.

    _compat.forget_calls(jitted)

    assert is_quick()
