"""Variables of which each replica has a value of its own (ON_READ)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import replicax as rx

NONE, FIRST, MEAN, SUM = "none", "only_first_replica", "mean", "sum"
AGGREGATIONS = [NONE, FIRST, MEAN, SUM]
READABLE = [FIRST, MEAN, SUM]


@pytest.fixture
def make(strategy):
    """`make(aggregation, value=0.0)`: a sync-on-read variable named `v`."""

    def create(aggregation, value=0.0, **options):
        with strategy.scope():
            return rx.Variable(
                value, name="v", synchronization="on_read", aggregation=aggregation, **options
            )

    return create


@pytest.fixture
def of_each(make):
    """Four variables, one of each aggregation, in the order of AGGREGATIONS."""
    return [make(aggregation) for aggregation in AGGREGATIONS]


def copies(variable):
    return [np.asarray(value).tolist() for value in variable.values]


def mirrored(n):
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(n)])


# --- what it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_its_kind(make, aggregation):
    v = make(aggregation)
    assert type(v) is rx.SyncOnReadVariable
    assert isinstance(v, (rx.Variable, rx.DistributedValues))
    assert not isinstance(v, (rx.Mirrored, rx.PerReplica))
    assert v.synchronization is rx.VariableSynchronization.ON_READ
    assert v.aggregation is rx.VariableAggregation.parse(aggregation)


def test_its_facts_are_those_of_one_copy(make):
    v = make(SUM, jnp.zeros((3, 4), jnp.bfloat16), trainable=False)
    assert (v.shape, v.dtype, v.ndim, v.size, v.trainable) == ((3, 4), jnp.bfloat16, 2, 12, False)
    assert repr(v) == "<SyncOnReadVariable 'v' bfloat16[3, 4]>"


def test_its_copies_lie_on_the_replicas_devices(make, strategy):
    v = make(SUM)
    for _ in range(2):
        devices = [next(iter(value.devices())) for value in v.values]
        assert devices == list(strategy.replica_mesh.devices)
        strategy.run(lambda: v.assign_add(1.0))


def test_outside_of_every_scope_it_is_a_plain_variable():
    v = rx.Variable(1.0, synchronization="on_read", aggregation="sum")
    assert type(v) is rx.Variable
    assert float(v) == 1.0


# --- reads ---------------------------------------------------------------------------------------

EXPECTED = {FIRST: 1.0, MEAN: 10.5, SUM: 21.0}


@pytest.fixture(params=READABLE)
def readable(request, make):
    """A variable whose copies are 1 and 20, and what it reads as."""
    v = make(request.param)
    v.assign(rx.PerReplica([1.0, 20.0]))
    return v, EXPECTED[request.param]


def test_read_across_replicas(readable, strategy):
    v, expected = readable
    with strategy.scope():
        inside = [v.value, v.read_value()]
    for value in [v.value, v.read_value(), *inside]:
        assert isinstance(value, jax.Array)
        assert value.sharding.is_fully_replicated
        assert value.sharding.device_set == set(strategy.replica_mesh.devices)
        assert float(value) == expected


def test_read_in_a_function_across_replicas(readable):
    v, expected = readable
    assert float(rx.function(lambda: v.value)()) == expected
    assert float(rx.function(lambda: v * 2)()) == 2 * expected


def test_read_in_a_function_between_runs(readable, strategy):
    v, expected = readable

    @rx.function
    def step():
        before = v.value
        strategy.run(lambda: v.assign(v * 10))
        middle = v.value
        strategy.run(lambda: v.assign_add(0.0))
        return before, middle, v.value

    assert [float(x) for x in step()] == [expected, 10 * expected, 10 * expected]
    assert float(v) == 10 * expected


def test_read_in_a_replica(run, readable, strategy):
    v, _ = readable
    results = run(lambda: (v.value, v.read_value(), v * 1, jnp.asarray(v)))
    for i, replica in enumerate(strategy.local_results(results)):
        assert [float(x) for x in replica] == [[1.0, 20.0][i]] * 4


def test_a_replica_does_not_see_the_other_copies(run, make):
    v = make(SUM)
    with pytest.raises(rx.errors.ContextError, match="What to do"):
        run(lambda: v.values[0])


def test_read_in_a_merge_call(run, readable):
    v, expected = readable

    def merge_fn(strategy):
        return v.value, v.read_value(), strategy.reduce("sum", v, axis=None)

    def replica_fn():
        return rx.get_replica_context().merge_call(merge_fn)

    assert [float(x) for x in run(replica_fn)] == [expected, expected, 21.0]


def test_a_merge_call_sees_what_the_replica_wrote(run, readable):
    v, expected = readable

    def replica_fn():
        v.assign(v * 10)
        return rx.get_replica_context().merge_call(lambda strategy: v.value)

    assert float(run(replica_fn)) == 10 * expected


def test_conversions_and_operators(readable):
    v, expected = readable
    for result in [
        np.asarray(v),
        jnp.asarray(v),
        v + 0,
        0 + v,
        v * v / expected,
        np.float32(0) + v,
        jnp.zeros(()) + v,
        0 - (0 - v),
        -v * -1,
        float(v),
        int(v) if expected != 10.5 else 10.5,
        complex(v),
    ]:
        np.testing.assert_allclose(result, expected)
    assert bool(v)
    assert v > 0
    assert f"{v:.1f}" == f"{expected:.1f}"


def test_elements_are_those_of_the_value(make):
    v = make(SUM, [0.0, 0.0])
    v.assign(rx.PerReplica([jnp.array([1.0, 2.0]), jnp.array([10.0, 20.0])]))
    assert len(v) == 2
    assert [float(x) for x in v] == [11.0, 22.0]
    assert float(v[1]) == 22.0
    np.testing.assert_array_equal(v[::-1], [22, 11])
    np.testing.assert_array_equal(jnp.stack([v, v])[1], [11, 22])


def test_a_numpy_array_of_it_is_a_copy(readable):
    v, expected = readable
    array = np.asarray(v)
    array[...] = 99
    assert float(v) == expected


def test_what_was_read_survives_later_steps(runner, readable, strategy):
    v, expected = readable
    step = runner(lambda: strategy.run(lambda: v.assign(v * 2)))
    value, values = v.value, v.values
    for _ in range(3):
        step()
    assert float(value) == expected
    assert [float(x) for x in values] == [1.0, 20.0]
    assert float(v) == 8 * expected


READS = {
    "value": lambda v: v.value,
    "read_value": lambda v: v.read_value(),
    "numpy": np.asarray,
    "jax.numpy": jnp.asarray,
    "operator": lambda v: v + 1,
    "float": float,
}


@pytest.mark.parametrize("read", READS)
def test_without_aggregation_it_has_no_common_value(make, read):
    v = make(NONE)
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"`v` was read.*\n.*ON_READ.*\n.*Wha"):
        READS[read](v)


@pytest.mark.parametrize("where", ["function", "merge_call"])
def test_without_aggregation_it_has_no_common_value_elsewhere(runner, make, strategy, where):
    v = make(NONE)

    def replica_fn():
        return rx.get_replica_context().merge_call(lambda _: v.value)

    step = rx.function(lambda: v.value)
    if where == "merge_call":
        step = runner(lambda: strategy.run(replica_fn))
    with pytest.raises(rx.errors.InvalidArgumentError, match="it has no aggregation"):
        step()


def test_without_aggregation_replicas_use_it(run, make, strategy):
    v = make(NONE)
    run(v.assign_add, rx.PerReplica([1.0, 20.0]))
    assert copies(v) == [1.0, 20.0]
    assert [float(x) for x in strategy.local_results(run(lambda: v.value))] == [1.0, 20.0]


def test_integers(make):
    v = make(SUM, 0)
    v.assign(rx.PerReplica([3, 4]))
    assert v.value.dtype == jnp.int32
    assert int(v) == 7
    assert [0] * v.__index__() + [1] == [0] * 7 + [1]


def test_the_mean_of_equal_copies_is_the_copy_bit_for_bit():
    strategy = mirrored(3)
    for value in (0.1, 1 / 3, 1e-40, 3.4e38):
        with strategy.scope():
            v = rx.Variable(jnp.float32(value), synchronization="on_read", aggregation="mean")
        assert float(v.value) == float(jnp.float32(value))


# --- writes in replica context -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda v, x: v.assign(x), [1.0, 20.0]),
        (lambda v, x: v.assign_add(x), [101.0, 120.0]),
        (lambda v, x: v.assign_sub(x), [99.0, 80.0]),
        (lambda v, x: v.assign(3.0), [3.0, 3.0]),
        (lambda v, x: v.assign(v * x), [100.0, 2000.0]),
    ],
)
def test_each_replica_writes_its_own(run, of_each, write, expected):
    for v in of_each:
        v.assign(rx.PerReplica([100.0, 100.0]))
    run(lambda x: [write(v, x) for v in of_each] and None, rx.PerReplica([1.0, 20.0]))
    assert [copies(v) for v in of_each] == [expected] * 4


def test_elements_are_written_by_each_replica(run, make):
    of_each = [make(aggregation, [0.0, 0.0]) for aggregation in AGGREGATIONS]

    def replica_fn(x):
        for v in of_each:
            v.at[1].add(x)
            v.at[0].set(-x)
            v.scatter_add(rx.IndexedSlices(x.reshape(1), np.array([1])))

    run(replica_fn, rx.PerReplica([1.0, 20.0]))
    assert [copies(v) for v in of_each] == [[[-1.0, 2.0], [-20.0, 40.0]]] * 4


def test_a_replica_may_write_alone(make):
    v = make(SUM)

    def replica_fn():
        if rx.get_replica_context().replica_id_in_sync_group == 1:
            v.assign(5.0)

    v.strategy.run(replica_fn)
    assert copies(v) == [0.0, 5.0]


def test_a_mirrored_variable_cannot_be_written_with_it(run, make, strategy):
    v = make(SUM)
    v.assign(rx.PerReplica([1.0, 20.0]))
    with strategy.scope():
        w = rx.Variable(0.0, name="w")
    with pytest.raises(rx.errors.VaryingWriteError, match="`w`"):
        run(lambda: w.assign(v))
    run(lambda: w.assign(rx.get_replica_context().all_reduce("sum", v)))
    assert float(w) == 21.0


def test_a_compiled_step_that_updates_it_does_not_communicate(of_each, make, strategy):
    rows = [make(aggregation, jnp.zeros(4)) for aggregation in AGGREGATIONS]

    @rx.function
    def step(x):
        def replica_fn(x):
            for v, scattered in zip(of_each, rows, strict=True):
                v.assign_add(x.sum())
                scattered.at[1].add(x.sum())
                scattered.assign(scattered * 2)

        strategy.run(replica_fn, args=(x,))

    x = strategy.distribute_values_from_function(lambda _: jnp.ones(3))
    assert list(step.collectives(x)) == []
    assert step.requested_collectives(x) == ()
    step(x)
    assert [copies(v) for v in of_each] == [[3.0, 3.0]] * 4
    assert [copies(v) for v in rows] == [[[0.0, 6.0, 0.0, 0.0]] * 2] * 4


def test_a_compiled_step_that_reads_it_across_replicas_communicates(make, strategy):
    v = make(SUM)

    @rx.function
    def step(x):
        strategy.run(v.assign_add, args=(x,))
        return v.value

    x = rx.PerReplica([1.0, 20.0])
    assert [one.kind for one in step.collectives(x)] == ["all-reduce"]
    assert [float(step(x)) for _ in range(2)] == [21.0, 42.0]


# --- writes across replicas ----------------------------------------------------------------------


@pytest.fixture(params=["outside", "scope", "function", "eager merge", "compiled merge"])
def across(request, strategy):
    """`across(fn)`: call it in cross-replica context, in one of the ways to be there."""

    def replica_fn(fn):
        return rx.get_replica_context().merge_call(lambda strategy: fn())

    def call(fn):
        match request.param:
            case "outside":
                return fn()
            case "scope":
                with strategy.scope():
                    return fn()
            case "function":
                return rx.function(fn)()
            case "eager merge":
                return strategy.run(replica_fn, args=(fn,))
            case _:
                return rx.function(lambda: strategy.run(replica_fn, args=(fn,)))()

    return call


def test_assign(across, of_each):
    for v in of_each:
        v.assign(rx.PerReplica([1.0, 20.0]))
    across(lambda: [v.assign(7.0) for v in of_each] and None)
    assert [copies(v) for v in of_each] == [[7.0, 7.0]] * 3 + [[3.5, 3.5]]
    assert [float(v) for v in of_each[1:]] == [7.0] * 3


def test_assign_add_and_assign_sub_reach_every_copy(across, of_each):
    without_sum = of_each[:3]
    for v in without_sum:
        v.assign(rx.PerReplica([1.0, 20.0]))
    across(lambda: [(v.assign_add(5.0), v.assign_sub(1.0)) for v in without_sum] and None)
    assert [copies(v) for v in without_sum] == [[5.0, 24.0]] * 3


@pytest.mark.parametrize("call", ["assign_add", "assign_sub"])
def test_assign_add_to_a_sum_is_refused(across, make, call):
    v = make(SUM)
    with pytest.raises(rx.errors.InvalidArgumentError, match=rf"`v\.{call}`.*\n.*once a replica"):
        across(lambda: getattr(v, call)(1.0))
    assert copies(v) == [0.0, 0.0]


PER_REPLICA = {
    "numbers": lambda strategy: rx.PerReplica([1.0, 20.0]),
    "NumPy arrays": lambda strategy: rx.PerReplica([np.float32(1), np.float32(20)]),
    "arrays": lambda strategy: rx.PerReplica([jnp.float32(1), jnp.float32(20)]),
    "placed arrays": lambda strategy: strategy.distribute_values_from_function(
        lambda context: [1.0, 20.0][context.replica_id_in_sync_group]
    ),
    "one array": lambda strategy: rx.PerReplica.from_stacked(jnp.array([1.0, 20.0])),
}


@pytest.mark.parametrize("form", PER_REPLICA)
def test_assign_of_a_per_replica_value(across, of_each, strategy, form):
    value = PER_REPLICA[form](strategy)
    across(lambda: [v.assign(value) for v in of_each] and None)
    assert [copies(v) for v in of_each] == [[1.0, 20.0]] * 4


def test_assign_of_what_a_merge_call_was_given(run, of_each):
    def merge_fn(strategy, x):
        for v in of_each:
            v.assign(x)

    run(lambda x: rx.get_replica_context().merge_call(merge_fn, (x,)), rx.PerReplica([1.0, 20.0]))
    assert [copies(v) for v in of_each] == [[1.0, 20.0]] * 4


def test_assign_of_a_step_s_result(runner, of_each, strategy):
    step = runner(lambda x: strategy.run(lambda x: x + 1, args=(x,)))
    result = step(rx.PerReplica([1.0, 20.0]))
    for v in of_each:
        v.assign(result)
    assert [copies(v) for v in of_each] == [[2.0, 21.0]] * 4


def test_assign_of_another_variable_takes_its_value(across, make, strategy):
    v, other = make(MEAN), make(SUM)
    other.assign(rx.PerReplica([1.0, 20.0]))
    across(lambda: v.assign(other))
    assert copies(v) == [21.0, 21.0]


def test_elements_across_replicas(across, make):
    v = make(MEAN, [0.0, 0.0])
    v.assign(rx.PerReplica([jnp.array([1.0, 2.0]), jnp.array([10.0, 20.0])]))
    across(lambda: v.at[1].set(7.0))
    assert copies(v) == [[1.0, 7.0], [10.0, 7.0]]


BAD_VALUES = {
    "too few": (rx.PerReplica([1.0]), "1 components.*2 replicas"),
    "too many": (rx.PerReplica([1.0, 2.0, 3.0]), "3 components.*2 replicas"),
    "shape": (rx.PerReplica([jnp.ones(2), jnp.ones(2)]), r"shape \(2,\)"),
    "one shape": (rx.PerReplica([jnp.float32(1), jnp.ones(2)]), r"shape \(2,\)"),
    "dtype": (rx.PerReplica([1j, 1j]), "complex"),
    "whole": (jnp.ones(2), r"shape \(2,\)"),
}


@pytest.mark.parametrize("bad", BAD_VALUES)
def test_values_that_do_not_fit_are_refused(make, bad):
    value, message = BAD_VALUES[bad]
    v = make(SUM)
    with pytest.raises(rx.errors.InvalidArgumentError, match=message):
        v.assign(value)
    assert copies(v) == [0.0, 0.0]


@pytest.mark.parametrize("call", ["assign_add", "assign_sub"])
def test_a_per_replica_value_can_only_be_assigned(make, call):
    v = make(MEAN)
    with pytest.raises(rx.errors.VaryingWriteError, match="only `assign` gives each copy"):
        getattr(v, call)(rx.PerReplica([1.0, 2.0]))


# --- shares --------------------------------------------------------------------------------------

REPLICAS = [2, 3, 5, 7]
SHARES = settings(max_examples=5, phases=[Phase.generate])  # 256 numbers shrink to nothing simpler
FLOATS = [np.float32, np.float16, jnp.bfloat16]


@pytest.fixture(scope="module")
def sums():
    """`sums(n, dtype)`: a step that assigns 256 numbers to a variable whose copies are summed.

    It returns what is read afterwards, and the shares.
    """
    made = {}

    def find(n, dtype):
        if (n, dtype) not in made:
            with mirrored(n).scope():
                v = rx.Variable(np.zeros(256, dtype), synchronization="on_read", aggregation="sum")

            @rx.function
            def step(values):
                v.assign(values)
                return v.value, v.per_replica()

            made[n, dtype] = step
        return made[n, dtype]

    def assign(n, values):
        read, shares = find(n, values.dtype)(values)
        return np.asarray(read), np.asarray(shares.stacked)

    return assign


def bit_patterns(n):
    """256 numbers, as the bits of unsigned integers of n bytes."""
    return st.binary(min_size=256 * n, max_size=256 * n).map(
        lambda data: np.frombuffer(data, {2: np.uint16, 4: np.uint32}[n])
    )


@pytest.mark.parametrize("n", REPLICAS)
@SHARES
@given(bit_patterns(4))
def test_integer_shares(sums, n, values):
    values = values.view(np.int32)
    read, shares = sums(n, values)
    np.testing.assert_array_equal(read, values)
    shares = shares.astype(np.int64)
    np.testing.assert_array_equal(shares.sum(axis=0), values)
    assert (shares.max(axis=0) - shares.min(axis=0)).max() <= 1
    assert (np.diff(shares, axis=0) <= 0).all()  # the remainder goes to the first replicas


def test_shares_of_seven_over_two_and_four():
    for n, expected in [(2, [4, 3]), (4, [2, 2, 2, 1])]:
        with mirrored(n).scope():
            v = rx.Variable(0, synchronization="on_read", aggregation="sum")
        v.assign(7)
        assert copies(v) == expected


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", REPLICAS)
@SHARES
@given(data=st.data())
def test_floating_shares_add_up_bit_for_bit(sums, n, dtype, data):
    """Any bit pattern but NaN; -0 may become 0, which compares equal."""
    values = data.draw(bit_patterns(jnp.dtype(dtype).itemsize)).view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = np.where(np.isnan(values), dtype(1.5), values)
    read, shares = sums(n, values)
    assert read.dtype == shares.dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(read.astype(np.float64), flushed(values))
    in_turn = np.zeros(256, dtype)
    for share in shares:  # in replica order, each sum rounded to the dtype
        in_turn = (in_turn + share).astype(dtype)
    np.testing.assert_array_equal(in_turn.astype(np.float64), flushed(values))


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_of_which_no_replica_can_hold_an_equal_share(sums, n, dtype):
    smallest = np.float64(jnp.finfo(dtype).tiny)
    values = np.resize((smallest * (1 + np.arange(8) / 64)).astype(dtype), 256)
    read, shares = sums(n, values)
    np.testing.assert_array_equal(read, values)
    np.testing.assert_array_equal(shares.sum(axis=0, dtype=np.float64), values.astype(np.float64))


@pytest.mark.parametrize("value", [0.1, 1 / 3, -3.3e38, 1e-30])
def test_floating_shares_outside_of_a_step(value):
    with mirrored(3).scope():
        v = rx.Variable(0.0, synchronization="on_read", aggregation="sum")
    v.assign(value)
    first, second, third = (np.asarray(share) for share in v.values)
    assert float(v) == float(np.float32(value)) == first + second + third


def flushed(values):
    """The values as float64; XLA's CPU arithmetic flushes subnormal float32 numbers to zero."""
    wide = values.astype(np.float64)
    if values.dtype == np.float16:
        return wide
    return np.where(np.abs(wide) < np.finfo(np.float32).tiny, 0.0, wide)


