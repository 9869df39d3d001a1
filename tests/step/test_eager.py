"""The eager runner: what only it allows, and how replicas that disagree are reported."""

from __future__ import annotations

import contextvars
import logging
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


def context():
    return rx.get_replica_context()


def replica_id():
    return context().replica_id_in_sync_group


# --- Python works ------------------------------------------------------------------------------


def test_replicas_run_in_order_and_switch_at_collectives(strategy, capsys):
    def replica_fn():
        print("start", replica_id())  # noqa: T201 - that is what is asked
        context().all_reduce("sum", 1.0)
        print("end", replica_id())  # noqa: T201

    strategy.run(replica_fn)
    assert capsys.readouterr().out.split("\n")[:-1] == ["start 0", "start 1", "end 0", "end 1"]


def test_python_control_flow(strategy):
    def replica_fn(x):
        total = 0.0
        while total < float(x):
            total += 1
        if replica_id() == 0:
            total += 100
        return total

    assert strategy.run(replica_fn, args=(rx.PerReplica([2.5, 5.0]),)).values == (103.0, 5.0)


def test_control_flow_on_equal_values_around_collectives(strategy):
    def replica_fn(x):
        while float(context().all_reduce("mean", x)) < 10:
            x = x * 2
        return x

    result = strategy.run(replica_fn, args=(rx.PerReplica([1.0, 3.0]),))
    assert [float(x) for x in result.values] == [8.0, 24.0]


def test_uneven_shapes(strategy):
    def replica_fn():
        rows = jnp.full(replica_id() + 1, replica_id() + 1.0)
        return rows, context().all_gather(rows, 0), context().global_mean(rows)

    rows, gathered, mean = strategy.run(replica_fn)
    assert [x.shape for x in rows.values] == [(1,), (2,)]
    np.testing.assert_array_equal(gathered, [1, 2, 2])
    assert float(mean) == pytest.approx(5 / 3)


def test_each_replica_computes_on_its_device(strategy):
    seen = []
    strategy.run(lambda: seen.append(next(iter((jnp.ones(1) + 1).devices()))))
    assert seen == list(strategy.replica_mesh.devices)


def test_context_variables_reach_the_replicas(strategy):
    variable = contextvars.ContextVar("variable", default="default")
    token = variable.set("mine")
    try:
        assert strategy.run(variable.get) == "mine"
    finally:
        variable.reset(token)


