"""`replicax verify`, in this process and as a program."""

from __future__ import annotations

import json

import pytest

from replicax.cli import main

SCRIPT = """
import numpy as np
import replicax as rx

strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
with strategy.scope():
    w = rx.Variable(1.0, name="w")


def made(op):
    @rx.function
    def step(x):
        def replica_step(x):
            ctx = rx.get_replica_context()
            w.assign_sub(0.1 * ctx.all_reduce(op, (w.value * x).mean()))

        strategy.run(replica_step, args=(x,))

    return strategy, step, [w], rx.data.from_arrays(np.ones(4, "float32")).batch(4)


def right():
    return made("mean")


def wrong():
    return made("sum")


def report():
    return rx.verify(*made("sum"), one_device=False)


def nothing():
    return strategy
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_as_a_program_it_ends_with_1_and_writes_a_page(script, run_python):
    page = script.with_name("report.html")
    command = ["verify", f"{script}:wrong", "--json", f"--html={page}"]

    ended = run_python(
        f"import sys, replicax.cli; sys.exit(replicax.cli.main({command!r}))",
        REPLICAX_CPU_DEVICES="2",
    )

    assert ended.returncode == 1, ended.stderr
    told = json.loads(ended.stdout)
    assert [x["check"] for x in told["findings"] if x["status"] == "failed"] == ["parity"]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_right_step_ends_with_0(script, capsys):
    code = main(["verify", f"{script}:right", "--no-one-device"])

    assert code == 0, capsys.readouterr().out
    assert "2 replica(s) of MirroredStrategy" in capsys.readouterr().out


def test_a_report_is_shown_as_it_is(script, capsys):
    assert main(["verify", f"{script}:report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_another_result_is_an_error_that_echoes_it(script, capsys):
    code = main(["verify", f"{script}:nothing"])

    assert code == 2
    assert "return `(strategy, step, state, dataset)`" in capsys.readouterr().err
