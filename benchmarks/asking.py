"""The side that asks: programs of several libraries stay alive, and train in turns.

A program is one process, or two that train together and are asked at the same time. The others
wait for their next line meanwhile, so each contender has the cores to itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

MINUTES_OF_SILENCE = 10
TURN_SECONDS = 0.25
MOST_STEPS = 64
FIRST_STEPS = 4
STEPS_COMPARED = 20
WARM_BELOW_SECONDS = 0.1


class Program:
    """A program that trains when it is asked to.

    Args:
        command: What to run, in each process.
        processes: How many train together; each gets its share of the cores.

    Attributes:
        contenders: What it can train with.
        version: Of its library.
    """

    def __init__(self, command: Sequence[str], processes: int) -> None:
        """Start it, and wait until it is there."""
        self._command = command
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `stop`
        self._secret = tempfile.NamedTemporaryFile("w")  # noqa: SIM115 - the same
        self._secret.write(secrets.token_hex(32))
        self._secret.flush()
        self._processes = [
            subprocess.Popen(  # noqa: S603 - a program of this folder
                command,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
            )
            for environment in environments(processes, self._secret.name)
        ]
        try:
            hello = self._answers()[0]
        except BaseException:
            self.stop()
            raise
        self.contenders: list[str] = hello["contenders"]
        self.version: str = hello["version"]

    def ask(self, contender: str, steps: int, warm: int = 0) -> tuple[float, float]:
        """Seconds a step, of the slower process, and the loss of the last step."""
        line = json.dumps({"contender": contender, "steps": steps, "warm": warm}) + "\n"
        for process in self._processes:
            assert process.stdin is not None  # noqa: S101 - it was asked for
            with contextlib.suppress(BrokenPipeError):  # The answer says what has happened.
                process.stdin.write(line.encode())
                process.stdin.flush()
        answers = self._answers()
        return max(answer["seconds"] for answer in answers), answers[0]["loss"]

    def _answers(self) -> list[dict[str, Any]]:
        return [self._answer(process) for process in self._processes]

    def _answer(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        out = process.stdout
        assert out is not None  # noqa: S101 - it was asked for
        # A program writes whole lines, one for each request, so nothing is left in the buffer.
        ready, _, _ = select.select([out], [], [], 60 * MINUTES_OF_SILENCE)
        line = out.readline() if ready else b""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        why = "ended" if ready else f"said nothing for {MINUTES_OF_SILENCE} minutes"
        self._log.seek(0)
        last = "".join(self._log.readlines()[-40:])
        raise SystemExit(f"{' '.join(self._command)} {why}:\n{last}")

    def stop(self) -> None:
        """End its processes."""
        for process in self._processes:
            assert process.stdin is not None  # noqa: S101 - it was asked for
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None  # noqa: S101 - it was asked for
            process.stdout.close()
        self._log.close()
        self._secret.close()


def environments(processes: int, secret_file: str) -> list[dict[str, str]]:
    """For each process, where the others are, and its share of the cores."""
    threads = max(1, (os.cpu_count() or 1) // processes)
    common = {name: str(threads) for name in ("NPROC", "OMP_NUM_THREADS")}  # XLA's, and OpenMP's
    common |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    if processes == 1:
        return [common]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
    workers = [f"127.0.0.1:{port}" for port in _free_ports(processes)]
    return [
        {
            **common,
            "XLA_FLAGS": flags.strip(),
            "REPLICAX_SECRET_FILE": secret_file,
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            ),
        }
        for index in range(processes)
    ]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def running(commands: Sequence[Sequence[str]], processes: int) -> Iterator[list[Program]]:
    """Programs, one started after the other, which end with the block."""
    programs: list[Program] = []
    try:
        for command in commands:
            programs.append(Program(command, processes))  # noqa: PERF401 - so `finally` sees them
        yield programs
    finally:
        for program in programs:
            program.stop()


@dataclasses.dataclass
class _Contender:
    name: str
    program: Program
    trained: int = 0
    steps: int = 1
    warm: int = 0
    loss: float | None = None
    seconds: list[float] = dataclasses.field(default_factory=list)

    def start(self, rounds: int) -> None:
        """Compile, and see how many steps fill a turn; slow ones need none to warm up."""
        self._advance(FIRST_STEPS // 2)
        seconds = self._advance(FIRST_STEPS - FIRST_STEPS // 2)
        least = -(-(STEPS_COMPARED - FIRST_STEPS) // rounds) if seconds > WARM_BELOW_SECONDS else 1
        self.steps = max(least, min(MOST_STEPS, round(TURN_SECONDS / seconds)), 1)
        self.warm = 1 if seconds < WARM_BELOW_SECONDS else 0

    def turn(self) -> None:
        """One turn, and the loss after `STEPS_COMPARED` steps where it would be passed."""
        if self.trained + self.warm + self.steps > STEPS_COMPARED:
            self.finish()
        self.seconds.append(self._advance(self.steps, self.warm))

    def finish(self) -> None:
        """Find out the loss after `STEPS_COMPARED` steps, which the next step shows."""
        if self.loss is None:
            if self.trained < STEPS_COMPARED:
                self._advance(STEPS_COMPARED - self.trained)
            _, self.loss = self.program.ask(self.name, 1)

    def _advance(self, steps: int, warm: int = 0) -> float:
        self.trained += steps + warm
        return self.program.ask(self.name, steps, warm)[0]


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one workload took.

    Attributes:
        seconds: Of a step, one entry a round, for each contender.
        losses: After 20 steps.
        versions: Of the libraries.
        rounds: How many.
        load: Of the machine, when it was measured: how many threads wanted a core.
        minutes: How long it took, with starting and compiling.
    """

    seconds: dict[str, list[float]]
    losses: dict[str, float]
    versions: list[str]
    rounds: int
    load: float
    minutes: float


def alternate(programs: Sequence[Program], names: Sequence[str] | None, rounds: int) -> Figures:
    """Let the contenders of all programs take turns; `names` leaves some out."""
    begun = time.monotonic()
    contenders = [
        _Contender(name, program)
        for program in programs
        for name in program.contenders
        if names is None or name in names
    ]
    for contender in contenders:
        contender.start(rounds)
    for number in range(rounds):
        first = number % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            contender.turn()
    for contender in contenders:
        contender.finish()
    return Figures(
        seconds={each.name: each.seconds for each in contenders},
        losses={each.name: each.loss for each in contenders if each.loss is not None},
        versions=[program.version for program in programs],
        rounds=rounds,
        load=round(os.getloadavg()[0], 1),
        minutes=round((time.monotonic() - begun) / 60, 2),
    )
