from __future__ import annotations

import jax.numpy as jnp
import pytest
from jax import lax

from replicax.collectives import CompiledCollective, collectives_in, mapped

AXIS = "replica"


# --- real programs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "kind", "dtype", "shape", "size"),
    [
        (lambda x: lax.psum(x, AXIS), "all-reduce", "float32", (4, 6), 96),
        (lambda x: lax.pmax(x > 0, AXIS), "all-reduce", "bool", (4, 6), 24),
        (
            lambda x: lax.all_gather(x, AXIS, axis=1, tiled=True),
            "all-gather",
            "float32",
            (4, 24),
            384,
        ),
        (
            lambda x: lax.psum_scatter(x, AXIS, scatter_dimension=0, tiled=True),
            "reduce-scatter",
            "float32",
            (1, 6),
            24,
        ),
        (
            lambda x: lax.ppermute(x.astype(jnp.int8), AXIS, [(0, 1), (1, 0)]),
            "collective-permute",
            "int8",
            (4, 6),
            24,
        ),
        (
            lambda x: lax.all_to_all(x, AXIS, split_axis=0, concat_axis=1, tiled=True),
            "all-to-all",
            "float32",
            None,
            96,
        ),
    ],
)
def test_one_of_each_kind(hlo_on_replicas, function, kind, dtype, shape, size):
    (found,) = collectives_in(hlo_on_replicas(function, jnp.ones((4, 4, 6)), n=4))
    assert found.kind == kind
    assert set(found.dtypes) == {dtype}
    assert found.bytes == size
    assert found.name
    if shape is not None:  # An all-to-all may be cut into one part a replica.
        assert found.shapes == (shape,)


def test_no_collective(hlo_on_replicas):
    assert collectives_in(hlo_on_replicas(lambda x: x * 2, jnp.ones((2, 3)))) == ()
    assert collectives_in("") == ()


def test_variadic_results_are_counted_once(hlo_on_replicas):
    def step(x):
        return lax.psum(x, AXIS), lax.psum(x[:2].astype(jnp.bfloat16), AXIS)

    found = collectives_in(hlo_on_replicas(step, jnp.ones((2, 5))))
    shapes = [shape for one in found for shape in one.shapes]
    assert sorted(shapes) == [(2,), (5,)]


def test_one_in_a_loop_is_counted_once(hlo_on_replicas):
    def step(x):
        return lax.fori_loop(0, 5, lambda _, x: lax.psum(x, AXIS), x)

    assert len(collectives_in(hlo_on_replicas(step, jnp.ones((2, 5))))) == 1


def test_names_of_functions_and_values_are_no_collectives(hlo_on_replicas):
    def all_reduce(x):
        return mapped.all_reduce("sum", [x], axis_name=AXIS, num_replicas=2)[0]

    (found,) = collectives_in(hlo_on_replicas(all_reduce, jnp.ones((2, 5))))
    assert found.shapes == ((5,),)


# --- forms of other backends, as their documentation shows them ----------------------------------


def test_start_and_done_are_one_collective():
    text = """
ENTRY %main {
  %p = f32[2]{0} parameter(0)
  %ar = f32[2]{0:T(256)} all-reduce-start(%p), channel_id=1, to_apply=%add
  %ar.1 = f32[2]{0:T(256)} all-reduce-done(%ar)
  %ag = (f32[2]{0}, f32[4]{0}) all-gather-start(f32[2]{0} %ar.1), dimensions={0}
  %ag.1 = f32[4]{0} all-gather-done(%ag)
  %cp = (bf16[4,2]{1,0:T(8,128)(2,1)}, bf16[4,2]{1,0}, u32[], u32[]) collective-permute-start(%x)
  %cp.1 = bf16[4,2]{1,0} collective-permute-done(%cp)
  ROOT %rs = ((f32[8]{0}), f32[4]{0}) reduce-scatter-start(%ag.1), to_apply=%add
}
"""
    assert collectives_in(text) == (
        CompiledCollective("all-reduce", ("float32",), ((2,),), 8, "ar"),
        CompiledCollective("all-gather", ("float32",), ((4,),), 16, "ag"),
        CompiledCollective("collective-permute", ("bfloat16",), ((4, 2),), 16, "cp"),
        CompiledCollective("reduce-scatter", ("float32",), ((4,),), 16, "rs"),
    )


def test_variadic_starts_and_index_comments():
    text = """
  %ar.7 = (f32[2]{0}, s8[3]{0}, /*index=2*/pred[]) all-reduce-start(%a, %b, %c), to_apply=%add
  ag.8 = ((f32[2]{0}, u8[3]{0}), (f32[4]{0}, u8[6]{0})) all-gather-start(%a, %b)
"""
    assert collectives_in(text) == (
        CompiledCollective("all-reduce", ("float32", "int8", "bool"), ((2,), (3,), ()), 12, "ar.7"),
        CompiledCollective("all-gather", ("float32", "uint8"), ((4,), (6,)), 22, "ag.8"),
    )


def test_rare_types():
    text = """
  %a = (s4[3]{0:E(4)}, f8e4m3fn[2]{0}, c64[<=2,1]{1,0}, f64[]) all-reduce(%p, %q, %r, %s)
"""
    (found,) = collectives_in(text)
    assert found.dtypes == ("int4", "float8_e4m3fn", "complex64", "float64")
    assert found.shapes == ((3,), (2,), (2, 1), ())
    assert found.bytes == 2 + 2 + 16 + 8
