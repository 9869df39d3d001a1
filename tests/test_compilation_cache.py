"""Compiled programs that are kept for the next start."""

from __future__ import annotations

import re

import pytest

import replicax as rx
from replicax import _compilation_cache

LATE = """
import jax, jax.numpy as jnp, sys
import replicax as rx

jnp.ones(3).sum()  # JAX has looked for a folder by now
rx.set_compilation_cache(sys.argv[-1])
for _ in range(2):
    rx.function(lambda x: jnp.tanh(x @ x.T).sum())(jnp.ones((4, 4)))
rx.set_compilation_cache(None)
rx.function(lambda x: jnp.tanh(x @ x.T).sum())(jnp.ones((5, 5)))
"""


def test_a_folder_may_be_named_at_any_time(run_python, tmp_path):
    program = LATE.replace("sys.argv[-1]", repr(str(tmp_path / "made")))
    # Whatever the machine takes to compile it.
    settings = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "REPLICAX_LOG": "info"}

    done = run_python(program, **settings)

    assert done.returncode == 0, done.stderr
    assert re.findall("compile cache: (.*)", done.stderr) == ["miss", "hit", "not in use"]
    assert list((tmp_path / "made").glob("jit_*"))


def test_what_is_no_folder_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(rx.errors.ArgumentTypeError, match="given 3, a int"):
        rx.set_compilation_cache(3)
    with pytest.raises(rx.errors.InvalidArgumentError, match="set_compilation_cache"):
        rx.set_compilation_cache(file)
    with pytest.raises(rx.errors.InvalidArgumentError, match="REPLICAX_COMPILATION_CACHE"):
        _compilation_cache.apply_environment({"REPLICAX_COMPILATION_CACHE": str(file)})
