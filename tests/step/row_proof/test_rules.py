"""The rules of the row pass, one small function each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicax.step._proof._primitives import is_built_in
from replicax.step._row_proof import Input, Unknown, read_rows
from replicax.step._row_proof._read import RULES

AXIS = "replica"


def image(x):
    """f32[4, 3, 1, 1] from f32[4, 3]."""
    return x[:, :, None, None]


def convolved(x, kernel):
    return lax.conv_general_dilated(
        image(x), kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


ARITHMETIC = {
    "rows": (lambda r: r.x, "0: rows"),
    "function": (lambda r: jnp.sin(r.x) * 2 + r.x, "0: rows"),
    "with weights": (lambda r: r.x * r.w[0], "0: rows"),
    "with what differs between replicas": (lambda r: r.x * r.own, "0: unsure"),
    "mirrored": (lambda r: r.w * 2, "clean"),
    "count": (lambda r: r.real * 2, "clean"),
    "mask": (lambda r: r.mask, "0: filled with 0"),
    "other side of the mask": (lambda r: ~r.mask, "0: filled with 1"),
    "mask as numbers": (lambda r: r.mask.astype(jnp.float32), "0: filled with 0"),
    "mask by the other comparison": (lambda r: r.real <= jnp.arange(4), "0: filled with 1"),
    "masked": (lambda r: r.masked(r.x), "0: filled with 0"),
    "masked by the other side": (lambda r: jnp.where(~r.mask, 0, r.y), "0: filled with 0"),
    "times mask": (lambda r: r.x * r.mask[:, None], "0: filled with 0"),
    "masked and bent": (lambda r: jnp.tanh(-(r.masked(r.x) ** 3)), "0: filled with 0"),
    "masked with infinity": (lambda r: jnp.exp(r.masked(r.x, -jnp.inf)), "0: filled with 0"),
    "masked and divided": (lambda r: r.masked(r.x) / (1 + r.x**2), "0: filled with 0"),
    "masked times rows": (lambda r: r.masked(r.x) * r.x, "0: filled with 0"),
    "masked and moved": (lambda r: r.masked(r.x) + r.w[0], "0: filled"),
    "masked with one, then one less": (lambda r: 1 - r.masked(r.x, 1), "0: filled with 0"),
    "masked in bfloat16": (lambda r: r.masked(r.x.astype(jnp.bfloat16)), "0: filled with 0"),
    "masked added to rows": (lambda r: r.masked(r.x) + r.x, "0: rows"),
    "bias added to rows": (lambda r: r.x + r.masked(0 * r.x, -1e9), "0: unsure"),
    "masked by a count of its own": (
        lambda r: jnp.where((jnp.arange(4) < r.mask.any() * 2)[:, None], r.x, 0),
        "0: unsure",
    ),
    "masked by the sum of the mask": (
        lambda r: jnp.where((jnp.arange(4) < r.mask.sum())[:, None], r.x, 0),
        "0: filled with 0",
    ),
    "padding alone": (lambda r: jnp.where(r.mask[:, None], 0, r.x), "0: unsure"),
    "not at all": (lambda r: r.x.sum() * 0, "clean"),
    "noise": (lambda r: r.x + jax.random.normal(jax.random.key(0), r.x.shape), "0: rows"),
    "dropout": (
        lambda r: r.x * jax.random.bernoulli(jax.random.key(r.real), 0.5, r.x.shape),
        "0: rows",
    ),
}

REDUCTIONS = {
    "sum": (lambda r: r.x.sum(0), "dirty"),
    "sum of all": (lambda r: r.x.sum(), "dirty"),
    "mean": (lambda r: jnp.mean(r.x), "dirty"),
    "variance": (lambda r: jnp.var(r.x, 0), "dirty"),
    "product": (lambda r: r.x.prod(0), "dirty"),
    "of other axes": (lambda r: r.x.sum(1), "0: rows"),
    "masked": (lambda r: r.masked(r.x).sum(0), "clean"),
    "by where": (lambda r: jnp.sum(r.x, 0, where=r.mask[:, None]), "clean"),
    "mean by where": (lambda r: jnp.mean(r.x, where=r.mask[:, None]), "clean"),
    "variance by where": (lambda r: jnp.var(r.x, 0, where=r.mask[:, None]), "clean"),
    "weighted average": (lambda r: jnp.average(r.x, 0, weights=r.mask), "clean"),
    "maximum by where": (
        lambda r: jnp.max(r.x, 0, where=r.mask[:, None], initial=-jnp.inf),
        "clean",
    ),
    "log of a sum of exponentials": (
        lambda r: jax.nn.logsumexp(r.x, 0, where=r.mask[:, None]),
        "clean",
    ),
    # Padding repeats a row of the global batch, so the maximum over all replicas may be right.
    "maximum": (lambda r: r.x.max(0), "unknown"),
    "all": (lambda r: jnp.isfinite(r.x).all(), "unknown"),
    "best": (lambda r: r.x.argmax(0), "unknown"),
    "best of other axes": (lambda r: r.x.argmax(1), "0: rows"),
    "of unsure rows": (lambda r: (r.x * r.own).sum(0), "unknown"),
    "running": (lambda r: jnp.cumsum(r.x, 0), "unknown"),
    "running along others": (lambda r: jnp.cumsum(r.masked(r.x), 1), "0: filled with 0"),
    "sorted": (lambda r: jnp.sort(r.x, 0), "unknown"),
    "sorted along others": (lambda r: jnp.sort(r.x, 1), "0: rows"),
    "best two": (lambda r: lax.top_k(r.x, 2), "0: rows; 0: rows"),
    "spectrum": (lambda r: jnp.fft.rfft(r.masked(r.x)), "0: filled with 0"),
    "dirt stays": (lambda r: jnp.sin(r.x - r.x.mean(0)), "dirty"),
    "dirt under the mask": (lambda r: r.masked(r.x - r.x.mean(0)).sum(0), "dirty"),
    "dirt divided by the right count": (lambda r: r.x.sum(0) / r.mask.sum(), "dirty"),
    "dirt times the right count": (lambda r: r.x.mean(0) * r.real, "dirty"),
    "dirt where all rows are real": (
        lambda r: jnp.where(r.mask.all(), r.x.mean(0), 0),
        "unknown",
    ),
    "function of the user": (
        lambda r: lax.reduce(r.x, 0.0, lambda a, b: a * b + 1, (1,)),
        "0: rows",
    ),
}

SHAPES = {
    "new axis": (lambda r: r.x[:, None], "0: rows"),
    "new first axis": (lambda r: r.x[None], "1: rows"),
    "transpose": (lambda r: r.x.T, "1: rows"),
    "reshape of others": (lambda r: r.x.reshape(4, 1, 3), "0: rows"),
    "reshape of rows": (lambda r: r.x.reshape(2, 6), "unknown"),
    "reshape of masked rows": (lambda r: r.masked(r.x).reshape(12), "clean"),
    "first": (lambda r: r.x[0], "unknown"),
    "columns": (lambda r: r.x[:, 1:], "0: rows"),
    "dynamic columns": (lambda r: lax.dynamic_slice_in_dim(r.x, r.real, 2, 1), "0: rows"),
    "dynamic rows": (lambda r: lax.dynamic_slice_in_dim(r.x, 1, 2, 0), "unknown"),
    "backwards": (lambda r: r.x[::-1], "unknown"),
    "columns backwards": (lambda r: r.x[:, ::-1], "0: rows"),
    "more columns": (lambda r: jnp.pad(r.masked(r.x), ((0, 0), (1, 1))), "0: filled with 0"),
    "more rows": (lambda r: jnp.pad(r.x, ((0, 1), (0, 0))), "unknown"),
    "columns side by side": (lambda r: jnp.concatenate([r.x, r.x], 1), "0: rows"),
    "rows on rows": (lambda r: jnp.concatenate([r.x, r.x], 0), "parts"),
    "half of rows on rows": (lambda r: jnp.concatenate([r.x, r.x], 0)[:4], "0: rows"),
    "clean half": (lambda r: jnp.concatenate([r.x.sum(0), r.own])[3:], "clean"),
    "dirty half": (lambda r: jnp.concatenate([r.x.sum(0), r.own])[:3], "dirty"),
    "halves": (lambda r: jnp.split(jnp.stack([r.x.sum(), r.own[0]]), 2), "dirty; clean"),
    "stacked and reduced": (lambda r: jnp.stack([r.x.sum(), r.own[0]]).sum(), "dirty"),
    "bits": (lambda r: lax.bitcast_convert_type(r.x, jnp.int32), "0: rows"),
}

PRODUCTS = {
    "layer": (lambda r: r.x @ r.w, "0: rows"),
    "masked layer": (lambda r: r.masked(r.x) @ r.w, "0: filled with 0"),
    "gram": (lambda r: r.x.T @ r.x, "dirty"),
    "masked gram": (lambda r: r.masked(r.x).T @ r.x, "clean"),
    "with mask": (lambda r: r.mask.astype(jnp.float32) @ r.x, "clean"),
    "with ones": (lambda r: jnp.ones(4) @ r.x, "dirty"),
    "with one row of the identity": (lambda r: jnp.eye(4)[2] @ r.x, "unknown"),
    "with the identity": (lambda r: jnp.eye(4) @ r.x, "unknown"),
    "of each row": (lambda r: jnp.einsum("bi,bj->bij", r.x, r.x), "0: rows"),
    "all with all": (lambda r: r.x @ r.x.T, "0: rows, 1: rows"),
    "convolution": (lambda r: convolved(r.x, jnp.ones((2, 1, 1, 5))), "0: rows"),
    "masked convolution": (
        lambda r: convolved(r.masked(r.x), jnp.ones((2, 1, 1, 5))),
        "0: filled with 0",
    ),
    "gradient of a kernel": (
        lambda r: jax.grad(lambda k: convolved(r.x, k).sum())(jnp.ones((2, 1, 1, 5))),
        "dirty",
    ),
    "masked gradient of a kernel": (
        lambda r: jax.grad(lambda k: r.masked(convolved(r.x, k) ** 2).sum())(
            jnp.ones((2, 1, 1, 5))
        ),
        "clean",
    ),
    "gradient of a layer": (lambda r: jax.grad(lambda w: (r.x @ w).mean())(r.w), "dirty"),
    "masked gradient of a layer": (
        lambda r: jax.grad(lambda w: r.masked(jnp.sin(r.x @ w)).sum())(r.w),
        "clean",
    ),
    "matrices of rows": (
        lambda r: jnp.linalg.cholesky(jnp.eye(3) + r.x[:, :, None] * r.x[:, None]),
        "0: rows",
    ),
    "pooling": (
        lambda r: lax.reduce_window(r.x, -jnp.inf, lax.max, (1, 2), (1, 1), "VALID"),
        "0: rows",
    ),
    "gradient of pooling": (
        lambda r: jax.grad(
            lambda x: r.masked(
                lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), "VALID")
            ).sum()
        )(r.x),
        "0: filled with 0",
    ),
    "windows over rows": (
        lambda r: lax.reduce_window(r.x, 0.0, lax.add, (2, 1), (1, 1), "VALID"),
        "unknown",
    ),
}

INDEXING = {
    "embedding": (lambda r: r.w[r.y], "0: rows"),
    "of a constant": (lambda r: jnp.zeros((3, 2))[r.y], "0: filled with 0"),
    "along an axis": (lambda r: jnp.take_along_axis(r.x, r.y[:, None], 1), "0: rows"),
    "own column": (lambda r: r.x[jnp.arange(4), r.y], "0: rows"),
    "own column by numpy": (lambda r: r.x[np.arange(4), r.y], "0: rows"),
    "own column by vmap": (lambda r: jax.vmap(lambda row, i: row[i])(r.x, r.y), "0: rows"),
    "masked, own column": (lambda r: r.masked(r.x)[jnp.arange(4), r.y], "0: filled with 0"),
    "columns": (lambda r: r.x[:, jnp.array([2, 0])], "0: rows"),
    "rows by place": (lambda r: r.x[jnp.array([2, 0])], "unknown"),
    "gradient of an embedding": (
        lambda r: jax.grad(lambda w: w[r.y].sum())(r.w),
        "dirty",
    ),
    "masked gradient of an embedding": (
        lambda r: jax.grad(lambda w: r.masked(w[r.y]).sum())(r.w),
        "clean",
    ),
    "histogram": (lambda r: jnp.zeros(3).at[r.y].add(1), "dirty"),
    "masked histogram": (lambda r: jnp.zeros(3).at[r.y].add(r.mask), "clean"),
    "histogram that drops": (
        lambda r: jnp.zeros(3).at[jnp.where(r.mask, r.y, 9)].add(1, mode="drop"),
        "clean",
    ),
    "segments": (lambda r: jax.ops.segment_sum(r.x, r.y, 3), "dirty"),
    "memory by row": (lambda r: jnp.zeros((3, 3)).at[r.y].set(r.x), "unknown"),
    "own place": (
        lambda r: jnp.zeros((4, 3)).at[jnp.arange(4), r.y].add(r.masked(r.x)[:, 0]),
        "0: filled with 0",
    ),
    "one row": (lambda r: r.masked(r.x).at[0].set(1.0), "0: filled"),
}

COLLECTIVES = {
    "sum of rows": (lambda r: lax.psum(r.x, AXIS), "dirty"),
    "sum of sums": (lambda r: lax.psum(r.masked(r.x).sum(0), AXIS), "clean"),
    "sum of dirt": (lambda r: lax.psum(r.x.sum(0), AXIS), "dirty"),
    "sum of masked rows": (lambda r: lax.psum(r.masked(r.x), AXIS), "clean"),
    "maximum of rows": (lambda r: lax.pmax(r.x, AXIS), "unknown"),
    "gathered": (lambda r: lax.all_gather(r.x, AXIS, tiled=True), "0: rows"),
    "gathered and averaged": (lambda r: lax.all_gather(r.x, AXIS, tiled=True).mean(), "dirty"),
    "gathered and masked": (
        lambda r: jnp.where(
            lax.all_gather(r.mask, AXIS, tiled=True)[:, None],
            lax.all_gather(r.x, AXIS, tiled=True),
            0,
        ).sum(0),
        "clean",
    ),
    "gathered along others": (lambda r: lax.all_gather(r.x, AXIS, axis=1, tiled=True), "unknown"),
    "gathered apart": (lambda r: lax.all_gather(r.x, AXIS), "unknown"),
    # The same global rows on all replicas, worked on in shares.
    "shares of gathered rows": (
        lambda r: lax.psum(lax.all_gather(r.x, AXIS, tiled=True) @ r.w, AXIS),
        "0: rows",
    ),
    "gradient of gathering": (
        lambda r: jax.grad(
            lambda x: jnp.where(
                lax.all_gather(r.mask, AXIS, tiled=True)[:, None],
                lax.all_gather(x, AXIS, tiled=True),
                0,
            ).sum()
        )(r.x),
        "0: filled with 0",
    ),
    "scattered": (lambda r: lax.psum_scatter(r.x, AXIS, tiled=True), "dirty"),
    "of the neighbour": (lambda r: lax.ppermute(r.x, AXIS, [(0, 1), (1, 0)]), "unknown"),
    "of the first": (
        lambda r: lax.psum(jnp.where(lax.axis_index(AXIS) == 0, r.x, 0), AXIS),
        "unknown",
    ),
    "packed": (
        lambda r: lax.psum(jnp.concatenate([r.own, r.x.sum(0)]), AXIS)[:3],
        "clean",
    ),
}

CONTROL = {
    "jit": (lambda r: jax.jit(lambda x: jnp.sin(x).sum(0))(r.x), "dirty"),
    "remat": (lambda r: jax.checkpoint(lambda x: x.sum(1))(r.x), "0: rows"),
    "relu": (lambda r: jax.nn.relu(r.masked(r.x)), "0: filled with 0"),
    "scan over columns": (
        lambda r: lax.scan(lambda c, x: (jnp.tanh(c + x), c), jnp.zeros(4), r.x.T),
        "0: rows; 1: rows",
    ),
    "masked scan": (
        lambda r: lax.scan(lambda c, x: (c + x, None), jnp.zeros(4), r.masked(r.x).T)[0],
        "0: filled with 0",
    ),
    "dirt in a scan": (
        lambda r: lax.scan(lambda c, _: (c + r.x.sum(), None), 0.0, None, length=3)[0],
        "dirty",
    ),
    "scan over rows": (lambda r: lax.scan(lambda c, x: (c + x, None), r.own, r.x)[0], "unknown"),
    "while": (
        lambda r: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, r.x)),
        "clean; 0: rows",
    ),
    "while of a dirty number of rounds": (
        lambda r: lax.while_loop(lambda c: c < r.x.sum(), lambda c: c + 1, 0.0),
        "dirty",
    ),
    "loop over real rows": (
        lambda r: lax.fori_loop(0, r.real, lambda i, c: c + r.x[i], jnp.zeros(3)),
        "unknown",
    ),
    "cond": (lambda r: lax.cond(r.w[0, 0] > 0, jnp.sin, jnp.cos, r.x), "0: rows"),
    "cond that masks": (
        lambda r: lax.cond(r.w[0, 0] > 0, r.masked, lambda x: x, r.x),
        "0: unsure",
    ),
    "cond with dirt": (
        lambda r: lax.cond(r.w[0, 0] > 0, r.x.mean, lambda: 0.0),
        "dirty",
    ),
    "cond where all rows are real": (
        lambda r: lax.cond(r.mask.all(), r.x.mean, lambda: 0.0),
        "unknown",
    ),
    "reference": (lambda r: jax.new_ref(r.w)[...], "unknown"),
    "callback": (
        lambda r: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), r.own[0]),
        "clean",
    ),
    "callback with rows": (
        lambda r: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((4, 3), jnp.float32), r.x),
        "unknown",
    ),
    "jacobian": (
        lambda r: jax.jacrev(lambda w: jnp.sin(r.x @ w))(r.w),
        "unknown",
    ),
    "gradient of each row": (
        lambda r: jax.vmap(jax.grad(lambda w, x: jnp.sin(x @ w).sum()), (None, 0))(r.w, r.x),
        "0: rows",
    ),
    "solve": (
        lambda r: jax.vmap(lambda x: jnp.linalg.solve(jnp.eye(3) + jnp.outer(x, x), x))(r.x),
        "0: rows",
    ),
    "keys of rows": (
        lambda r: jax.vmap(lambda y: jax.random.normal(jax.random.key(y), (2,)))(r.y),
        "0: rows",
    ),
}

ALL = {
    f"{group}: {name}": case
    for group, cases in {
        "arithmetic": ARITHMETIC,
        "reductions": REDUCTIONS,
        "shapes": SHAPES,
        "products": PRODUCTS,
        "indexing": INDEXING,
        "collectives": COLLECTIVES,
        "control": CONTROL,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", ALL)
def test_state_of(case, words):
    fn, expected = ALL[case]
    assert words(fn) == expected


def test_dirt_names_its_line(states):
    (state,) = states(lambda r: jnp.sin(r.x).mean())
    assert state.what == "sum or mean over the rows"
    assert "test_rules.py" in str(state.call_site)


def test_one_row_a_replica_is_right_where_it_is_real(words):
    """Then a sum over the rows is the row, and a mask still takes out what is padding."""
    assert words(lambda r: r.x.mean(0), rows=1) == "dirty"
    assert words(lambda r: lax.psum(r.x.mean(0), AXIS), rows=1) == "dirty"
    masked = "unknown"
    assert words(lambda r: jnp.where(r.mask[:, None], r.x - r.x.mean(0), 0), rows=1) == masked


def test_rules_are_for_primitives_that_the_proof_knows():
    """A name that is misspelt would be a rule for nothing."""
    assert [name for name in sorted(RULES) if not is_built_in(name)] == []


def test_a_rule_that_fails_says_nothing_instead():
    """A release of jax may name parameters in another way: that must stop no step."""

    class Broken(dict):
        def __getitem__(self, key):
            raise KeyError(key)

    program = jax.make_jaxpr(lambda x: lax.reduce_sum(x, axes=(0,)))(np.ones(4))
    (eqn,) = program.jaxpr.eqns
    broken = program.jaxpr.replace(eqns=[eqn.replace(params=Broken())])
    options = {"axis_name": AXIS, "num_replicas": 2, "capacity": 4}
    assert isinstance(read_rows(broken, [Input.PADDED], **options)[0], Unknown)
    with pytest.raises(KeyError):
        read_rows(broken, [Input.PADDED], is_strict=True, **options)