@pytest.mark.parametrize("n", REPLICAS)
def test_what_is_not_finite_is_kept(sums, n):
    values = np.float32([np.inf, -np.inf, np.nan, 1.0] * 64)
    np.testing.assert_array_equal(sums(n, values)[0], values)


def test_shares_are_of_like_size(sums):
    np.testing.assert_allclose(sums(7, np.full(256, 0.7, np.float32))[1], 0.1, rtol=1e-5)


def test_complex_shares():
    with mirrored(3).scope():
        v = rx.Variable(0j, synchronization="on_read", aggregation="sum")
    v.assign(0.1 + 0.7j)
    assert complex(v.value) == complex(np.complex64(0.1 + 0.7j))


def test_the_first_value_of_a_sum_is_that_of_each_copy(make):
    v = make(SUM, 2.0)
    assert copies(v) == [2.0, 2.0]


# --- reduce, gather and local results ------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "expected"), [("sum", 21.0), ("mean", 10.5), (rx.ReduceOp.MAX, 20.0)]
)
def test_reduce_combines_the_copies_whatever_the_aggregation(
    runner, of_each, strategy, op, expected
):
    for v in of_each:
        v.assign(rx.PerReplica([1.0, 20.0]))
    reduce = runner(lambda: strategy.reduce(op, of_each, axis=None))
    assert [float(x) for x in reduce()] == [expected] * 4


