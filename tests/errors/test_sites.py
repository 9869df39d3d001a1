from __future__ import annotations

import threading

import jax
import jax.numpy as jnp

from replicax.collectives import ReduceOp
from replicax.errors import site_of_thread, site_of_traceback


def fail():
    ReduceOp.parse("avg")  # Raises below this line, inside the library.


def test_the_innermost_user_line_of_a_traceback():
    try:
        fail()
    except ValueError as error:
        site = site_of_traceback(error.__traceback__)
    assert site.function == "fail"
    assert site.line == fail.__code__.co_firstlineno + 1
    assert site.file == __file__


def test_lines_of_jax_are_passed_over():
    def add(x):
        return x + jnp.ones(3)

    try:
        jax.jit(add)(jnp.ones(2))
    except TypeError as error:
        site = site_of_traceback(error.__traceback__)
    assert site.function == "add"


def test_no_traceback_and_no_thread_have_no_line():
    assert site_of_traceback(None) is None
    assert site_of_thread(None) is None
    assert site_of_thread(threading.get_ident()).function == (
        "test_no_traceback_and_no_thread_have_no_line"
    )


def test_the_line_where_another_thread_is():
    ready, release = threading.Event(), threading.Event()

    def wait_here():
        ready.set()
        release.wait(10)

    thread = threading.Thread(target=wait_here)
    thread.start()
    ready.wait(10)
    try:
        assert site_of_thread(thread.ident).function == "wait_here"
    finally:
        release.set()
        thread.join()
