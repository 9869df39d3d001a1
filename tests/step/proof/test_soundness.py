"""Whatever the pass calls mirrored is equal, bit for bit, on all devices that run it.

Random programs are proved, and run for real under `jax.jit(jax.shard_map(...))`.
"""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from replicax.errors import VaryingControlFlowError
from replicax.step._proof import Source, prove

REPLICAS = 4
AXIS = "replica"
GROUPS = [[0, 1], [2, 3]]


def _through_reference(a, b):
    ref = jax.new_ref(a)
    ref[0] = b[1]
    return ref[...]


# A program is a list of instructions on a stack of f32[2] values. Its first two values are a
# mirrored and a varying input. Operands are indices into the stack, modulo its height.
UNARY = {
    "sin": jnp.sin,
    "reverse": lambda x: x[::-1],
    "sum": lambda x: x + x.sum(),
    "zero": lambda x: x * 0,
    "jit": jax.jit(jnp.cos),
    "remat": jax.checkpoint(lambda x: jnp.sin(x) * x),
    "grad": jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 2)),
    "relu": jax.nn.relu,
    "normal": lambda x: jax.random.normal(jax.random.key(x[0].astype(int)), (2,)),
    "psum": lambda x: lax.psum(x, AXIS),
    "pmean": lambda x: lax.pmean(x, AXIS),
    "pmax": lambda x: lax.pmax(x, AXIS),
    "groups": lambda x: lax.psum(x, AXIS, axis_index_groups=GROUPS),
    "gather": lambda x: lax.all_gather(x, AXIS).mean(0) + lax.all_gather(x, AXIS)[1],
    "permute": lambda x: lax.ppermute(x, AXIS, [(0, 1), (1, 2), (2, 0)]),
    "to_all": lambda x: lax.all_to_all(jnp.tile(x, 2), AXIS, 0, 0)[:2],
    "scatter": lambda x: jnp.tile(lax.psum_scatter(jnp.tile(x, 2), AXIS, tiled=True), 2),
    "index": lambda x: x + lax.axis_index(AXIS),
    "grad of psum": jax.grad(lambda x: jnp.sum(lax.psum(jnp.sin(x), AXIS))),
}
BINARY = {
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * b,
    "where": lambda a, b: jnp.where(a > 0, b, 1.0),
    "take": lambda a, b: a[jnp.abs(b[0].astype(int)) % 2] + a,
    "update": lambda a, b: a.at[0].set(b[0]),
    "ref": _through_reference,
}


operand = st.integers(0, 9)
simple = st.one_of(
    st.tuples(st.sampled_from(sorted(UNARY)), operand),
    st.tuples(st.sampled_from(sorted(BINARY)), operand, operand),
)


def nested(instruction):
    block = st.lists(instruction, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.just("cond"), operand, block, block),
        st.tuples(st.just("scan"), operand, operand, block),
        st.tuples(st.just("while"), operand, operand, block),
        st.tuples(st.just("fori"), operand, operand, block),
        st.tuples(st.just("call"), operand, block),
    )


programs = st.lists(st.recursive(simple, nested, max_leaves=6), min_size=1, max_size=5)


def run(program: list[Any], stack: list[Any]) -> list[Any]:
    """Runs a program on a stack, and returns the higher stack."""
    stack = list(stack)
    for name, *arguments in program:
        stack.append(_step(name, arguments, stack))
    return stack


def _step(name, arguments, stack):
    def pick(i):
        return stack[i % len(stack)]

    if name in UNARY:
        return UNARY[name](pick(arguments[0]))
    if name in BINARY:
        return BINARY[name](pick(arguments[0]), pick(arguments[1]))
    return NESTED[name](pick, stack, *arguments)


def _call(_pick, stack, _where, block):
    return jax.jit(lambda *s: run(block, s)[-1])(*stack)


def _cond(pick, stack, where, left, right):
    return lax.cond(pick(where)[0] > 0, lambda: run(left, stack)[-1], lambda: run(right, stack)[-1])


def _scan(pick, _stack, start, over, block):
    def body(carry, x):
        values = run(block, [*carry, x])
        return (values[-1], carry[0]), values[-1]

    xs = jnp.stack([pick(over), pick(over + 1)])
    (last, _), ys = lax.scan(body, (pick(start), pick(start + 1)), xs)
    return last + ys[0]


def _fori(pick, stack, start, over, block):
    times = jnp.abs(pick(over)[0]).astype(int) % 3  # Not constant, so this is a while loop.
    return lax.fori_loop(0, times, lambda _, c: run(block, [c, *stack])[-1], pick(start))


def _while(pick, _stack, start, over, block):
    def more(carry):
        return carry[0] + 1, run(block, [carry[1], carry[2]])[-1], carry[1]

    def test(carry):
        return (carry[0] < 2) & (carry[2][0] < 9)

    return lax.while_loop(test, more, (0, pick(start), pick(over)))[1]


NESTED = {"call": _call, "cond": _cond, "fori": _fori, "scan": _scan, "while": _while}


@pytest.fixture(scope="module")
def mesh():
    auto = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((REPLICAS,), (AXIS,), axis_types=auto, devices=jax.devices()[:REPLICAS])


def check(mesh, program) -> int:
    """Proves and runs a program; returns how many computed values were proved mirrored."""

    def replica_function(mirrored, varying):
        return run(program, [mirrored, varying])[2:]

    example = jnp.zeros(2)
    jaxpr = jax.make_jaxpr(replica_function, axis_env=[(AXIS, REPLICAS)])(example, example)
    try:
        proof = prove(jaxpr, [None, Source("the input", None)])
    except VaryingControlFlowError:
        hypothesis.reject()
    compiled = jax.jit(
        jax.shard_map(
            lambda m, v: [out[None] for out in replica_function(m, v[0])],
            mesh=mesh,
            in_specs=(P(), P(AXIS)),
            out_specs=P(AXIS),
            check_vma=False,
        )
    )
    varying = jnp.array([[0.5, -1.5], [2.0, 0.25], [-0.75, 1.0], [1.0, 3.0]])
    results = compiled(jnp.array([0.3, -0.7]), varying)
    for kind, result in zip(proof.outputs, results, strict=True):
        if kind is None:
            copies = np.asarray(result).view(np.int32)
            assert (copies == copies[0]).all(), f"proved mirrored, but differs: {result}"
    return sum(kind is None for kind in proof.outputs)


@hypothesis.given(program=programs)
def test_mirrored_values_are_equal_on_all_devices(mesh, program):
    check(mesh, program)


def test_the_check_can_fail(mesh, monkeypatch):
    """A pass that takes everything for mirrored is found out."""
    from replicax.step._proof import Proof

    wrong = Proof((None,), ())
    monkeypatch.setitem(globals(), "prove", lambda *_: wrong)

    with pytest.raises(AssertionError, match="proved mirrored, but differs"):
        check(mesh, [("index", 0)])


@pytest.mark.parametrize(
    ("program", "mirrored"),
    [
        ([("psum", 1), ("index", 0), ("gather", 1), ("groups", 1)], 2),
        ([("cond", 0, [("psum", 1)], [("gather", 1)])], 1),
        ([("scan", 0, 1, [("pmean", 2), ("add", 0, 3)])], 1),
        ([("scan", 0, 0, [("index", 0)])], 0),
        ([("call", 0, [("psum", 1), ("where", 2, 2)])], 1),
        ([("while", 0, 0, [("psum", 0)])], 1),
    ],
)
def test_programs_whose_number_of_mirrored_values_is_known(mesh, program, mirrored):
    assert check(mesh, program) == mirrored
