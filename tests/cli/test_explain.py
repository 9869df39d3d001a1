"""`replicax explain`, in this process and as a program."""

from __future__ import annotations

import json

import pytest

from replicax.cli import main

SCRIPT = """
import jax.numpy as jnp
import replicax as rx

strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])


@rx.function
def step(x):
    return strategy.run(lambda x: rx.get_replica_context().all_reduce("sum", x), args=(x,))


def example():
    return step, (rx.PerReplica([jnp.ones(3), jnp.ones(3)]),)


def nothing():
    return step
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_as_a_program_it_prints_json_and_draws(script, run_python):
    picture, page = script.with_name("step.svg"), script.with_name("step.html")
    command = ["explain", f"{script}:example", "--replicas=64", "--json"]
    command += [f"--svg={picture}", f"--html={page}"]

    ended = run_python(
        f"import sys, replicax.cli; sys.exit(replicax.cli.main({command!r}))",
        REPLICAX_CPU_DEVICES="2",
    )

    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout)
    assert (facts["function"], facts["replicas"]) == ("step", 64)
    assert picture.read_text().startswith("<svg")
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("{script}", "names no function"),
        ("{script}:missing", "its functions are example, nothing"),
        ("{script}:nothing", "return `(step, arguments)`"),
        ("missing.py:example", "no script `missing.py`"),
        ("no_such_module_here:example", "no module `no_such_module_here`"),
    ],
    ids=["no function", "unknown function", "other result", "no script", "no module"],
)
def test_a_wrong_target_is_an_error_that_names_it(script, capsys, target, words):
    code = main(["explain", target.format(script=script)])

    assert code != 0
    assert words in capsys.readouterr().err
