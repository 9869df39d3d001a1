"""JAX's settings of the current thread, carried into the threads that work for it.

JAX keeps settings such as `jax.enable_x64(True)` or `jax.default_matmul_precision("float32")` for
each thread. A replica function must see those of the thread that called `strategy.run`, and a
dataset those of the thread that iterates it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax

# Context manager of jax -> the name of its setting.
_SETTINGS = {
    "debug_infs": "jax_debug_infs",
    "debug_key_reuse": "jax_debug_key_reuse",
    "debug_nans": "jax_debug_nans",
    "default_matmul_precision": "jax_default_matmul_precision",
    "default_prng_impl": "jax_default_prng_impl",
    "disable_jit": "jax_disable_jit",
    "enable_x64": "jax_enable_x64",
    "legacy_prng_key": "jax_legacy_prng_key",
    "log_compiles": "jax_log_compiles",
    "no_tracing": "jax_no_tracing",
    "numpy_dtype_promotion": "jax_numpy_dtype_promotion",
    "numpy_rank_promotion": "jax_numpy_rank_promotion",
    "threefry_partitionable": "jax_threefry_partitionable",
    "transfer_guard": "jax_transfer_guard",
}


def current_settings() -> dict[str, Any]:
    """The settings of this thread, by the name of their context manager."""
    return {
        name: getattr(jax.config, setting)
        for name, setting in _SETTINGS.items()
        if hasattr(jax, name)
    }


@contextlib.contextmanager
def settings(values: Mapping[str, Any]) -> Iterator[None]:
    """Use the given settings for the length of a ``with`` block."""
    mine = current_settings()
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            if value is not None and value != mine[name]:
                stack.enter_context(getattr(jax, name)(value))
        yield
