"""The parity kit: small programs that give the results of tf.distribute, or better ones.

The kit runs its cases in processes of its own, so that a case that hangs or crashes fails alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from .kit.registry import Case
from .kit.run import load_cases

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src"
CASES = load_cases("cases")
# Against hangs only: on an idle machine the longest test takes half a minute.
TIMEOUT_S, CASE_TIMEOUT_S = 120, 100

SYSTEMS = {
    "EagerSystem": (),
    # One program for all replicas: they can neither take different paths nor differ in shape.
    "CompiledSystem": ("concrete_id", "uneven"),
}


# What a test covers: the beginnings of "area/id". One process of the kit serves a whole group, so
# few groups are cheaper; a group takes half a minute at most on an idle machine.
GROUPS = {
    "EagerSystem": {
        "variables": ["variables/", "assign_", "scatter/", "merge_update/", "context/", "run/"],
        "values": ["reduce/", "gather/", "input/", "checkpoint/"],
        "collectives": ["collectives/", "gradients/"],
        "perceptrons": ["training/perceptron"],
        "optimizers": ["training/own_optimizer"],
        "training": ["training/"],
    },
    "CompiledSystem": {
        "variables": ["variables/", "assign_", "context/", "run/", "scatter/", "merge_update/"],
        "values": ["reduce/", "gather/", "input/", "checkpoint/", "collectives/", "gradients/"],
        "training": ["training/"],
    },
}


def group_of(system: str, case: Case) -> str:
    """The first group of a system that a case belongs to."""
    name = f"{case.area}/{case.id}"
    return next(g for g, heads in GROUPS[system].items() if name.startswith(tuple(heads)))


def cases_of(system: str, group: str) -> list[Case]:
    """The cases of a group that are for a system."""
    return [
        case
        for case in CASES
        if group_of(system, case) == group and not set(case.needs) & set(SYSTEMS[system])
    ]


def is_taken(system: str, case: Case) -> bool:
    """Of trainings one in two, other ones in the other system; `make test-all` runs all."""
    half = zlib.crc32(case.id.encode()) + (system == "EagerSystem")
    return case.area != "training" or half % 2 == 0


TESTS = [(system, group) for system, groups in GROUPS.items() for group in groups]


@pytest.fixture(scope="session")
def compiled_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test session, in which the workers share what XLA compiled."""
    return tmp_path_factory.getbasetemp().parent / "compiled-programs-of-the-kit"


def run_kit(compiled_programs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the kit's runner; its workers inherit the environment. Warnings are errors there."""
    ours = ("JAX_", "XLA_", "REPLICAX_", "PYTEST_", "COV_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SOURCE)}
    env["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")  # quick to compile, as in other tests
    env["JAX_COMPILATION_CACHE_DIR"] = str(compiled_programs)
    env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    env["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    # The runner leaves the pipes of its workers to the garbage collector.
    env["PYTHONWARNINGS"] = "error,ignore::ResourceWarning"
    return subprocess.run(
        [sys.executable, "-m", "kit.run", *arguments],
        env=env,
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def test_every_case_is_in_a_test():
    assert len(CASES) == 199
    for system, needs in SYSTEMS.items():
        tested = [case.id for group in GROUPS[system] for case in cases_of(system, group)]
        left_out = [case.id for case in CASES if set(case.needs) & set(needs)]
        assert sorted(tested + left_out) == sorted(case.id for case in CASES)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize(("system", "group"), TESTS)
def test_the_kit_passes(compiled_programs, system, group, request):
    cases = cases_of(system, group)
    if not request.config.getoption("--all-cases"):
        cases = [case for case in cases if is_taken(system, case)]
    ids = [argument for case in cases for argument in ("--id", case.id)]
    timeout = ["--timeout", str(CASE_TIMEOUT_S)]
    ran = run_kit(compiled_programs, "--system", f"adapter:{system}", *timeout, *ids)
    passed = f"{len(cases)} passed, 0 failed"
    assert ran.stdout.splitlines()[-1:] == [passed], ran.stdout + ran.stderr
