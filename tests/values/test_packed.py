"""`rx.pack` and `rx.Packed`: nothing is lost, and parts say what is in them."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replicax as rx

PARAMS = {
    "layers": [
        {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}
        for _ in range(2)
    ],
    "scale": np.float32(2.0),
    "table": np.ones((500, 64), np.float32),
}
FIRST = "layers/0/b to layers/1/w (4 leaves, "

SHAPES = st.sampled_from([(), (0,), (1,), (3,), (2, 3), (2, 0), (20, 10)])
DTYPES = st.sampled_from(["float32", "float16", "int8", "bool", "complex64"])
LEAVES = st.none() | st.builds(
    lambda shape, dtype: np.arange(np.prod(shape)).reshape(shape).astype(dtype), SHAPES, DTYPES
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from("abc"), inner)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


def same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_array_equal(x, y)


@given(TREES, st.sampled_from([0, 8, 100, 10_000]), st.sampled_from([0, 50, 10_000]), st.booleans())
def test_what_is_packed_comes_out_again(tree, leaf_bytes, pack_bytes, is_by_axes):
    by = jax.tree.map(np.ndim, tree) if is_by_axes else None

    packed = rx.pack(tree, leaf_bytes=leaf_bytes, pack_bytes=pack_bytes, by=by)

    same(packed.unpack(), tree)
    assert sum(part.size for part in packed.parts) == sum(x.size for x in jax.tree.leaves(tree))
    for part in packed.parts:
        if not any(part is leaf for leaf in jax.tree.leaves(tree)):
            assert part.ndim == 1
            assert part.nbytes <= max(leaf_bytes, pack_bytes)
    assert len(set(packed.names)) == len(packed.names)
    again = pickle.loads(pickle.dumps(packed))  # noqa: S301
    assert jax.tree.structure(again) == jax.tree.structure(packed)


def test_small_leaves_lie_together_and_parts_say_which():
    packed = rx.pack(PARAMS)

    assert [part.shape for part in packed.parts] == [(18,), (), (500, 64)]
    assert packed.parts[1] is PARAMS["scale"]
    assert packed.parts[2] is PARAMS["table"]  # It is not copied.
    assert packed.names[0].startswith(FIRST)
    assert packed["table"] is PARAMS["table"]
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(packed)]
    assert jax.tree_util.keystr(paths[2]) == "['table']"
    assert repr(packed).startswith(f"Packed({FIRST}")
    assert repr(packed).endswith("float32[18], scale: float32[], table: float32[500, 64])")
    assert jax.tree.structure(copy.deepcopy(packed)) == jax.tree.structure(packed)
    assert [p.shape for p in rx.pack(PARAMS, by=jax.tree.map(np.ndim, PARAMS)).parts[:2]] == [
        (6,),
        (12,),
    ]


def test_other_layouts_are_other_structures_and_are_named():
    one, other = rx.pack(PARAMS), rx.pack(PARAMS, by=jax.tree.map(np.ndim, PARAMS))
    swapped = rx.pack({"a": np.zeros(2), "b": np.zeros((2, 1))})
    same_size = rx.pack({"a": np.zeros((2, 1)), "b": np.zeros(2)})

    assert jax.tree.structure(one) != jax.tree.structure(other)
    assert swapped.names != same_size.names
    with pytest.raises(ValueError, match=r"layers/0/b to layers/1/b \(2 leaves"):
        jax.tree.map(lambda x, y: x, one, other)
    with pytest.raises(ValueError, match="2 leaves"):
        jax.tree.map(lambda x, y: x, swapped, same_size)


def test_paths_that_look_alike_have_names_of_their_own():
    packed = rx.pack({"a/b": np.float32(1), "a": {"b": np.float32(2)}})

    assert packed.names == ("['a']['b']", "['a/b']")
    assert rx.pack(np.ones(3)).names == ("all",)


def test_arrays_of_jax_stay_where_they_are(strategy):
    whole = jax.sharding.NamedSharding(strategy.replica_mesh.mesh, jax.sharding.PartitionSpec())
    split = jax.sharding.NamedSharding(
        strategy.replica_mesh.mesh, jax.sharding.PartitionSpec("replica")
    )
    tree = {
        "a": jax.device_put(np.arange(4.0, dtype=np.float32), whole),
        "b": jax.device_put(np.ones((2, 2), np.float32), whole),
        "split": jax.device_put(np.ones(2, np.float32), split),
        "key": jax.random.split(jax.random.key(0), 3),
    }

    packed = rx.pack(tree)

    assert [part.shape for part in packed.parts] == [(8,), (3,), (2,)]
    assert packed.parts[0].sharding == whole
    assert packed.parts[2] is tree["split"]
    assert packed.unpack()["b"].sharding == whole
    for name in ("a", "b"):
        np.testing.assert_array_equal(packed.unpack()[name], tree[name])


def test_gradients_of_parts_are_those_of_the_leaves():
    tree = {"a": jnp.arange(3.0), "b": jnp.ones((2, 2)), "n": jnp.arange(2), "z": jnp.ones(2)}

    def loss(tree):  # It does not depend on "z".
        return (tree["a"] ** 2).sum() * tree["n"].sum() + jnp.sin(tree["b"]).sum()

    @jax.jit
    def both(tree):
        packed = rx.pack(tree)
        of_leaves = jax.grad(loss, allow_int=True)(tree)
        of_parts = jax.grad(lambda p: loss(p.unpack()), allow_int=True)(packed)
        outwards = jax.jvp(lambda p: loss(p.unpack()), (packed,), (of_zeros(packed),))[1]
        del of_leaves["n"]  # The gradient of integers has no numbers.
        return of_leaves, of_parts.parts[0], outwards, packed

    of_leaves, of_pack, outwards, packed = both(tree)

    assert packed.names == rx.pack(tree).names
    want = np.concatenate([x.ravel() for x in jax.tree.leaves(of_leaves)])
    np.testing.assert_array_equal(of_pack, want)
    assert outwards == 0
    text = str(jax.make_jaxpr(jax.grad(lambda p: loss(p.unpack()), allow_int=True))(packed))
    assert text.count("concatenate") == 1


def of_zeros(tree):
    return jax.tree.map(
        lambda x: (
            jnp.zeros_like(x) if x.dtype == "float32" else np.zeros(x.shape, jax.dtypes.float0)
        ),
        tree,
    )


def test_parts_in_variables_are_read(strategy):
    with strategy.scope():
        cells = jax.tree.map(rx.Variable, rx.pack({"a": np.ones(3), "b": np.zeros(2)}))
    cells.parts[0].assign_add(np.ones(5, np.float32))

    assert cells.unpack()["a"].tolist() == [2.0, 2.0, 2.0]
    assert "MirroredVariable float32[5]" in repr(cells)


SLICES = rx.IndexedSlices([[1.0]], [0], (3, 1))
REFUSED = {
    "number": (lambda: rx.pack({"rate": 0.1}), rx.errors.ArgumentTypeError, "'rate'"),
    "words": (lambda: rx.pack(np.array(["a"])), rx.errors.ArgumentTypeError, "no array"),
    "packed": (lambda: rx.pack([rx.pack(PARAMS)]), rx.errors.ArgumentTypeError, "Unpack it"),
    "variable": (lambda: rx.pack([rx.Variable(1.0)]), rx.errors.ArgumentTypeError, "of the parts"),
    "rows": (lambda: rx.pack([SLICES]), rx.errors.ArgumentTypeError, "to_dense"),
    "replicas": (
        lambda: rx.pack([rx.PerReplica([jnp.ones(1), jnp.ones(1)])]),
        rx.errors.ArgumentTypeError,
        "PerReplica",
    ),
    "structure": (
        lambda: rx.pack(PARAMS, by={"w": 1}),
        rx.errors.InvalidArgumentError,
        "another structure",
    ),
    "label": (lambda: rx.pack([np.ones(2)], by=[{}]), rx.errors.ArgumentTypeError, "hashed"),
    "size": (
        lambda: rx.pack(PARAMS, leaf_bytes=-1),
        rx.errors.InvalidArgumentError,
        "`leaf_bytes` = -1",
    ),
    "shape": (
        lambda: jax.tree.map(lambda x: np.stack([x, x]), rx.pack(PARAMS)).unpack(),
        rx.errors.InvalidArgumentError,
        r"shape \(2, 18\), and not \(18,\)",
    ),
    "part": (
        lambda: jax.tree.map(lambda _: "part", rx.pack(PARAMS)).unpack(),
        rx.errors.ArgumentTypeError,
        "no array",
    ),
    "name": (lambda: rx.pack(PARAMS)["w"], rx.errors.NotFoundError, "no part 'w'"),
    "iteration": (lambda: [*rx.pack(PARAMS)], TypeError, "not iterable"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    call, error, words = REFUSED[name]
    with pytest.raises(error, match=words) as caught:
        call()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301
