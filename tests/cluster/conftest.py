"""Jobs of real worker processes, with a real master."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from replicax import cluster

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
SECRET = b"the secret of these tests"
PATIENCE_S = 45


class Nursery:
    """Worker processes, forked from one that has imported everything; see `nursery.py`.

    Args:
        program: The folder of the `program.py` that they run.
    """

    def __init__(self, program: Path = HERE):
        dropped = ("JAX_", "XLA_", "REPLICAX_", "PYTEST_", "COV_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SOURCE), "JAX_NUM_CPU_DEVICES": "1"}
        env["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")  # compiled as other tests are
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", HERE / "nursery.py", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        self._pending = b""
        self.codes: dict[int, int] = {}

    def bear(self, out: Path, env: dict[str, str]) -> int:
        """Starts a worker; returns its process id."""
        self._process.stdin.write(json.dumps({"out": str(out), "env": env}).encode() + b"\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for event in self.events(1.0):
                if event.get("born"):
                    self.codes.pop(event["pid"], None)  # of an earlier process with this number
                    return event["pid"]
        raise TimeoutError("no worker was born")

    def events(self, seconds: float) -> list[dict[str, Any]]:
        """What happened, waited for so long; the end of a worker is also kept in `codes`."""
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return []
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        assert data, "the nursery has ended"
        *lines, self._pending = (self._pending + data).split(b"\n")
        events = [json.loads(line) for line in lines]
        self.codes |= {event["pid"]: event["code"] for event in events if "code" in event}
        return events

    def close(self):
        self._process.communicate(timeout=10)


@dataclass
class Worker:
    """One process of a job, as it was seen."""

    rank: int
    pid: int
    out: Path
    code: int | None = None

    @property
    def text(self) -> str:
        if not self.out.exists():  # it has only just been born
            return ""
        return self.out.read_text(encoding="utf-8", errors="replace")

    def event(self, name: str) -> dict[str, Any]:
        """The line of JSON with this event."""
        lines = [line for line in self.text.splitlines() if line.startswith('{"time"')]
        found = [event for event in map(json.loads, lines) if event["event"] == name]
        assert found, f"no {name} of worker {self.rank}:\n{self.text}"
        return found[-1]

    def has(self, name: str) -> bool:
        return f'"event": "{name}"' in self.text


@dataclass
class RealJob:
    """Two workers and their master."""

    nursery: Nursery
    folder: Path
    timeouts: cluster.Timeouts
    master: Any = None
    workers: list[Worker] = field(default_factory=list)
    fault_time: float = 0.0

    def start(
        self,
        fault: str = "",
        *,
        size: int = 2,
        ranks=(0, 1),
        own=None,
        without_launcher=None,
        **env: str,
    ):
        """Starts the master and the workers `ranks` of `size`; `own` is for one of them."""
        if self.master is None and not without_launcher:
            self.master = cluster.Master(world_size=size, secret=SECRET, timeouts=self.timeouts)
            self.master.start()
        common = {
            "WORLD_SIZE": str(size),
            "FAULT": fault,
            "REPLICAX_SECRET": SECRET.decode(),
            "REPLICAX_TIMEOUTS": json.dumps(self.timeouts.to_json()),
            "REPLICAX_RECORD_DIR": str(self.folder / "records"),
            **env,
        }
        if without_launcher:
            common["REPLICAX_CONTROL"] = without_launcher
        else:
            common["REPLICAX_CONTROL"] = self.master.address
            common["REPLICAX_COORDINATOR"] = self.master.coordinator_address
        for rank in ranks:
            out = self.folder / f"worker-{rank}.txt"
            mine = common | {"RANK": str(rank)} | (own or {}).get(rank, {})
            self.workers.append(Worker(rank, self.nursery.bear(out, mine), out))
        return self

    def until(self, condition, seconds: float = PATIENCE_S):
        """Watches the processes, as a launcher does, until the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "\n".join(worker.text for worker in self.workers)
            self.nursery.events(0.01)
            for worker in self.workers:
                if worker.code is None and worker.pid in self.nursery.codes:
                    worker.code = self.nursery.codes[worker.pid]
                    self._tell(worker)

    def _tell(self, worker):
        if isinstance(self.master, cluster.Master):
            self.master.worker_exited(worker.rank, worker.code)

    def until_ended(self, *ranks: int):
        self.until(lambda: all(self.workers[rank].code is not None for rank in ranks))

    @staticmethod
    def now() -> float:
        return time.time()

    def kill_master(self, number: int):
        self.fault_time = time.time()
        os.kill(self.master._process.pid, number)

    def close(self):
        for worker in self.workers:
            if worker.code is None and worker.pid not in self.nursery.codes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, 9)
        self.until(lambda: all(worker.code is not None for worker in self.workers), 10)
        if self.master is not None:
            self.master.stop()


@pytest.fixture(scope="session")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def secret():
    return SECRET


@pytest.fixture
def job(nursery, tmp_path):
    """`job(fault, **options)` starts a job of two workers; `timeouts=...` for its time-outs."""
    jobs = []

    def start(fault: str = "", *, timeouts=None, master=None, **options):
        timeouts = timeouts or cluster.Timeouts(start=30, shutdown=3)
        jobs.append(RealJob(nursery, tmp_path, timeouts, master))
        return jobs[-1].start(fault, **options)

    yield start
    for each in jobs:
        each.close()