SETTINGS = {
    "enable_x64": (lambda: jax.enable_x64(True), lambda: str((jnp.ones(1) * 1.0).dtype), "float64"),
    "default_matmul_precision": (
        lambda: jax.default_matmul_precision("float32"),
        lambda: str(jax.config.jax_default_matmul_precision),
        "float32",
    ),
    "numpy_dtype_promotion": (
        lambda: jax.numpy_dtype_promotion("strict"),
        lambda: jax.config.jax_numpy_dtype_promotion,
        "strict",
    ),
    "disable_jit": (jax.disable_jit, lambda: str(jax.config.jax_disable_jit), "True"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_jax_reach_the_replicas(strategy, setting):
    enter, read, expected = SETTINGS[setting]
    outside = strategy.run(read)
    assert outside != expected
    with enter():
        assert strategy.run(read) == expected
    assert strategy.run(read) == outside


def test_collectives_inside_disabled_jit(strategy):
    def replica_fn():
        with jax.disable_jit():
            return jax.jit(lambda x: context().all_reduce("sum", x))(1.0)

    assert float(strategy.run(replica_fn)) == 2.0


def test_the_first_run_logs_one_hint(run_python):
    done = run_python(
        """
        import logging
        import replicax as rx

        records = []
        handler = logging.Handler()
        handler.emit = records.append
        logging.getLogger("replicax").addHandler(handler)
        strategy = rx.MirroredStrategy()
        for _ in range(3):
            strategy.run(lambda: 1.0)
        print([(record.levelname, "@rx.function" in record.getMessage()) for record in records])
        """
    )
    assert done.stdout.strip() == "[('WARNING', True)]", done.stderr


# --- exceptions --------------------------------------------------------------------------------


class MineError(Exception):
    pass


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("error", [MineError("text"), KeyError("key"), SystemExit(3)])
def test_an_exception_on_one_replica_is_raised_as_it_is(strategy, culprit, error):
    def replica_fn():
        if replica_id() == culprit:
            raise error
        context().all_reduce("sum", 1.0)

    before = threading.active_count()
    with pytest.raises(type(error)) as caught:
        strategy.run(replica_fn)
    assert caught.value is error
    (note,) = [n for n in error.__notes__ if f"replica {culprit} of 2" in n]
    assert "test_eager.py" in note
    assert threading.active_count() == before
    assert float(strategy.run(lambda: context().all_reduce("sum", 1.0))) == 2.0


def test_waiting_replicas_run_their_clean_up(strategy):
    cleaned = []

    def replica_fn():
        try:
            if replica_id() == 1:
                raise MineError
            context().all_reduce("sum", 1.0)
        finally:
            cleaned.append(replica_id())

    with pytest.raises(MineError):
        strategy.run(replica_fn)
    assert sorted(cleaned) == [0, 1]


# --- replicas that disagree --------------------------------------------------------------------


def some_skip():
    if replica_id():
        context().all_reduce("sum", 1.0)


def one_more():
    context().all_reduce("sum", 1.0)
    if not replica_id():
        context().all_gather(jnp.ones(2), 0)


def ops():
    context().all_reduce("sum" if replica_id() else "mean", 1.0)


def kinds():
    if replica_id():
        context().all_reduce("sum", jnp.ones(2))
    else:
        context().all_gather(jnp.ones(2), 0)


def axes():
    context().all_gather(jnp.ones((2, 2)), replica_id())


def sources():
    context().broadcast(1.0, source=replica_id())


def shapes():
    context().all_reduce("sum", jnp.ones(2 + replica_id()))


def gathered_shapes():
    context().all_gather(jnp.ones((1, 2 + replica_id())), 0)


def dtypes():
    context().all_reduce("sum", 1 if replica_id() else 1.0)


def keys():
    context().all_reduce("sum", {"a": 1.0} if replica_id() else {"b": 1.0})


def leaves():
    context().all_reduce("sum", [1.0] * (1 + replica_id()))


DISAGREE = {
    some_skip: ["replica 0 finished while replica 1 waited", "replica 1  waiting"],
    one_more: ["replica 1 finished while replica 0 waited", "waiting             2"],
    ops: ["replica 0  all_reduce  MEAN", "replica 1  all_reduce  SUM"],
    kinds: ["replica 0  all_gather", "replica 1  all_reduce"],
    axes: ["replica  axis", "0     0", "1     1"],
    sources: ["source", "0     0       0", "1     0       1"],
    shapes: ["0  float32  (2,)", "1  float32  (3,)"],
    gathered_shapes: ["(1, 2)", "(1, 3)", "gathered axis only"],
    dtypes: ["0  float32", "1  int32"],
    keys: ["0  PyTreeDef({'b': *})", "1  PyTreeDef({'a': *})"],
    leaves: ["0  PyTreeDef([*])", "1  PyTreeDef([*, *])"],
}


@pytest.mark.parametrize("replica_fn", DISAGREE, ids=lambda fn: fn.__name__)
def test_replicas_that_disagree_are_shown_with_their_lines(strategy, replica_fn):
    with pytest.raises(rx.errors.CollectiveMismatchError) as caught:
        strategy.run(replica_fn)
    message = str(caught.value)
    assert [part for part in DISAGREE[replica_fn] if part not in message] == [], message
    assert f"in {replica_fn.__name__}" in message
    assert "test_eager.py:" in message
    assert isinstance(caught.value, ValueError)
    assert float(strategy.run(lambda: context().all_reduce("sum", 1.0))) == 2.0


TRANSFORMED = {
    "jit": lambda: jax.jit(lambda x: context().all_reduce("sum", x))(1.0),
    "scan": lambda: jax.lax.scan(
        lambda c, x: (context().all_reduce("sum", c), x), 1.0, jnp.ones(2)
    ),
    "cond": lambda: jax.lax.cond(
        jnp.bool_(True), lambda x: context().all_reduce("sum", x), lambda x: x, 1.0
    ),
    "vmap": lambda: jax.vmap(lambda x: context().all_reduce("sum", x))(jnp.ones(2)),
}


@pytest.mark.parametrize("transformation", TRANSFORMED)
def test_a_collective_inside_a_transformation_is_refused(strategy, transformation):
    with pytest.raises(rx.errors.UnimplementedError, match="test_eager") as caught:
        strategy.run(TRANSFORMED[transformation])
    assert "rx.function" in str(caught.value)
    assert "jax.disable_jit()" in str(caught.value)


def test_the_gradient_of_a_scattered_maximum_is_not_there(strategy):
    def replica_fn():
        def loss(x):
            return context().reduce_scatter(rx.ReduceOp.MAX, x).sum()

        return jax.grad(loss)(jnp.ones(2))

    with pytest.raises(rx.errors.UnimplementedError, match="MAX or MIN has no gradient"):
        strategy.run(replica_fn)


# --- time-outs ---------------------------------------------------------------------------------


def test_a_replica_that_does_not_arrive_in_time():
    options = rx.CommunicationOptions(timeout_seconds=0.2)
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"], options=options)
    release = threading.Event()

    def replica_fn():
        if replica_id() == 1:
            release.wait(20)
        return context().all_reduce("sum", 1.0)

    start = time.monotonic()
    try:
        with pytest.raises(rx.errors.DeadlineExceededError, match="did not arrive") as caught:
            strategy.run(replica_fn)
        assert time.monotonic() - start < 10
    finally:
        release.set()
    message = str(caught.value)
    assert "Replica 1 did not arrive at collective 1" in message
    assert "within 0.2 s" in message
    assert "replica 0  arrived" in message
    assert isinstance(caught.value, TimeoutError)
    assert float(strategy.run(lambda: context().all_reduce("sum", 1.0))) == 2.0


def test_no_time_out_by_default(strategy):
    assert strategy.communication_options.timeout_seconds is None
    logging.getLogger("replicax").debug("the runner waits for ever")


def test_components_without_arrays_are_handed_on(strategy):
    nothing = rx.PerReplica([None, None])
    assert strategy.run(lambda x: x is None, args=(nothing,)) is True
    assert strategy.run(len, args=(rx.PerReplica([(), ()]),)) == 0
