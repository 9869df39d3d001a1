"""Small programs, one rule each."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback

X = jnp.arange(4.0)
GROUPS = [[0, 1], [2, 3]]
psum, pmean, pmax, pmin = (
    partial(f, axis_name="replica") for f in (lax.psum, lax.pmean, lax.pmax, lax.pmin)
)


def replica_id():
    return lax.axis_index("replica")


# name: (function of one varying argument, kinds of its results)
PROGRAMS = {
    "input": (lambda x: x, "v"),
    "literal": (lambda _x: 1.0, "m"),
    "constant": (lambda _x: jnp.arange(3), "m"),
    "elementwise": (lambda x: jnp.sin(x) * 2, "v"),
    "shape only": (jnp.zeros_like, "m"),
    "psum": (psum, "m"),
    "psum of a pytree": (lambda x: psum({"a": x, "b": x[0]}), "mm"),
    "pmean": (pmean, "m"),
    "pmax": (pmax, "m"),
    "pmin": (pmin, "m"),
    "psum of a literal": (lambda _x: psum(1), "m"),
    "all_gather": (lambda x: lax.all_gather(x, "replica"), "m"),
    "all_gather tiled": (lambda x: lax.all_gather(x, "replica", tiled=True), "m"),
    "psum in groups": (lambda x: psum(x, axis_index_groups=GROUPS), "v"),
    "all_gather in groups": (lambda x: lax.all_gather(x, "replica", axis_index_groups=GROUPS), "v"),
    "psum of psum in groups": (lambda x: psum(psum(x, axis_index_groups=GROUPS)), "m"),
    "psum_scatter": (lambda x: lax.psum_scatter(x, "replica"), "v"),
    "psum_scatter of mirrored": (lambda x: lax.psum_scatter(psum(x), "replica"), "v"),
    "all_to_all": (lambda x: lax.all_to_all(x, "replica", 0, 0), "v"),
    "ppermute": (lambda x: lax.ppermute(x, "replica", [(0, 1), (1, 0)]), "v"),
    "pshuffle": (lambda x: lax.pshuffle(x, "replica", [1, 0, 3, 2]), "v"),
    "replica id": (lambda _x: replica_id(), "v"),
    "psum of the replica id": (lambda _x: psum(replica_id()), "m"),
    "mirrored plus varying": (lambda x: psum(x) + x, "v"),
    "where on varying": (lambda x: jnp.where(x > 0, 1.0, 2.0), "v"),
    "where on mirrored": (lambda x: jnp.where(psum(x) > 0, 1.0, 2.0), "m"),
    "index by varying": (lambda _x: jnp.arange(8.0)[replica_id()], "v"),
    "update at varying": (lambda _x: jnp.zeros(4).at[replica_id()].set(1.0), "v"),
    "update with varying": (lambda x: jnp.zeros(4).at[0].set(x[0]), "v"),
    "barrier is one by one": (lambda x: lax.optimization_barrier((x, psum(x))), "vm"),
    "device_put is one by one": (lambda x: jax.device_put((x, psum(x))), "vm"),
    "stop_gradient": (lambda x: lax.stop_gradient((x, psum(x))), "vm"),
    "two results of one sort": (lambda x: lax.sort((psum(x), x), num_keys=1), "vv"),
    "pure_callback": (lambda x: (_pure(x), _pure(psum(x))), "vm"),
    "io_callback": (lambda x: _io(psum(x)), "v"),
    "debug print": (lambda x: (jax.debug.print("{x}", x=x), psum(x))[1], "m"),
    "rng_uniform": (lambda _x: lax.rng_uniform(0.0, 1.0, (2,)), "v"),
    "uninitialised memory": (lambda _x: lax.empty((2,), jnp.float32), "v"),
    "mirrored key": (lambda _x: jax.random.normal(jax.random.key(0), (3,)), "m"),
    "key of the replica": (
        lambda _x: jax.random.normal(jax.random.fold_in(jax.random.key(0), replica_id())),
        "v",
    ),
    "vmap of psum": (jax.vmap(psum), "m"),
    "psum over a vmap axis": (jax.vmap(lambda y: lax.psum(y, "i"), axis_name="i"), "v"),
    "psum over both": (jax.vmap(lambda y: lax.psum(y, ("i", "replica")), axis_name="i"), "m"),
    "index of a vmap axis": (
        jax.vmap(lambda _y: lax.axis_index("i"), axis_name="i"),
        "m",
    ),
    "grad of a local loss": (jax.grad(lambda x: jnp.sum(x**2)), "v"),
    "grad of a global loss": (jax.grad(lambda x: psum(jnp.sum(x**2))), "v"),
    "reduced grad": (lambda x: pmean(jax.grad(lambda y: jnp.sum(y**2))(x)), "m"),
    "grad through all_gather": (
        jax.grad(lambda x: jnp.sum(lax.all_gather(x, "replica") ** 2)),
        "v",
    ),
    "jvp of psum": (lambda x: jax.jvp(psum, (x,), (x,)), "mm"),
    "linear_transpose of psum": (lambda x: jax.linear_transpose(psum, x)(x), "m"),
}


def _pure(x):
    return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _io(x):
    return io_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(kinds, name):
    fn, expected = PROGRAMS[name]
    assert expected == kinds(fn, X, varies=[0])


def test_all_is_mirrored_without_a_varying_input(kinds):
    assert kinds(lambda x, y: (x + y, jnp.outer(x, y)), X, X) == "mm"


def test_first_cause_is_named(proved):
    proof = proved(lambda w, x: (w * x, w * replica_id()), X, X, varies=[1])

    assert proof.outputs[0].description == "argument `1`"
    assert proof.outputs[1].description == "the replica id"
    assert proof.outputs[1].call_site.function == "replica_id"
    assert proof.outputs[1].call_site.file == __file__


def test_other_axes_do_not_make_equal():
    from replicax.step._proof import Source, prove

    def fn(x):
        both = lax.psum(x, ("replica", "model"))
        return lax.psum(x, "model"), both, lax.axis_index("model"), lax.axis_index("replica")

    jaxpr = jax.make_jaxpr(fn, axis_env=[("replica", 2), ("model", 2)])(X)
    first, second, third, fourth = prove(jaxpr, [Source("x", None)]).outputs

    assert (first is None, second is None) == (False, True)
    assert (third is None, fourth is None) == (True, False)


def test_axis_name_is_a_choice():
    from replicax.step._proof import Source, prove

    jaxpr = jax.make_jaxpr(lambda x: lax.psum(x, "data"), axis_env=[("data", 2)])(X)

    assert prove(jaxpr, [Source("x", None)], axis_name="data").outputs == (None,)
    assert prove(jaxpr, [Source("x", None)]).outputs != (None,)


def test_collectives_are_listed_in_order(proved):
    def fn(x):
        first = lax.psum(x, "replica")
        return lax.all_gather(first[:2].astype(jnp.bfloat16), "replica")

    first, second = proved(fn, X, varies=[0]).collectives

    assert (first.primitive, first.dtypes, first.shapes) == ("psum", ("float32",), ((4,),))
    assert (first.bytes, first.times, first.under_loop) == (16, 1, False)
    assert (second.primitive, second.dtypes, second.bytes) == ("all_gather", ("bfloat16",), 4)
    assert first.call_site.function == "fn"
    assert second.call_site.line == first.call_site.line + 1


def test_index_and_casts_are_no_collectives(proved):
    assert proved(lambda x: x + replica_id(), X).collectives == ()
