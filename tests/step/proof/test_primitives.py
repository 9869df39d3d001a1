"""The tables: every primitive of the running jax is known, and users can add their own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

from replicax.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    UnprovenError,
    VaryingControlFlowError,
)
from replicax.step._proof import _primitives as tables
from replicax.step._proof import register_primitive

# Modules that make primitives when they are imported.
PRIMITIVE_MODULES = [
    "jax.experimental.buffer_callback",
    "jax.experimental.checkify",
    "jax.experimental.compute_on",
    "jax.experimental.custom_partitioning",
    "jax.experimental.rnn",
    "jax.experimental.xla_metadata",
    "jax.export",
    "jax.image",
    "jax.nn",
    "jax.scipy.special",
]

# Not of a replica function: kernels, compiled programs, and jax's own stages of derivatives and
# high-level types. Refused with a message.
NOT_KNOWN = frozenset(
    {
        "accum_grad_in_ref",
        "box_get",
        "box_set",
        "call_exported",
        "core_map",
        "create_linear",
        "custom_lin",
        "global_array_to_host_local_array",
        "host_local_array_to_global_array",
        "log_extend",
        "log_read",
        "mpmd_map",
        "new_box",
        "new_log",
        "pallas_call",
        "pin",
        "stage",
        "unpin",
    }
)


# In an interpreter of its own: model libraries have primitives of theirs.
LISTING = f"""
import importlib

for module in {PRIMITIVE_MODULES!r}:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:  # Of another release.
        pass
from replicax.step import _compat

print(*_compat.registered_primitives(), sep="\\n")
"""


def test_every_primitive_of_this_jax_is_known(run_python):
    listed = run_python(LISTING)
    names = set(listed.stdout.split())

    assert len(names) > 200, listed.stderr  # The walk finds them.
    assert {name for name in names if not tables.is_built_in(name)} - NOT_KNOWN == set()


def test_no_name_is_in_two_tables():
    groups = [
        tables.POINTWISE,
        tables.ONE_BY_ONE,
        frozenset(tables.VARYING),
        tables.SIDE_EFFECT_PARAMETER,
        tables.EQUALISING,
        tables.SPREADING,
        tables.ALLOCATING,
        frozenset(tables.REFUSED),
    ]
    assert sum(map(len, groups)) == len(frozenset().union(*groups))


V = jnp.linspace(0.1, 0.9, 4)


# --- primitives that the pass does not know ------------------------------------------------------


def new_primitive(name):
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda aval, **_: aval)
    return primitive


def test_unknown_primitive_is_refused(proved):
    primitive = new_primitive("never_seen")

    def fn(x):
        return primitive.bind(x) * 2

    with pytest.raises(UnprovenError) as caught:
        proved(fn, V)

    line = fn.__code__.co_firstlineno + 1
    message = str(caught.value)
    assert "primitive `never_seen`, used at " in message
    assert f"test_primitives.py:{line} in fn" in message
    assert 'register_primitive("never_seen", "pointwise")' in message


def test_unknown_primitive_in_a_branch_is_refused(proved):
    primitive = new_primitive("never_seen_in_branch")

    with pytest.raises(UnprovenError, match="never_seen_in_branch"):
        proved(lambda x: lax.cond(x[0] > 0, primitive.bind, lambda y: y, x), V)


@pytest.mark.parametrize(
    ("rule", "expected"), [("pointwise", "vm"), ("varying", "vv"), ("mirrored", "mm")]
)
def test_registered_primitive(kinds, rule, expected):
    primitive = new_primitive(f"own_{rule}")
    register_primitive(f"own_{rule}", rule)

    def fn(x):
        return primitive.bind(x), primitive.bind(lax.psum(x, "replica"))

    assert expected == kinds(fn, V, varies=[0])


def test_registered_collective_under_varying_control_is_refused(proved):
    primitive = new_primitive("own_all_reduce")
    register_primitive("own_all_reduce", "mirrored")

    def fn(x):
        return primitive.bind(x, axis_name="replica")

    assert [c.primitive for c in proved(fn, V, varies=[0]).collectives] == ["own_all_reduce"]
    with pytest.raises(VaryingControlFlowError, match="own_all_reduce"):
        proved(lambda x: lax.cond(x[0] > 0, fn, lambda y: y, x), V, varies=[0])


def test_pallas_kernel_can_be_registered(proved, kinds, monkeypatch):
    from jax.experimental import pallas as pl

    def double(x):
        def kernel(x_ref, o_ref):
            o_ref[...] = x_ref[...] * 2

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(UnprovenError, match=r"(?s)pallas_call.*kernel"):
        proved(double, V)

    monkeypatch.setitem(tables._registered, "pallas_call", "pointwise")
    assert kinds(lambda x: (double(x), double(lax.psum(x, "replica"))), V, varies=[0]) == "vm"


def test_foreign_calls(kinds):
    def call(x, *, effect):
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call("never_run", result, has_side_effect=effect)(x)

    def fn(x):
        whole = lax.psum(x, "replica")
        return call(whole, effect=False), call(whole, effect=True), call(x, effect=False)

    assert kinds(fn, V, varies=[0]) == "mvv"


def test_bad_registrations():
    with pytest.raises(ArgumentTypeError, match="name of type int"):
        register_primitive(3, "pointwise")
    with pytest.raises(InvalidArgumentError, match="'pointwise', 'varying', 'mirrored'"):
        register_primitive("own", "constant")
    for name in ("psum", "sin", "scan", "jit", "axis_index", "io_callback", "swap"):
        with pytest.raises(InvalidArgumentError, match="knows"):
            register_primitive(name, "mirrored")


def test_numpy_constants_are_mirrored(kinds):
    table = np.arange(1024.0, dtype=np.float32)
    assert kinds(lambda x: (table * 2.0, table[:4] * x), V, varies=[0]) == "mv"
