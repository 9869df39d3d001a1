"""Threads keep the order, hand errors over in their turn, and end with their iterator.

That no thread is left is what the leak police looks for after every test.
"""

from __future__ import annotations

import gc
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


class TroubleError(Exception):
    """An error of the user's own."""


def ours() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("replicax")]


def wait_until_none() -> bool:
    deadline = time.monotonic() + 2
    while ours() and time.monotonic() < deadline:
        time.sleep(0.005)
    return not ours()


def counting(indexed):
    if indexed:
        return rx.data.from_iterable(range(100))
    return rx.data.from_iterable(lambda: iter(range(100)))


@pytest.fixture(params=[True, False], ids=["indices", "in order"])
def numbers(request):
    return counting(request.param)


def slow_for_even(i):
    time.sleep(0.002 if i % 2 == 0 else 0)
    return i


def test_the_order_is_kept(numbers):
    data = numbers.map(slow_for_even, num_parallel=4).prefetch(3)
    assert list(data) == list(range(100))
    assert list(data.open(start=90)) == list(range(90, 100))


def test_calls_run_at_a_time(numbers):
    together = threading.Barrier(3, timeout=10)
    data = numbers.take(6).map(lambda i: together.wait() * 0 + i, num_parallel=3)
    assert list(data) == list(range(6))


def test_prefetch_reads_ahead_and_no_further():
    read = []
    elements = counting(False).map(lambda i: read.append(i) or i).prefetch(3).open()
    assert read == []  # nothing before the first element is asked for
    assert next(elements) == 0
    deadline = time.monotonic() + 2
    while len(read) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    assert read == [0, 1, 2, 3, 4]  # one was taken, three wait, one waits for room
    elements.close()


@pytest.mark.parametrize("parallel", [None, 1, 3])
@pytest.mark.parametrize("prefetch", [False, True])
def test_an_error_comes_in_its_turn(numbers, parallel, prefetch):
    def fails_at_5(i):
        if i == 5:
            raise TroubleError("five")
        return i

    data = numbers.map(fails_at_5, num_parallel=parallel)
    data = data.prefetch() if prefetch else data
    elements = data.open(epoch=2, start=1)
    assert [next(elements) for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(TroubleError, match="five") as caught:
        next(elements)
    assert caught.value.__notes__ == [
        "Raised by `.map(fails_at_5)` for element 5 of epoch 2.",
    ]
    assert list(elements) == []
    assert wait_until_none()  # while the error, with its frames, is still held


def test_an_error_of_the_source_comes_in_its_turn():
    def source():
        yield 0
        yield 1
        raise TroubleError("end")

    data = rx.data.from_iterable(source).map(lambda i: i, num_parallel=4).prefetch()
    elements = iter(data)
    assert [next(elements), next(elements)] == [0, 1]
    with pytest.raises(TroubleError) as caught:
        next(elements)
    assert caught.value.__notes__ == ["Raised by <elements of source> at element 2 of epoch 0."]


def test_the_element_of_an_error_is_numbered_where_the_function_stands():
    data = rx.data.from_arrays(np.arange(9)).map(lambda i: 1 // (7 - i) and i).batch(2)
    with pytest.raises(ZeroDivisionError) as caught, np.errstate(divide="raise"):
        list(rx.data.from_iterable(range(9)).map(lambda i: 1 // (7 - i) and i).batch(2))
    assert "for element 7 of epoch 0" in caught.value.__notes__[0]
    assert len(data) == 5


@pytest.mark.parametrize("end", ["close", "collect", "error outside"])
def test_threads_end_with_the_iterator(numbers, end):
    data = numbers.map(slow_for_even, num_parallel=2).repeat().batch(2).prefetch(2).prefetch(2)
    elements = data.open()
    assert next(elements).tolist() == [0, 1]
    assert ours()
    if end == "close":
        elements.close()
    elif end == "collect":
        del elements
        gc.collect()
    else:
        with pytest.raises(TroubleError):
            leave_a_loop(data)
        del elements
        gc.collect()
    assert wait_until_none(), ours()


def leave_a_loop(data):
    for _ in data:
        raise TroubleError("outside")


def test_an_iterator_that_was_never_asked_starts_no_thread(numbers):
    elements = numbers.map(str, num_parallel=2).prefetch().open()
    assert ours() == []
    del elements


def test_many_iterators_come_and_go(numbers):
    data = numbers.map(lambda i: i, num_parallel=2).prefetch()
    for _ in range(30):
        assert next(iter(data)) == 0
    assert wait_until_none()


@pytest.mark.parametrize("parallel", [None, 2], ids=["one", "two"])
def test_threads_see_the_settings_of_jax(parallel):
    data = rx.data.from_iterable(range(3)).map(lambda i: jnp.float64(i).dtype.name, parallel)
    with jax.enable_x64(True):
        assert list(data.prefetch()) == ["float64"] * 3


def test_a_stuck_element_comes_when_it_comes():
    gate = threading.Event()
    data = rx.data.from_iterable(range(3)).map(lambda i: i if i != 1 else gate.wait(5) and i, 2)
    elements = iter(data)
    assert next(elements) == 0
    gate.set()
    assert list(elements) == [1, 2]


def test_a_program_may_end_while_threads_are_inside_of_jax(run_python):
    """A daemon thread that is there when Python ends would abort the process."""
    done = run_python("""
        import jax, jax.numpy as jnp, numpy as np
        import replicax as rx
        product = jax.jit(lambda x: x @ x)
        def work(i):
            return np.asarray(product(jnp.ones((100, 100)) * i))
        data = rx.data.from_iterable(range(10**6))
        elements = iter(data.map(work, num_parallel=2).prefetch(99).batch(2).prefetch(99))
        next(elements)
        print("end")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_program_ends_although_an_element_is_stuck(run_python):
    done = run_python("""
        import time
        import replicax as rx
        def work(i):
            return time.sleep(1000) if i == 3 else i
        data = rx.data.from_iterable(range(10**6))
        elements = iter(data.map(work, num_parallel=2))
        print(next(elements))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
