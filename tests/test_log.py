"""What the library says while a program starts, and who hears it."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import replicax as rx
from replicax import _log
from replicax.cluster import LaunchOptions, launch
from replicax.errors import InvalidArgumentError

PROGRAM = """
import numpy as np
import replicax as rx

strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
options = rx.InputOptions(global_batch_size=4)
rows = strategy.distribute_dataset(np.ones(6, np.float32), options)


@rx.function
def train_step(x):
    def replica_step(x):
        return rx.get_replica_context().global_mean(x)
    return strategy.run(replica_step, args=(x,))


for batch in rows:
    train_step(batch)

import logging
logging.basicConfig(format="mine %(message)s")
rx.MirroredStrategy(["cpu:0"])
"""


def lines(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_nothing_is_said_unless_somebody_wants_to_hear_it(run_python):
    done = run_python(PROGRAM.partition("options")[0], REPLICAX_CPU_DEVICES="2")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_lines_that_people_look_for(run_python, tmp_path):
    settings = {"REPLICAX_COMPILATION_CACHE": str(tmp_path / "cache"), "REPLICAX_LOG": "info"}

    done = run_python(PROGRAM, REPLICAX_CPU_DEVICES="3", **settings)

    assert done.returncode == 0, done.stderr
    said = lines(done.stderr)
    assert "replicax INFO: MirroredStrategy#1: 2 replicas on CPU" in said
    assert "devices CPU:0, CPU:1" in said
    assert "groups 1 (key 1): all replicas reduce together" in said
    assert "collectives the memory of the process" in said
    assert "replicax INFO: Distributed dataset: global batch of 4, 2 rows a replica" in said
    assert "plan OFF, 1 pipeline: one input pipeline reads everything" in said
    assert "epoch 2 steps" in said
    took = r"replicax INFO: Step `train_step`: traced in [\d.]+ s, proved in [\d.]+ s, "
    took += r"compiled in [\d.]+ s, compile cache: miss"
    assert len([line for line in said if re.fullmatch(took, line)]) == 2
    assert "program number 2 of this step: it got other shapes" in said
    assert "collectives all_reduce SUM x1, 4 bytes a replica" in said
    # Once the program configures logging, its own handlers are told, and nobody else.
    assert [one for one in said if "Strategy#2" in one] == [
        "mine MirroredStrategy#2: 1 replica on CPU"
    ]


def test_workers_of_a_launch_show_them_unless_told_otherwise(capfd, monkeypatch):
    options = LaunchOptions(command=["sh", "-c", "echo level $REPLICAX_LOG"], workers=1)

    monkeypatch.delenv("REPLICAX_LOG", raising=False)
    assert launch(options) == 0
    monkeypatch.setenv("REPLICAX_LOG", "error")
    assert launch(options) == 0

    assert lines(capfd.readouterr().out) == ["[0] level info", "[0] level error"]


def test_a_level_that_is_none_is_refused():
    with pytest.raises(InvalidArgumentError, match="REPLICAX_LOG='loud'"):
        _log.apply_environment({"REPLICAX_LOG": "loud"})


def test_accelerators_are_not_left_out_in_silence(caplog):
    caplog.set_level(logging.INFO, logger="replicax")

    rx.MirroredStrategy([jax.devices()[0]])

    (message,) = caplog.messages
    assert "1 replica on" in message
    idle = [device for device in jax.devices()[1:] if device.platform != "cpu"]
    assert ("unused" in message) == bool(idle)


def test_a_user_s_batches_and_steps_of_one_device_are_told_too(caplog, strategy):
    caplog.set_level(logging.INFO, logger="replicax")

    strategy.distribute_datasets_from_function(lambda context: [np.ones(2)])
    rx.function(lambda x: x + 1)(1.0)

    made, compiled = caplog.messages
    assert made.startswith("Distributed dataset: batches of a user's function")
    assert compiled.startswith("Step `<lambda>`: traced in")
    assert "none: nothing crosses replicas" in compiled


def test_all_loggers_come_from_one_place():
    root = Path(rx.__file__).parent
    found = {
        str(module.relative_to(root))
        for module in root.rglob("*.py")
        if "getLogger" in module.read_text(encoding="utf-8")
    }

    # Handlers of jax's own warnings.
    assert found == {"_log.py", "doctor/_child.py", "step/_callbacks.py"}
