"""Equations that run a jaxpr: jit, remat, custom derivatives, shard_map, solvers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from replicax.errors import UnprovenError
from replicax.step._proof import Source, prove

X = jnp.arange(1.0, 5.0)


def psum(x):
    return lax.psum(x, "replica")


@jax.custom_jvp
def own_jvp(x):
    return psum(x)


@own_jvp.defjvp
def _own_jvp(primals, tangents):
    return own_jvp(*primals), psum(tangents[0])


@jax.custom_vjp
def own_vjp(x):
    return jnp.sum(psum(x))


own_vjp.defvjp(lambda x: (own_vjp(x), x), lambda x, g: (g * x,))


@jax.custom_vjp
def reducing_vjp(x):
    return jnp.sum(x)


reducing_vjp.defvjp(lambda x: (jnp.sum(x), x), lambda x, g: (psum(g * x),))


@jax.custom_vjp
def with_optimize_remat(x):
    return jnp.sum(jnp.sin(x))


with_optimize_remat.defvjp(
    lambda x: (jnp.sum(jnp.sin(x)), x), lambda x, g: (g * jnp.cos(x),), optimize_remat=True
)


@jax.custom_batching.custom_vmap
def own_vmap(x):
    return psum(x)


@own_vmap.def_vmap
def _own_vmap(_size, batched, x):
    return psum(x), batched[0]


@jax.jit
def pair(a, b):
    return a + 1, psum(b), a * b


PROGRAMS = {
    "jit": (lambda x: pair(psum(x), x), "mmv"),
    "jit twice with other kinds": (lambda x: (*pair(psum(x), x), *pair(x, x)), "mmvvmv"),
    "jit in jit": (lambda x: jax.jit(lambda y: pair(y, y))(psum(x)), "mmm"),
    "jit with a closed-over tracer": (lambda x: jax.jit(lambda: (x, psum(x)))(), "vm"),
    "custom_jvp": (own_jvp, "m"),
    "custom_jvp under jvp": (lambda x: jax.jvp(own_jvp, (x,), (x,)), "mm"),
    "custom_vjp": (own_vjp, "m"),
    "custom_vjp under grad": (jax.grad(own_vjp), "v"),
    "custom_vjp that reduces": (jax.grad(reducing_vjp), "m"),
    "custom_vjp in scan under grad": (
        jax.grad(lambda x: lax.scan(lambda c, y: (c + reducing_vjp(y * x), None), 0.0, X)[0]),
        "m",
    ),
    "custom_vmap": (own_vmap, "m"),
    "custom_vmap under vmap": (jax.vmap(own_vmap), "m"),
    "remat": (jax.checkpoint(lambda y: (jnp.sin(y), psum(y))), "vm"),
    "grad of remat": (jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x))))), "v"),
    "reduced grad of remat": (
        lambda x: psum(jax.grad(jax.checkpoint(lambda y: jnp.sum(jnp.sin(psum(y)))))(x)),
        "m",
    ),
    "grad of remat with a policy": (
        jax.grad(
            jax.checkpoint(
                lambda x: jnp.sum(checkpoint_name(jnp.sin(x), "a") ** 2),
                policy=jax.checkpoint_policies.save_only_these_names("a"),
            )
        ),
        "v",
    ),
    "composite": (lax.composite(psum, "own.sum"), "m"),
    "named_call": (jax.named_call(psum, name="sum"), "m"),
    "custom_root": (
        lambda x: lax.custom_root(
            lambda y: y * y - psum(x)[0], 1.0, lambda f, y: y - f(y), lambda g, y: y / g(1.0)
        ),
        "m",
    ),
    "custom_root of varying": (
        lambda x: lax.custom_root(
            lambda y: y * y - x[0], 1.0, lambda f, y: y - f(y), lambda g, y: y / g(1.0)
        ),
        "v",
    ),
    "grad of custom_root": (
        jax.grad(
            lambda x: lax.custom_root(
                lambda y: y * y - x[0], 1.0, lambda f, y: y - f(y), lambda g, y: y / g(1.0)
            )
        ),
        "v",
    ),
    "cg": (lambda x: jax.scipy.sparse.linalg.cg(lambda v: 2 * v, psum(x))[0], "m"),
    "cg with a varying operator": (
        lambda x: jax.scipy.sparse.linalg.cg(lambda v: (1 + x**2) * v, psum(x))[0],
        "v",
    ),
    "cg whose operator reduces": (
        lambda x: jax.scipy.sparse.linalg.cg(lambda v: psum(x) ** 2 * v, psum(x))[0],
        "m",
    ),
    "grad of cg": (
        jax.grad(lambda x: jnp.sum(jax.scipy.sparse.linalg.cg(lambda v: 2 * v, x)[0] ** 2)),
        "v",
    ),
    "grad of cg, which is linear": (
        jax.grad(lambda x: jnp.sum(jax.scipy.sparse.linalg.cg(lambda v: 2 * v, x)[0])),
        "m",
    ),
    "linear_call": (
        lambda x: jax.custom_derivatives.linear_call(
            lambda r, y: r * psum(y), lambda r, y: r * psum(y), 2.0, x
        ),
        "m",
    ),
    "optimize_remat": (jax.grad(with_optimize_remat), "v"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(kinds, name):
    fn, expected = PROGRAMS[name]
    assert expected == kinds(fn, X, varies=[0])


def test_a_function_called_twice_counts_its_collectives_twice(proved):
    proof = proved(lambda x: pair(pair(x, x)[1], x), X, varies=[0])

    assert [c.primitive for c in proof.collectives] == ["psum", "psum"]


SPLIT = P("replica")

# --- shard_map -----------------------------------------------------------------------------------


@pytest.fixture
def mesh():
    auto = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((2, 2), ("replica", "model"), axis_types=auto)


def replicated(mesh, body, out_specs, in_specs=SPLIT):
    return jax.shard_map(
        body,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names={"replica"},
        check_vma=False,
    )


def kinds_of_whole_program(fn, *args):
    jaxpr = jax.make_jaxpr(fn)(*args)
    kinds = prove(jaxpr, [None] * len(args)).outputs
    return "".join("m" if kind is None else "v" for kind in kinds)


def test_whole_program_reads_the_specs(mesh):
    constant = jnp.arange(3.0)  # Becomes an operand before the others.

    def body(x):
        return psum(x), x, constant * psum(x).sum(), constant * x.sum(), lax.axis_index("replica")

    whole = replicated(mesh, body, (P(), P("replica"), P(), P(), P()))

    # A result that is said to be replicated, and varies, is found; a split one is one array.
    assert kinds_of_whole_program(whole, jnp.ones(8)) == "mmmvv"


def test_whole_program_with_a_replicated_input(mesh):
    def body(w, x):
        return w * 2, w - x.sum(), w - psum(x.sum())

    whole = replicated(mesh, body, (P(), P(), P()), in_specs=(P(), P("replica")))

    assert kinds_of_whole_program(whole, jnp.ones(3), jnp.ones(8)) == "mvm"


def test_shard_map_over_another_axis_inside(mesh):
    host_constant = np.arange(3.0, dtype=np.float32)

    def body(x):
        doubled = x * 2

        def inner(y, z):
            return (
                y + host_constant.sum() + z.sum(),
                psum(y),
                y * 0 + lax.axis_index("model"),
                lax.psum(y, "model"),
            )

        return jax.shard_map(
            inner,
            in_specs=(P("model"), P()),
            out_specs=(P("model"), P("model"), P("model"), P()),
            axis_names={"model"},
            check_vma=False,
        )(doubled, psum(x))

    whole = replicated(mesh, body, (P(), P(), P(), P()))

    assert kinds_of_whole_program(whole, jnp.ones(8)) == "vmvv"


# --- what cannot be read -------------------------------------------------------------------------


def test_leaked_tracer_of_a_scan_is_refused(proved):
    kept = []

    def fn(x):
        lax.scan(lambda c, y: (kept.append(c + y), (c, y))[1], 0.0, x)
        return x + kept[0]

    with pytest.raises(UnprovenError, match=r"leaked tracer: `\w+` at .*test_calls.py:\d+ in fn"):
        proved(fn, X)


def test_leaked_tracer_of_a_cond_is_refused(proved):
    kept = []

    def fn(x):
        lax.cond(x[0] > 0, lambda y: (kept.append(2 * y), y)[1], lambda y: y, x)
        return kept[0]

    with pytest.raises(UnprovenError, match="leaked tracer"):
        proved(fn, X)


def test_leaked_tracer_in_a_nested_function_is_refused(proved):
    kept = []

    def fn(x):
        lax.scan(lambda c, y: (kept.append(c + y), (c, y))[1], 0.0, x)
        return jax.jit(lambda y: y + kept[0])(x)

    with pytest.raises(UnprovenError, match="leaked tracer"):
        proved(fn, X)


def test_value_of_an_enclosing_trace_is_a_constant():
    found = []

    def outer(z):
        jaxpr = jax.make_jaxpr(lambda x: (x + z, psum(x)), axis_env=[("replica", 2)])(X)
        found.append(prove(jaxpr, [None]).outputs)
        found.append(prove(jaxpr, [None], constants=[Source("argument `z`", None)]).outputs)
        return z

    jax.make_jaxpr(outer)(X)

    assert found[0] == (None, None)
    assert found[1] == (Source("argument `z`", None), None)


def test_undefined_variable_is_refused():
    jaxpr = jax.make_jaxpr(lambda x, y: x + y)(X, X)
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    broken = inner.replace(invars=inner.invars[:1])

    with pytest.raises(UnprovenError, match="leaked tracer: `add`"):
        prove(broken, [None])


def test_wrong_number_of_kinds():
    jaxpr = jax.make_jaxpr(lambda x, y: x + y)(X, X)

    with pytest.raises(ValueError, match="kinds for 1 inputs, but the jaxpr has 2"):
        prove(jaxpr, [None])
    with pytest.raises(ValueError, match="kinds for 1 constants, but the jaxpr has 0"):
        prove(jaxpr, [None, None], constants=[None])
