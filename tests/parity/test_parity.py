"""The parity kit: small programs that give the results of tf.distribute, or better ones.

A group of cases runs in one process of the kit: to start one for every number of replicas would
take longer than the cases. It names each case that has ended, so the one that hangs is known.
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
TIMEOUT_S = 120

SYSTEMS = {
    "EagerSystem": (),
    # One program for all replicas: they can neither take different paths nor differ in shape.
    "CompiledSystem": ("concrete_id", "uneven"),
}


# What a test covers: the beginnings of "area/id". A process compiles nothing twice, so few groups
# are cheaper.
GROUPS = {
    "EagerSystem": {
        "small": ["training/perceptron", "training/own_optimizer"],
        "training": ["training/"],
        "all else": [""],
    },
    "CompiledSystem": {
        "training": ["training/"],
        "all else": [""],
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
    """With `--half` each training runs in one of the two systems."""
    half = zlib.crc32(case.id.encode()) + (system == "EagerSystem")
    return case.area != "training" or half % 2 == 0


TESTS = [(system, group) for system, groups in GROUPS.items() for group in groups]


@pytest.fixture(scope="session")
def compiled_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test session, in which the workers share what XLA compiled."""
    return tmp_path_factory.getbasetemp().parent / "compiled-programs-of-the-kit"


def run_kit(compiled_programs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the kit's runner. Warnings are errors there."""
    ours = ("JAX_", "XLA_", "REPLICAX_", "PYTEST_", "COV_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SOURCE)}
    env["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")  # quick to compile, as in other tests
    env["JAX_COMPILATION_CACHE_DIR"] = str(compiled_programs)
    env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    env["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    env["PYTHONWARNINGS"] = "error"
    try:
        return subprocess.run(
            [sys.executable, "-m", "kit.run", "--in-process", "--verbose", *arguments],
            env=env,
            cwd=HERE,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as hung:
        said = (hung.stdout or b"").decode()
        pytest.fail(f"no end after {TIMEOUT_S} s; the cases that have ended:\n{said}")


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
    if request.config.getoption("--half"):
        cases = [case for case in cases if is_taken(system, case)]
    ids = [argument for case in cases for argument in ("--id", case.id)]
    ran = run_kit(compiled_programs, "--system", f"adapter:{system}", *ids)
    passed = f"{len(cases)} passed, 0 failed"
    assert ran.stdout.splitlines()[-1:] == [passed], ran.stdout + ran.stderr
