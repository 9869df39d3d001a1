"""A job goes on with the hosts that remain, and takes a fresh one at the next start.

Here each host is one launcher with one worker, and all are on this host.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from replicax.cluster._launcher._ports import free_ports

TRAINING = Path(__file__).with_name("training.py")
PATIENCE_S = 100
pytestmark = [pytest.mark.slow, pytest.mark.timeout(115)]

# The command line refuses to have hosts meet on the loopback.
HOST = """
import sys
import replicax as rx
from replicax.cluster import LaunchOptions, launch

node, port, *command = sys.argv[1:]
sys.exit(launch(LaunchOptions(
    command=[sys.executable, "-u", *command], nnodes=3, min_nodes=2, last_call=3,
    node_rank=int(node), master_port=int(port), max_restarts=1, on_preemption="restart",
    secret=b"a secret of the job",
)))
"""


@pytest.fixture
def host(environment, tmp_path):
    """`host(node)`: start the launcher of a host; its output goes to a file."""
    started = []
    (port,) = free_ports(1)
    program = tmp_path / "host.py"
    program.write_text(HOST)
    train = [TRAINING, tmp_path, "hold-at-4", "hold-at-7"]

    def start(node):
        command = [sys.executable, program, node, port, *train]
        with (tmp_path / f"host-{node}-{len(started)}.txt").open("w") as output:
            process = subprocess.Popen(
                list(map(str, command)), env=environment(1), stdout=output, stderr=output
            )
        process.output = Path(output.name)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def until(is_true, *hosts):
    """Waits; the output of the hosts says why it was in vain."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline, [each.output.read_text()[-3000:] for each in hosts]
        time.sleep(0.05)


def test_h8_a_lost_host_is_done_without_and_a_fresh_one_goes_on_from_the_commit(
    host, training, one_device, tmp_path
):
    lost, second = host(2), host(1)
    first = host(0)
    until((tmp_path / "held-0").exists, first, second, lost)
    lost.kill()
    until((tmp_path / "held-1").exists, first, second)
    fresh = host(2)
    until(lambda: "takes part from the next start on" in fresh.output.read_text(), fresh, first)
    second.terminate()  # This host leaves: all save together.
    until(lambda: "SIGTERM: handed on" in first.output.read_text(), first)
    (tmp_path / "go-1").touch()
    ends = [each.wait(PATIENCE_S) for each in (first, second, fresh)]

    output = first.output.read_text()
    assert ends == [0, 42, 0], output
    assert "lost: Its node 2 is lost" in output
    assert "told to leave: the workers have saved after" in output
    lines = [training.told(tmp_path, rank) for rank in range(3)]
    started = [
        [(start["workers"], start["resumed"]) for start in training.starts(each)] for each in lines
    ]
    last = started[0][-1][1]
    assert started == [[(3, 0), (2, 4), (2, last)]] * 2 + [[(3, 0)]]
    assert last in (7, 8)  # Worker 0 may have begun call 7 before it heard.
    trained, seen = one_device
    for each in lines:
        found = training.steps(each)
        assert found.keys() <= seen.keys()
        for step, (rows, loss) in found.items():
            assert rows == seen[step][0]
            np.testing.assert_allclose(
                float.fromhex(loss), float.fromhex(seen[step][1]), rtol=1e-5, atol=1e-6
            )
    for each in lines[:2]:
        found = list(map(float.fromhex, training.weights(each)))
        np.testing.assert_allclose(found, trained, atol=1e-6)
    assert set(training.steps(lines[0])) == set(seen)
