"""Replicas that really hold different bits, and how they are found."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

import replicax as rx
from replicax.verification._digests import digests

N = 4
DTYPES = [
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "complex64",
    "int4",
    "int8",
    "int16",
    "int32",
    "uint4",
    "uint8",
    "uint16",
    "uint32",
]


@pytest.fixture
def four():
    """New for each test, so that it knows of no other variables."""
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(N)])


def mirrored(strategy, usual, *, replica=None, other=None):
    """A mirrored array whose copy on one replica is another one."""
    copies = [usual] * N
    if replica is not None:
        copies[replica] = other
    return strategy.replica_mesh.from_components([jnp.asarray(copy) for copy in copies])


def bits_of(array, dtype):
    return jax.lax.bitcast_convert_type(jnp.asarray(array), jnp.dtype(dtype))


def diverged(value):
    with pytest.raises(rx.errors.ReplicaDivergenceError) as caught:
        rx.check_replicas_equal(value)
    return str(caught.value)


def rows(message):
    """The cells of the table, a row for each copy that differs."""
    lines = [line for line in message.splitlines() if line.startswith("  ")]
    return [re.split(r"\s{2,}", line.strip()) for line in lines[1:]]


# --- what differs -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("replica", [0, 3])
def test_one_element_of_any_dtype(four, dtype, replica):
    usual = jnp.zeros((2, 3), dtype)
    other = usual.at[1, 2].set(jnp.ones((), dtype))

    rx.check_replicas_equal(mirrored(four, usual))
    message = diverged(mirrored(four, usual, replica=replica, other=other))
    (row,) = rows(message)
    assert row[:5] == [
        "the value",
        f"{dtype}[2, 3]",
        str(replica),
        "1" if replica == 0 else "0",
        "1 of 6",
    ]
    assert row[5].startswith("1 (")
    assert row[6] == "[1, 2]"


def test_one_bool(four):
    usual = np.zeros(5, bool)
    other = np.array([False, True, False, False, False])

    rx.check_replicas_equal(mirrored(four, usual))
    assert "[1]" in diverged(mirrored(four, usual, replica=1, other=other))


def test_64_bits(run_python):
    done = run_python("""
        import jax
        jax.config.update("jax_enable_x64", True)
        import numpy as np
        import replicax as rx

        rx.devices.logical(cpu=3)
        strategy = rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])
        for dtype, bit in [("float64", 0), ("float64", 63), ("int64", 33), ("uint64", 63)]:
            usual = np.arange(3, dtype=dtype)
            bits = usual.view(np.uint64).copy()
            bits[2] ^= np.uint64(1 << bit)
            copies = [jax.numpy.asarray(x) for x in (usual, bits.view(dtype), usual)]
            rx.check_replicas_equal(strategy.replica_mesh.from_components([copies[0]] * 3))
            try:
                rx.check_replicas_equal(strategy.replica_mesh.from_components(copies))
            except rx.errors.ReplicaDivergenceError as error:
                print(str(error).splitlines()[2].split()[4:6])
        usual = jax.numpy.ones(2, "complex128")
        copies = [usual, usual, usual.at[1].add(1e-12j)]
        try:
            rx.check_replicas_equal(strategy.replica_mesh.from_components(copies))
        except rx.errors.ReplicaDivergenceError as error:
            print("complex128" in str(error))
        rx.check_replicas_equal(strategy.replica_mesh.from_components([usual] * 3))
    """)

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5, done.stdout


@given(st.integers(0, 31), st.integers(0, 999), st.integers(0, 3))
def test_one_flipped_bit(bit, place, replica):
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(N)])
    usual = np.linspace(-3, 3, 1000, dtype=np.float32)
    bits = usual.view(np.uint32).copy()
    bits[place] ^= np.uint32(1 << bit)

    message = diverged(mirrored(strategy, usual, replica=replica, other=bits.view(np.float32)))
    assert f"[{place}]" in message
    assert "1 of 1000" in message


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40), st.data())
def test_digests_are_equal_for_equal_bits_only(words, data):
    usual = np.array(words, np.uint32)
    swapped = data.draw(st.permutations(words))
    flips = data.draw(st.lists(st.sampled_from([0, 1, 2**31]), min_size=len(words)))
    flipped = usual ^ np.array(flips[: len(words)], np.uint32)
    copies = [usual, usual.copy(), np.array(swapped, np.uint32), flipped]
    (made,) = digests(
        [[jax.device_put(copy, d) for copy, d in zip(copies, jax.devices(), strict=False)]]
    )

    for copy, digest in zip(copies, made, strict=True):
        assert (digest == made[0]) == (copy.tobytes() == usual.tobytes())


def test_signs_of_zero_and_the_bits_of_nan(four):
    nan = bits_of(np.array([0x7FC00000, 0x7FC00000], np.uint32), "float32")
    other_nan = bits_of(np.array([0x7FC00000, 0x7FC00001], np.uint32), "float32")

    rx.check_replicas_equal(mirrored(four, nan))
    for usual, other in [
        (jnp.zeros(2), jnp.array([0.0, -0.0])),
        (nan, other_nan),
        (jnp.zeros(2, "bfloat16"), jnp.array([0.0, -0.0], "bfloat16")),
    ]:
        message = diverged(mirrored(four, usual, replica=2, other=other))
        assert "other bits" in message
        assert "1 of 2" in message


def test_the_largest_difference_is_shown(four):
    usual = jnp.array([1.0, 2.0, 3.0, np.inf])
    most, least = np.array([2**31 - 1], np.int32), np.array([-(2**31)], np.int32)
    for copy, other, expected in [
        (usual, [1.5, 2.0, -1.0, np.inf], ["2 of 4", "4 (-1.0 here, 3.0 there)", "[2]"]),
        (usual, [9.0, np.nan, 3.0, 1.0], ["3 of 4", "nan (nan here, 2.0 there)", "[1]"]),
        (usual, [1.0, 2.0, 3.5, 9.0], ["2 of 4", "inf (9.0 here, inf there)", "[3]"]),
        (most, least, ["1 of 1", f"{2**32 - 1} ({-(2**31)} here, {2**31 - 1} there)", "[0]"]),
    ]:
        ((*_, elements, largest, place),) = rows(
            diverged(mirrored(four, copy, replica=1, other=jnp.asarray(other)))
        )
        assert [elements, largest, place] == expected


def test_random_keys(four):
    usual, other = jax.random.key(0), jax.random.key(1)
    rx.check_replicas_equal(mirrored(four, usual))
    message = diverged({"rng": mirrored(four, usual, replica=3, other=other)})
    assert "['rng']" in message
    assert "key<" in message


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_arrays(four, shape):
    rx.check_replicas_equal(mirrored(four, jnp.ones(shape)))


def test_a_scalar_that_differs_has_no_place(four):
    message = diverged(mirrored(four, jnp.float32(1), replica=1, other=jnp.float32(2)))
    assert rows(message)[0][4:] == ["1 of 1", "1 (2.0 here, 1.0 there)"]


# --- who is named -----------------------------------------------------------------------------


def test_the_replicas_that_differ_from_most(four):
    parts = [jnp.full(2, x) for x in (7.0, 1.0, 1.0, 5.0)]
    found = rows(diverged(four.replica_mesh.from_components(parts)))

    assert [(replica, reference) for _, _, replica, reference, *_ in found] == [
        ("0", "1"),
        ("3", "1"),
    ]


def test_of_two_replicas_the_second():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    (row,) = rows(diverged(strategy.replica_mesh.from_components([jnp.ones(2), jnp.zeros(2)])))

    assert row[2:4] == ["1", "0"]


def test_replicas_in_another_order_than_devices():
    strategy = rx.MirroredStrategy(["cpu:3", "cpu:1", "cpu:2"])
    usual = jnp.ones(2)
    with strategy.scope():
        w = rx.Variable(usual, name="w")
    w._value = strategy.replica_mesh.from_components([2 * usual, usual, usual])

    for value in (w._value, w, strategy):
        assert [row[2:4] for row in rows(diverged(value))] == [["0", "1"]]


def test_the_last_of_400_variables(four):
    shapes = [(3,), (2, 2), (), (5,)]
    with four.scope():
        variables = [rx.Variable(np.ones(shapes[i % 4]), name=f"v{i}") for i in range(400)]
    rx.check_replicas_equal(four)
    rx.check_replicas_equal(variables)

    variables[-1]._value = mirrored(
        four, jnp.ones(5), replica=2, other=jnp.ones(5).at[4].set(1 + 2**-20)
    )

    message = diverged(four)
    assert "1 of 401 mirrored arrays" in message  # The strategy's random stream is one.
    assert [row[:3] for row in rows(message)] == [["v399", "float32[5]", "2"]]
    assert "[399] (variable v399)" in diverged(variables)


def test_many_differing_arrays_make_a_short_table(four):
    state = [mirrored(four, jnp.zeros(2), replica=1, other=jnp.ones(2)) for _ in range(30)]
    message = diverged({"state": state})

    assert "30 of 30 mirrored arrays. The first 20 of 30 copies:" in message
    assert len(rows(message)) == 20


def test_a_variable_after_steps_in_both_runners(four, runner):
    with four.scope():
        w = rx.Variable(jnp.zeros(3), name="w")

    def replica_step(x):
        w.assign_add(rx.get_replica_context().all_reduce("mean", x))

    step = runner(lambda x: four.run(replica_step, args=(x,)))
    for _ in range(40):
        step(rx.PerReplica([jnp.full(3, float(i)) for i in range(N)]))
    rx.check_replicas_equal(four)
    rx.check_replicas_equal([w])
    for _ in range(2):  # What was looked at can still be given away.
        step(rx.PerReplica([jnp.full(3, float(i)) for i in range(N)]))
    np.testing.assert_allclose(w.value, 42 * 1.5)


# --- what is compared --------------------------------------------------------------------------


def test_everything_mirrored_in_a_tree(four):
    with four.scope():
        w = rx.Variable(jnp.ones(3), name="w")
    unequal = mirrored(four, jnp.ones(2), replica=1, other=jnp.zeros(2))
    spec = NamedSharding(four.replica_mesh.mesh, PartitionSpec("replica"))
    others = {
        "per replica": rx.PerReplica([1, 2, 3, 4]),
        "components": rx.PerReplica([unequal, unequal, unequal, unequal]),
        "sharded": jax.device_put(jnp.arange(4.0), spec),
        "number": 1.0,
        "host": np.ones(3),
        "one": jnp.ones(3),
        "none": None,
    }

    rx.check_replicas_equal({"w": w, **others})
    assert "['a']" in diverged({"w": w, "a": rx.Mirrored(unequal), **others})
    assert "['rows'].values" in diverged(
        {"w": w, "rows": rx.IndexedSlices(unequal, mirrored(four, jnp.arange(2))), **others}
    )


def test_arrays_on_other_meshes_and_shardings(four):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec())
    parts = [jnp.zeros(2), jnp.zeros(2), jnp.ones(2), jnp.zeros(2)]
    placed = [jax.device_put(x, d) for x, d in zip(parts, mesh.devices.flat, strict=True)]
    array = jax.make_array_from_single_device_arrays((2,), sharding, placed)
    partly = jax.device_put(jnp.arange(2.0), NamedSharding(mesh, PartitionSpec("x")))

    rx.check_replicas_equal([jax.device_put(jnp.ones(2), sharding), partly])
    assert [row[2] for row in rows(diverged([partly, array]))] == ["2"]


@pytest.mark.parametrize(
    "tree",
    [
        {},
        None,
        1.0,
        {"a": np.ones(2), "b": "text"},
        [rx.PerReplica([1.0, 2.0])],
        rx.Mirrored(3.0),
        object(),
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_a_check_of_nothing_is_no_success(tree):
    with pytest.raises(rx.errors.InvalidArgumentError, match="nothing to compare"):
        rx.check_replicas_equal(tree)


def test_a_plain_array_or_variable_has_one_copy(four):
    plain = rx.Variable(1.0, name="plain")
    for tree in (jnp.ones(2), jax.device_put(1.0, SingleDeviceSharding(jax.devices()[1])), plain):
        with pytest.raises(rx.errors.InvalidArgumentError, match="nothing to compare"):
            rx.check_replicas_equal(tree)
    with pytest.raises(rx.errors.InvalidArgumentError, match="no mirrored variables"):
        rx.check_replicas_equal(four)


def test_one_replica_is_equal_to_itself():
    strategy = rx.OneDeviceStrategy("cpu:1")
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
    state = strategy.run(lambda: jnp.ones(2))

    for value in (strategy, [w], w):
        rx.check_replicas_equal(value)
    assert state.shape == (2,)


def test_sync_on_read_variables_are_left_out(four):
    with four.scope():
        seen = rx.Variable(0.0, name="seen", synchronization="on_read", aggregation="sum")
    four.run(seen.assign_add, args=(rx.PerReplica([1.0, 2.0, 3.0, 4.0]),))
    for value in (four, [seen]):
        with pytest.raises(rx.errors.InvalidArgumentError, match="nothing to compare"):
            rx.check_replicas_equal(value)

    with four.scope():
        w = rx.Variable(0.0, name="w")
    rx.check_replicas_equal(four)
    rx.check_replicas_equal([seen, w])


def test_a_donated_array_is_named(four):
    state = mirrored(four, jnp.ones(2))
    state.delete()
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"deleted arrays: \['w'\]"):
        rx.check_replicas_equal({"w": state})


# --- where it may be called --------------------------------------------------------------------


def test_not_in_replica_context_nor_in_a_merge_call(four, runner):
    with four.scope():
        rx.Variable(0.0, name="w")

    def merged():
        ctx = rx.get_replica_context()
        return ctx.merge_call(rx.check_replicas_equal)

    for fn in (lambda: rx.check_replicas_equal(four), merged):
        with pytest.raises(rx.errors.ContextError, match="between steps"):
            runner(lambda fn=fn: four.run(fn))()


def test_not_while_something_is_traced(four):
    with four.scope():
        w = rx.Variable(jnp.ones(2), name="w")

    for trace in (rx.function, jax.jit):
        with pytest.raises(rx.errors.ContextError, match="between steps"):
            trace(lambda: rx.check_replicas_equal([w]))()
    with pytest.raises(rx.errors.ContextError, match="between steps"):
        jax.grad(lambda x: (rx.check_replicas_equal(x), x)[1])(1.0)


def test_the_random_stream_of_a_strategy(four):
    with four.scope():
        w = rx.Variable(jnp.ones(2), name="w")
    stream = four.random_stream._state
    usual = np.array(stream.value)
    stream._value = mirrored(four, usual, replica=1, other=usual + np.array([0, 1], np.uint32))

    assert "random stream of" in diverged(four)
    rx.check_replicas_equal([w])


def test_in_the_scope_of_the_strategy(four):
    with four.scope():
        w = rx.Variable(jnp.ones(2), name="w")
        rx.check_replicas_equal(four)
        rx.check_replicas_equal([w])
