"""What pytest sets before jax starts, for tests/ and for the doctests of src/ alike."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import tempfile
import zlib

import jax
import pytest

# What needs an extra has no doctests where it is missing.
EXTRAS = {"flax": "nnx", "keras": "keras"}
collect_ignore_glob = [
    f"src/replicax/{package}/*"
    for library, package in EXTRAS.items()
    if importlib.util.find_spec(library) is None
]

LOGICAL_CPU_DEVICES = 8
# What a program computes is under test here, not how fast it runs, and most of the time goes into
# compiling small programs. Programs of `run_python`, of the pages and of the README do not inherit
# this, nor does the demo: they are compiled as a user's are.
QUICK_TO_COMPILE = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
)
ONLY_IN_JAX_0_10 = "--xla_cpu_use_fusion_emitters=false"  # XLA ends on flags that it does not know
COMPILED = "REPLICAX_TESTS_COMPILED"
"""Names the folder in which the processes of one test session share what XLA compiled."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `make test-all` and of CI."""
    words = "run all cases of tests that are marked `sampled`, too"
    parser.addoption("--all-cases", action="store_true", help=words)
    words = "of tests with several cases run a half: one with this jax, the other with the other"
    parser.addoption("--half", action="store_true", help=words)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test that is marked `sampled(n)`, take one case in n; other ones on another Python.

    With `--half`, CI's two runs share the cases of other tests: one half runs with the older jax,
    the other with the newer. Slow tests run with the older only, and are not halved.
    """
    if config.getoption("--all-cases"):
        return
    cases: dict[object, list[pytest.Item]] = {}
    for item in items:
        test = (item.path, item.parent, getattr(item, "originalname", ""))
        cases.setdefault(test, []).append(item)
    left_out = set()
    for of_one_test in cases.values():
        marker = of_one_test[0].get_closest_marker("sampled")
        is_slow = of_one_test[0].get_closest_marker("slow") is not None
        is_halved = config.getoption("--half") and not is_slow
        if marker is None and not is_halved:
            continue
        (count,) = marker.args if marker is not None else (2,)
        taken = [item for item in of_one_test if not (_number(item) % count)]
        left_out.update(set(of_one_test) - set(taken or of_one_test[:1]))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _number(item: pytest.Item) -> int:
    is_older = jax.__version__.startswith("0.10.")
    return zlib.crc32(item.nodeid.encode()) + (0 if is_older else 1)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the platform: real accelerators for `-m accelerator`, else logical CPU devices."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("REPLICAX_CPU_DEVICES", None)  # the suite is written for the number below
    os.environ["KERAS_BACKEND"] = "jax"
    jax.config.update("jax_num_cpu_devices", LOGICAL_CPU_DEVICES)
    if config.option.markexpr != "accelerator":
        jax.config.update("jax_platforms", "cpu")
        if COMPILED not in os.environ:  # xdist's workers inherit what this process sets
            flags = [QUICK_TO_COMPILE, os.environ.get("XLA_FLAGS", "")]
            if jax.__version__.startswith("0.10."):
                flags.insert(0, ONLY_IN_JAX_0_10)
            os.environ["XLA_FLAGS"] = " ".join(flags).strip()
    if COMPILED not in os.environ:
        os.environ[COMPILED] = tempfile.mkdtemp(prefix="replicax-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(COMPILED), ignore_errors=True))
    jax.config.update("jax_compilation_cache_dir", os.environ[COMPILED])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
