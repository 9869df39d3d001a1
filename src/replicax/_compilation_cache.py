"""Compiled programs that are kept in a folder for the next start, by JAX's own cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from replicax.errors import ArgumentTypeError, InvalidArgumentError, describe

ENVIRONMENT_NAME = "REPLICAX_COMPILATION_CACHE"
NOT_IN_USE = "not in use"
_ASKED = "/jax/compilation_cache/compile_requests_use_cache"
_HIT = "/jax/compilation_cache/cache_hits"

# Steps of small models take less than the second from which on JAX keeps a program; what takes
# less than this is compiled as fast as it is found.
_LEAST_SECONDS = 0.05
_JAX_LEAST_SECONDS = 1.0


def set_compilation_cache(folder: str | os.PathLike[str] | None) -> None:
    """Keep compiled programs in a folder, where the next start of the program finds them.

    The Python code of a step is traced and proved at each start; what XLA made of it is read from
    the folder. Several workers, and several programs, may have one folder; of the workers of a job
    worker 0 writes. The environment variable `REPLICAX_COMPILATION_CACHE=folder` does the same
    without a change of the program.

    Programs that took 0.05 s or more to compile are kept, unless
    `jax_persistent_cache_min_compile_time_secs` was set to something else than JAX's default.

    Context: outside. Collective: no. What was compiled before the call is not kept.

    Args:
        folder: A folder, which is made if it is not there; None to keep nothing from now on.

    Raises:
        ArgumentTypeError: `folder` is no path.
        InvalidArgumentError: There can be no such folder.

    Examples:
        >>> import tempfile
        >>> import replicax as rx
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rx.set_compilation_cache(folder)
        ...     rx.set_compilation_cache(None)
    """
    # Here, because it is not needed at import.
    from jax.experimental.compilation_cache import compilation_cache  # noqa: PLC0415

    if not isinstance(folder, (str, os.PathLike, type(None))):
        raise ArgumentTypeError(
            describe(
                f"rx.set_compilation_cache was given {folder!r}, a {type(folder).__name__}.",
                fix="Pass the path of a folder, or None.",
            )
        )
    kept = None if folder is None else _made(os.fspath(folder), "rx.set_compilation_cache")
    # JAX looks once whether there is a cache, at the first program.
    compilation_cache.reset_cache()
    _configure(kept)


def apply_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Applies `REPLICAX_COMPILATION_CACHE`, where it is set. `import replicax` calls it.

    Raises:
        InvalidArgumentError: There can be no such folder.
    """
    folder = environment.get(ENVIRONMENT_NAME, "").strip()
    if folder:
        _configure(_made(folder, ENVIRONMENT_NAME))


def _made(folder: str, asked_by: str) -> str:
    path = Path(folder).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            describe(
                f"Compiled programs cannot be kept in {folder!r} ({asked_by}).",
                why=str(error),
                fix="Name a folder that can be made and written, or none.",
            )
        ) from error
    return str(path)


def _configure(folder: str | None) -> None:
    jax.config.update("jax_compilation_cache_dir", folder)
    least = jax.config.jax_persistent_cache_min_compile_time_secs  # type: ignore[attr-defined]
    if folder is not None and least == _JAX_LEAST_SECONDS:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)


class _Heard(threading.local):
    """What became of the programs that this thread compiles."""

    cache = NOT_IN_USE


_HEARD = _Heard()
_LOCK = threading.Lock()
_LISTENERS: list[Any] = []


def watch() -> None:
    """From now on `found` knows of this thread's next program."""
    with _LOCK:
        if not _LISTENERS:
            jax.monitoring.register_event_listener(_on_event)
            _LISTENERS.append(_on_event)
    _HEARD.cache = NOT_IN_USE


def found() -> str:
    """Whether the last program was in the folder: `"hit"`, `"miss"` or `"not in use"`."""
    return _HEARD.cache


def _on_event(event: str, **_: Any) -> None:
    if event == _ASKED:  # Also where there is no folder; and of a miss only where it writes.
        is_there = jax.config.jax_compilation_cache_dir is not None  # type: ignore[attr-defined]
        _HEARD.cache = "miss" if is_there else NOT_IN_USE
    elif event == _HIT:
        _HEARD.cache = "hit"
