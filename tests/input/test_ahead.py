"""Batches are placed ahead of the step, by a thread that ends with its iterator."""

from __future__ import annotations

import gc
import threading
import time

import jax
import numpy as np
import pytest

import replicax as rx


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Counted:
    """An endless source that notes how many batches were asked for, and by which threads."""

    def __init__(self):
        self.taken, self.threads = 0, set()

    def __iter__(self):
        while True:
            self.threads.add(threading.current_thread())
            self.taken += 1
            yield np.full(2, self.taken)


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_as_many_batches_as_asked_for_are_ready(strategy, prefetch):
    source = Counted()
    batches = iter(strategy.distribute_dataset(source, rx.InputOptions(prefetch=prefetch)))
    assert source.taken == 0
    next(batches)
    # One more is in the hands of the thread, which waits for room.
    wait_for(lambda: source.taken == prefetch + 2)
    time.sleep(0.02)
    assert source.taken == prefetch + 2
    assert threading.current_thread() not in source.threads


def test_without_prefetch_there_is_no_thread(strategy):
    source = Counted()
    batches = iter(strategy.distribute_dataset(source, rx.InputOptions(prefetch=0)))
    next(batches)
    assert source.taken == 1
    assert source.threads == {threading.current_thread()}


@pytest.mark.parametrize("end", ["closed", "collected", "exhausted", "failed", "set"])
def test_the_thread_ends_with_the_iterator(strategy, end):
    before = set(threading.enumerate())

    def source():
        yield from (np.arange(2) for _ in range(20))
        if end == "failed":
            raise KeyError("row")

    class Source:
        def __iter__(self):
            return source()

    batches = iter(strategy.distribute_dataset(Source()))
    next(batches)
    assert set(threading.enumerate()) - before
    if end == "closed":
        batches.close()
    elif end == "collected":
        del batches
        gc.collect()
    elif end == "exhausted":
        assert len(list(batches)) == 19
    elif end == "failed":
        with pytest.raises(KeyError):
            list(batches)
    else:
        batches.set_state(batches.get_state())
    wait_for(lambda: not set(threading.enumerate()) - before)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_exception_comes_in_its_turn_with_its_own_type(strategy, prefetch):
    class BrokenError(LookupError):
        pass

    def source():
        yield np.arange(2)
        yield np.arange(2)
        raise BrokenError("row 4")

    batches = iter(strategy.distribute_dataset(source(), rx.InputOptions(prefetch=prefetch)))
    next(batches)
    next(batches)
    for again in (False, True):  # Going on does not look like the end of the data.
        with pytest.raises(BrokenError, match="row 4") as caught:
            next(batches)
        where = caught.traceback[-1].name
        assert where == ("_failed" if again else "source")  # at first as it was raised


@pytest.mark.parametrize("prefetch", [0, 2])
def test_after_an_error_the_same_step_is_asked_for_again(strategy, prefetch):
    """An iterator that looked ended would lose the rows that remain."""
    failures = [OSError("for once")]

    class Flaky:
        def __iter__(self):
            for step in range(5):
                if step == 2 and failures:
                    raise failures.pop()
                yield np.full(2, step)

    batches = iter(strategy.distribute_dataset(Flaky(), rx.InputOptions(prefetch=prefetch)))
    found = [int(next(batches).stacked[0, 0]) for _ in range(2)]
    with pytest.raises(OSError, match="for once"):
        next(batches)
    found += [int(batch.stacked[0, 0]) for batch in batches]
    assert found == [0, 1, 2, 3, 4]


INTERRUPTED = """
    import os, signal, threading, time
    import jax
    jax.config.update("jax_num_cpu_devices", 2)
    import numpy as np, replicax as rx

    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def source():
        for step in range(6):
            if step == 3 and waits:
                waits.clear()
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                time.sleep(1)
            yield np.full(2, step)

    class Source:
        def __iter__(self):
            return source()

    for prefetch in (0, 2):
        for data in (Source(), source()):
            batches = iter(strategy.distribute_dataset(data, rx.InputOptions(prefetch=prefetch)))
            found, waits = [], [True]
            while True:
                try:
                    found.append(int(np.asarray(next(batches).stacked)[0, 0]))
                except KeyboardInterrupt:
                    found.append("^C")
                except StopIteration:
                    break
                except rx.errors.DataLossError:
                    found.append("refused")
                    break
            print(prefetch, *found)
"""


