"""The parity kit: small programs that give the results of tf.distribute, or better ones.

The kit runs its cases in processes of its own, so that a case that hangs or crashes fails alone.
The eager runner compiles each operation for each device, so what has many is cut into more tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .kit.registry import Case
from .kit.run import load_cases

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src"
CASES = load_cases("cases")
# Against hangs only; on an idle machine the longest test takes a quarter of a minute.
TIMEOUT_S, CASE_TIMEOUT_S = 120, 100

SYSTEMS = {
    "EagerSystem": (),
    # One program for all replicas: they can neither take different paths nor differ in shape.
    "CompiledSystem": ("concrete_id", "uneven"),
}


def group_of(case: Case) -> tuple[str, str]:
    """The area of a case and a pattern of ids that its test covers."""
    if case.area == "training":
        return case.area, case.id
    if case.area in {"collectives", "gradients"}:
        return case.area, f"*-r{case.replicas}"
    return case.area, "*"


def cases_of(system: str, group: tuple[str, str]) -> list[Case]:
    """The cases of a group that are for a system."""
    return [
        case
        for case in CASES
        if group_of(case) == group and not set(case.needs) & set(SYSTEMS[system])
    ]


TESTS = [
    pytest.param(system, group, id=f"{system}-{group[0]}-{group[1]}".replace("-*", ""))
    for system in SYSTEMS
    for group in dict.fromkeys(map(group_of, CASES))
    if cases_of(system, group)
]


@pytest.fixture(scope="session")
def compiled_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test session, in which the workers share what XLA compiled."""
    return tmp_path_factory.getbasetemp().parent / "compiled-programs-of-the-kit"


def run_kit(compiled_programs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the kit's runner; its workers inherit the environment. Warnings are errors there."""
    ours = ("JAX_", "XLA_", "REPLICAX_", "PYTEST_", "COV_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SOURCE)}
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
    for system, needs in SYSTEMS.items():
        tested = [
            case.id for test in TESTS if test.values[0] == system for case in cases_of(*test.values)
        ]
        left_out = [case.id for case in CASES if set(case.needs) & set(needs)]
        assert sorted(tested + left_out) == sorted(case.id for case in CASES)
    assert len(CASES) == 199


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize(("system", "group"), TESTS)
def test_the_kit_passes(compiled_programs, system, group):
    area, pattern = group
    arguments = ["--area", area, "--id", pattern, "--timeout", str(CASE_TIMEOUT_S)]
    for need in SYSTEMS[system]:
        arguments += ["--without", need]
    ran = run_kit(compiled_programs, "--system", f"adapter:{system}", *arguments)
    assert ran.stdout.splitlines()[-1:] == [f"{len(cases_of(system, group))} passed, 0 failed"], (
        ran.stdout + ran.stderr
    )
