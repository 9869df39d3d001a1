"""Where the current thread is in JAX's tracing."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable

import jax

# Whether objects of a type are arrays that exist: no tracers, and nothing of numpy. Kept for each
# type, because `isinstance(x, jax.Array)` runs Python code, which is too slow for each step.
is_concrete: Callable[[type], bool] = functools.cache(lambda kind: issubclass(kind, jax.Array))


def trace_level() -> object:
    """An object that compares equal for equal levels of tracing in this thread."""
    # Imported late: `jax.extend` brings Pallas along, which doubles the time to import replicax.
    from jax.extend.core import get_opaque_trace_state  # noqa: PLC0415

    return get_opaque_trace_state(convention="nnx")


@functools.cache
def outermost_level() -> object:
    """The level outside of every trace, which all threads share."""
    with concurrent.futures.ThreadPoolExecutor(1) as fresh:  # No trace runs in a new thread.
        return fresh.submit(trace_level).result()


def is_staged(level: object) -> bool:
    """Whether a program is being traced, below ``level``, that JAX may keep and run again.

    True inside `jax.jit` and `jax.lax.scan`, for example; false inside `jax.grad` alone, where
    values are at hand.
    """
    if trace_level() == level:
        return False
    return isinstance(jax.lax.full((), 0), jax.core.Tracer)
