"""Fixtures of every test, and the leak police."""

from __future__ import annotations

import concurrent.futures
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"
PROGRAM_TIMEOUT_S = 50
GRACE_S = 2.0

# --- property tests --------------------------------------------------------------------------

# A first call compiles for a second or more, so neither a deadline nor "too slow" means anything.
hypothesis.settings.register_profile(
    "default",
    deadline=None,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "ci", hypothesis.settings.get_profile("default"), derandomize=True, print_blob=True
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

# --- the garbage collector -------------------------------------------------------------------


def pytest_collection_finish() -> None:
    """Modules and collected tests live to the end: no later collection looks through them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)  # traces make many objects, few of them in circles


# --- the two runners -------------------------------------------------------------------------


@dataclass(frozen=True)
class Runner:
    """Runs a step as it is (`eager`) or through `rx.function` (`compiled`)."""

    name: str

    @property
    def compiled(self) -> bool:
        return self.name == "compiled"

    def __call__(self, step: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """`step` for this runner; `options` go to `rx.function`, and eager has none."""
        if not self.compiled:
            return step
        import replicax as rx

        return rx.function(step, **options)


@pytest.fixture(params=["eager", "compiled"])
def runner(request: pytest.FixtureRequest) -> Runner:
    """Ask for it to have a test run once in each runner: `step = runner(step)`."""
    return Runner(request.param)


# --- two strategies of two replicas ------------------------------------------------------------


@pytest.fixture(scope="session")
def strategy() -> Any:
    import replicax as rx

    return rx.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture(scope="session")
def other() -> Any:
    import replicax as rx

    return rx.MirroredStrategy(["cpu:2", "cpu:3"])


@pytest.fixture
def run(runner: Runner, strategy: Any) -> Callable[..., Any]:
    """`run(fn, *args)`: one `strategy.run`, once in each runner."""

    def one_step(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        step = runner(lambda *args: strategy.run(fn, args=args, kwargs=kwargs))
        return step(*args)

    return one_step


@pytest.fixture
def in_threads() -> Callable[[Callable[[], Any], int], None]:
    """`in_threads(target, n)`: call it in n threads at once, and raise the first error."""

    def run(target: Callable[[], Any], count: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            calls = [pool.submit(target) for _ in range(count)]
        for call in calls:
            call.result()

    return run


# --- programs in an interpreter of their own ---------------------------------------------------


class Forks:
    """Runs programs in interpreters that have imported jax and nothing else; see `forks.py`."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", SOURCE.parent / "tests" / "forks.py"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, program: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        out, err = program.with_suffix(".out"), program.with_suffix(".err")
        folder = program.parent
        request = {"program": program, "env": env, "cwd": folder, "out": out, "err": err}
        print(json.dumps(request, default=str), file=self._process.stdin, flush=True)
        pid = self._told()["pid"]
        killer = threading.Timer(PROGRAM_TIMEOUT_S, os.kill, (pid, signal.SIGKILL))
        killer.start()
        try:
            code = self._told()["code"]
        finally:
            killer.cancel()
            killer.join()
        said = [file.read_text(encoding="utf-8") for file in (out, err)]
        return subprocess.CompletedProcess([str(program)], code, *said)

    def _told(self) -> dict[str, int]:
        line = self._process.stdout.readline()
        assert line, "the process that forks has ended"
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()  # no program runs any more
        self._process.communicate()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    ours = ("JAX_", "XLA_", "REPLICAX_", "PYTEST_", "COV_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    forks = Forks({**clean, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SOURCE)})
    yield forks
    forks.close()


@pytest.fixture
def run_python(forks: Forks, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_python(source, **env)`: run a program in an interpreter of its own, warnings as errors.

    The program starts with jax untouched: no variable of jax, XLA or Replicax is handed on but
    `JAX_PLATFORMS=cpu`. A variable given as None is taken away. With `is_fresh`, and where Python
    or jax read a variable when they start, the interpreter is a fresh one; else it is forked from
    one that has imported jax.
    """

    def run(
        source: str, *, is_fresh: bool = False, **env: str | None
    ) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(source), encoding="utf-8")
        wanted = {name: value for name, value in {**forks.env, **env}.items() if value is not None}
        early = {name for name in env if name.startswith(("JAX_", "PYTHON"))}
        if not is_fresh and all(wanted.get(name) == forks.env.get(name) for name in early):
            return forks.run(program, wanted)
        return subprocess.run(
            [sys.executable, "-W", "error", program],
            env=wanted,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROGRAM_TIMEOUT_S,
        )

    return run


# --- the leak police ---------------------------------------------------------------------------

# Threads that may stay: Python's name for a C++ thread that once called a host callback.
POOLS = ("Dummy-",)


def threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if not one.name.startswith(POOLS)}


def processes() -> set[int]:
    """The children of this process; the tracker that multiprocessing keeps for good is none."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():  # not Linux: only what multiprocessing itself has started
        return {child.pid for child in multiprocessing.active_children() if child.pid}
    if not has_children():
        return set()
    found = set()
    for children in tasks.glob("*/children"):
        try:
            found |= {int(pid) for pid in children.read_text().split()}
        except OSError:  # the thread has ended meanwhile
            continue
    return {pid for pid in found if b"resource_tracker" not in command_line(pid)}


def has_children() -> bool:
    """One system call; to look at each of a hundred threads of jax takes milliseconds."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # takes nothing away
    except ChildProcessError:
        return False
    return True


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def strategy_entered() -> bool:
    replicax = sys.modules.get("replicax")
    return replicax is not None and replicax.has_strategy()


def after_grace(leaked: Callable[[], set[Any]]) -> set[Any]:
    """What is still leaked once everything had a moment to end."""
    deadline = time.monotonic() + GRACE_S
    while (left := leaked()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


@pytest.fixture(autouse=True)
def leak_police() -> Iterator[None]:
    """Fail a test that leaves a thread, a process, a changed variable or an open scope behind."""
    threads_before, processes_before = threads(), processes()
    environment_before = environment()

    yield

    found = []
    if left := after_grace(lambda: threads() - threads_before):
        found.append(f"threads still running: {sorted(one.name for one in left)}")
    if left := after_grace(lambda: processes() - processes_before):
        named = [f"{pid} {command_line(pid).replace(bytes(1), b' ').decode()}" for pid in left]
        found.append(f"child processes still there: {sorted(named)}")
    if (now := environment()) != environment_before:
        changed = sorted(name for name, _ in now.items() ^ environment_before.items())
        for name in set(now) - set(environment_before):
            del os.environ[name]
        os.environ.update(environment_before)
        found.append(f"environment variables changed: {sorted(set(changed))}")
    if strategy_entered():
        found.append("a strategy's scope is still entered")
    if found:
        pytest.fail("The test leaves behind: " + "; ".join(found), pytrace=False)