@pytest.mark.parametrize("aggregation", [NONE, SUM])
def test_reduce_over_an_axis(runner, make, strategy, aggregation):
    v = make(aggregation, [1.0, 2.0])
    reduce = runner(lambda: strategy.reduce("sum", {"v": v}, axis=0))
    assert float(reduce()["v"]) == 6.0


@pytest.mark.parametrize("aggregation", [NONE, SUM])
def test_gather(runner, make, strategy, aggregation):
    v = make(aggregation, [1.0, 2.0])
    v.assign(rx.PerReplica([jnp.array([1.0, 2.0]), jnp.array([10.0, 20.0])]))
    np.testing.assert_array_equal(runner(lambda: strategy.gather(v, axis=0))(), [1, 2, 10, 20])


@pytest.mark.parametrize("aggregation", [NONE, SUM])
def test_local_results(runner, make, strategy, aggregation):
    v = make(aggregation)
    v.assign(rx.PerReplica([1.0, 20.0]))
    local = runner(lambda: strategy.local_results({"v": v, "k": 3.0}))
    assert [float(result["v"]) for result in local()] == [1.0, 20.0]


def test_reduce_and_local_results_in_a_merge_call(run, make):
    v = make(NONE)
    v.assign(rx.PerReplica([1.0, 20.0]))

    def merge_fn(strategy):
        first, second = strategy.local_results(v)
        return first, second, strategy.reduce("sum", v, axis=None)

    def replica_fn():
        return rx.get_replica_context().merge_call(merge_fn)

    assert [float(x) for x in run(replica_fn)] == [1.0, 20.0, 21.0]


def test_one_replica():
    strategy = mirrored(1)
    for aggregation in READABLE:
        with strategy.scope():
            v = rx.Variable(2.0, synchronization="on_read", aggregation=aggregation)
        v.assign(3.0)
        rx.function(lambda v=v: strategy.run(lambda: v.assign_add(4.0)))()
        assert float(v) == 7.0
        assert copies(v) == [7.0]


def test_another_strategy_does_not_use_it(runner, make, other):
    v = make(SUM)
    step = runner(lambda: other.run(lambda: v.assign_add(1.0)))
    with pytest.raises(rx.errors.MixedStrategiesError, match="`v`"):
        step()