def test_an_interrupt_loses_no_batch_in_silence(run_python):
    done = run_python(INTERRUPTED)
    lines = done.stdout.splitlines()
    whole = "0 1 2 ^C 3 4 5"
    assert (done.returncode, done.stderr) == (0, "")
    # A generator that runs in the loop itself is stopped by the interrupt, which is no end.
    assert lines == [f"0 {whole}", "0 0 1 2 ^C refused", f"2 {whole}", f"2 {whole}"]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_source_may_write_into_the_batch_it_gave(strategy, prefetch):
    class Reusing:
        def __iter__(self):
            batch = np.zeros((4, 1000), np.float32)
            for step in range(20):
                batch[:] = step
                yield batch

    dataset = strategy.distribute_dataset(Reusing(), rx.InputOptions(prefetch=prefetch))
    for step, batch in enumerate(dataset):
        assert (np.asarray(batch.stacked) == step).all()


def test_a_source_of_a_pipeline_with_a_stream_of_its_own_may_do_so_too():
    """Rows wait there until a global batch is complete."""

    def reusing():
        rows = np.zeros(3)
        for step in range(4):
            rows[:] = step
            yield rows

    batches = rx.data.from_iterable(reusing)
    # What is told of batches that are made elsewhere.
    batches._batch_size = 4
    plan = rx.input.plan_input(batches, 1, rx.InputOptions(policy="off"), num_pipelines=2)
    found = [batch.stacked[0].ravel().tolist() for _, batch in plan.read(0, 0)]
    assert found == [[0, 0], [0, 1], [1, 1], [2, 2], [2, 3], [3, 3]]


def test_the_thread_sees_the_settings_of_jax(strategy):
    with jax.enable_x64(True):
        batches = [batch.stacked.dtype for batch in strategy.distribute_dataset([np.zeros(2)] * 3)]
    assert batches == ["float64"] * 3


def test_no_row_is_lost_with_an_iterator_over_a_generator(strategy):
    dataset = strategy.distribute_dataset(np.full(2, i) for i in range(9))
    found = []
    for _ in range(3):
        for batch, _ in zip(dataset, range(3), strict=False):
            found.append(int(batch.stacked[0, 0]))
            if len(found) % 3 == 0:
                break
    assert found == list(range(9))


def test_a_training_loop_is_not_stopped_by_placing():
    """Placing runs no program, so it cannot take the threads that collectives wait for."""
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(4)])
    x = np.random.default_rng(0).normal(size=(800, 8)).astype(np.float32)
    with strategy.scope():
        w = rx.Variable(np.zeros(8, np.float32))

    @rx.function
    def train_step(batch):
        def step(batch):
            ctx = rx.get_replica_context()
            for _ in range(5):
                w.assign(w.value + ctx.all_reduce("mean", batch.mean(0)) / 1000)

        strategy.run(step, args=(batch,))

    dataset = strategy.distribute_dataset(x, rx.InputOptions(global_batch_size=16, prefetch=4))
    for _ in range(4):
        for batch in dataset:
            train_step(batch)
    assert len(dataset) * 4 == 200
    expected = x.reshape(50, 16, 8).mean(1).sum(0) * 4 * 5 / 1000
    np.testing.assert_allclose(w.value, expected, rtol=1e-4, atol=1e-6)


def test_a_program_ends_while_batches_are_placed(run_python):
    done = run_python("""
        import jax
        jax.config.update("jax_num_cpu_devices", 2)
        import numpy as np, replicax as rx
        strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        rows = np.zeros((4000, 500))
        options = rx.InputOptions(global_batch_size=4, prefetch=500)
        batches = iter(strategy.distribute_dataset(rows, options))
        next(batches)
        print("end")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
