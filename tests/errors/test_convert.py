"""Errors of other libraries."""

from __future__ import annotations

import asyncio
import concurrent.futures

import jax
import jax.numpy as jnp
import pytest

from replicax.errors import (
    ArgumentTypeError,
    Code,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    ReplicaxError,
    ResourceExhaustedError,
    UnavailableError,
    UnknownError,
    error_class,
    from_exception,
)

ERROR_CODES = [code for code in Code if code is not Code.OK]


@pytest.mark.parametrize("code", ERROR_CODES, ids=lambda code: code.name)
def test_each_status_of_the_runtime(code):
    error = jax.errors.JaxRuntimeError(f"{code.name}: something happened")
    mapped = from_exception(error)
    assert type(mapped) is error_class(code)
    assert mapped.code is code
    assert mapped.__cause__ is error
    assert "something happened" in mapped.message


def test_out_of_memory_of_a_real_program():
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jnp.zeros((1 << 50,)).block_until_ready()
    mapped = from_exception(caught.value)
    assert type(mapped) is ResourceExhaustedError
    assert "What to do:" in mapped.message


def test_a_callback_that_quotes_a_status_is_still_internal():
    def fail(_):
        raise KeyError("UNAVAILABLE: " + "not a status")

    x = jnp.ones(2)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.jit(lambda x: jax.pure_callback(fail, x, x))(x).block_until_ready()
    assert type(from_exception(caught.value)) is InternalError


def test_a_barrier_that_nobody_joins_is_a_deadline():
    # The words of the coordination service, as jax raises them.
    error = jax.errors.JaxRuntimeError(
        "DEADLINE_EXCEEDED: GetKeyValue() timed out with key: cpu:gloo/0,2048/1 and duration: 30s"
    )
    assert type(from_exception(error)) is DeadlineExceededError


@pytest.mark.parametrize(
    ("text", "cls"),
    [
        ("UNKNOWN: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer", "Unavailable"),
        ("UNKNOWN: Gloo all-reduce failed: Read error: Connection reset by peer", "Unavailable"),
        ("UNKNOWN: Gloo all-reduce failed: Timed out waiting 2000ms for recv", "DeadlineExceeded"),
        ("UNKNOWN: Gloo all-reduce failed: something else", "Unknown"),
        (
            "Gloo context initialization failed: DEADLINE_EXCEEDED: GetKeyValue()",
            "DeadlineExceeded",
        ),
        ("UNKNOWN: Connection closed by peer", "Unknown"),
        ("no status at all", "Unknown"),
        ("FAILED_PRECONDITION: Buffer was donated. INTERNAL: no", "FailedPrecondition"),
        ("XUNAVAILABLE: no word", "Unknown"),
    ],
)
def test_texts_of_the_runtime(text, cls):
    assert type(from_exception(jax.errors.JaxRuntimeError(text))).__name__ == f"{cls}Error"


@pytest.mark.parametrize("code", ["", "INTERNAL: ", "UNKNOWN: "])
def test_the_root_cause_of_a_chain_of_programs(code):
    link = f"{code}Error dispatching computation: "
    text = link * 30 + "UNKNOWN: Gloo all-reduce failed: Connection closed by peer"
    assert type(from_exception(jax.errors.JaxRuntimeError(text))) is UnavailableError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TimeoutError("t"), Code.DEADLINE_EXCEEDED),
        (concurrent.futures.TimeoutError("t"), Code.DEADLINE_EXCEEDED),
        (ConnectionResetError("c"), Code.UNAVAILABLE),
        (BrokenPipeError("c"), Code.UNAVAILABLE),
        (EOFError(), Code.UNAVAILABLE),
        (MemoryError(), Code.RESOURCE_EXHAUSTED),
        (FileNotFoundError("f"), Code.NOT_FOUND),
        (FileExistsError("f"), Code.ALREADY_EXISTS),
        (PermissionError("f"), Code.PERMISSION_DENIED),
        (NotImplementedError("n"), Code.UNIMPLEMENTED),
        (StopIteration(), Code.OUT_OF_RANGE),
        (KeyboardInterrupt(), Code.CANCELLED),
        (asyncio.CancelledError(), Code.CANCELLED),
        (concurrent.futures.CancelledError(), Code.CANCELLED),
        (ValueError("v"), Code.INVALID_ARGUMENT),
        (KeyError("k"), Code.UNKNOWN),
        (RuntimeError("r"), Code.UNKNOWN),
        (OSError("o"), Code.UNKNOWN),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value.name,
)
def test_python_errors(error, code):
    mapped = from_exception(error)
    assert type(mapped) is error_class(code)
    assert mapped.__cause__ is error
    assert type(error).__name__ in mapped.message


def test_a_type_error_stays_one():
    mapped = from_exception(TypeError("t"))
    assert type(mapped) is ArgumentTypeError
    assert isinstance(mapped, TypeError)


def test_a_python_error_that_begins_with_a_status():
    # With synchronous dispatch jax raises ValueError with the runtime's text.
    assert type(from_exception(ValueError("INTERNAL: x"))) is InternalError
    assert type(from_exception(ValueError("it said INTERNAL: x"))) is InvalidArgumentError


@pytest.mark.parametrize("cls", [ReplicaxError, UnknownError, UnavailableError])
def test_errors_of_the_tree_come_back_unchanged(cls):
    error = cls("INTERNAL: x")
    assert from_exception(error) is error
    assert error.__cause__ is None
