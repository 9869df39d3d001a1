"""The programs of examples/ do what they say."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"\bloss (\d+\.\d+)", output)]


def test_the_functional_program_learns(run_program):
    done = run_program(EXAMPLES / "pytrees.py", is_quick=True)

    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 10
    assert losses(done.stdout)[-1] < losses(done.stdout)[0] / 2


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_mlp_in_bfloat16_learns(run_program):
    done = run_program(EXAMPLES / "digits_bfloat16.py", is_quick=True)

    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 10
    assert losses(done.stdout)[-1] < losses(done.stdout)[0] / 5
    assert float(re.findall(r"accuracy (\S+)$", done.stdout, re.MULTILINE)[-1]) > 0.9


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_model_of_characters_learns(run_program):
    pytest.importorskip("flax", reason="Flax is not installed: pip install 'replicax[flax]'")
    done = run_program(EXAMPLES / "text_nnx.py", is_quick=True)

    assert done.returncode == 0, done.stderr
    assert losses(done.stdout)[-1] < losses(done.stdout)[0] - 1.0
    assert "The statement is " in done.stdout


@pytest.mark.slow
def test_the_variables_program_gives_the_numbers_of_one_device(run_program, tmp_path):
    """The same training in numpy, in float64 and with its gradient written by hand."""
    program = tmp_path / "by_hand.py"
    program.write_text(
        """
import numpy as np
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
x, y, w = images / 16, np.eye(10)[labels], np.zeros((64, 10))
for epoch in range(10):
    for start in range(0, len(x), 128):
        rows = slice(start, start + 128)
        scores = x[rows] @ w
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        loss = -np.log((p * y[rows]).sum(1)).mean()
        w -= 0.5 * x[rows].T @ (p - y[rows]) / len(p)
    print(f"epoch {epoch}: loss {loss:.4f}")
"""
    )

    replicated, by_hand = run_program(EXAMPLES / "variables.py"), run_program(program)

    assert by_hand.returncode == 0, by_hand.stderr
    assert losses(replicated.stdout) == pytest.approx(losses(by_hand.stdout), abs=2e-4)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_training_from_files_goes_on_after_a_stop_as_if_there_was_none(run_program):
    done = run_program(EXAMPLES / "files.py", is_quick=True)

    assert done.returncode == 0, done.stderr
    steps = re.findall(r"^steps (\d+) to (\d+):", done.stdout, re.MULTILINE)
    assert steps == [("0", "71"), ("0", "30"), ("30", "71")]
    whole, stopped, resumed = losses(done.stdout)
    assert resumed == pytest.approx(whole, abs=1e-4)
    assert whole < stopped / 1.5
    assert float(re.search(r"differ by at most (\S+)$", done.stdout)[1]) < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo_trains_compares_and_draws(run_program, tmp_path):
    done = run_program(EXAMPLES / "digits.py", "--output", "drawing.png")

    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert [f"/job:localhost/replica:0/task:0/device:CPU:{i}" in out for i in range(4)] == [
        True
    ] * 4
    assert "device:CPU:4" not in out
    assert re.search(
        r"^first batch: rows 32, 32, 32, 32; \d+ all-reduces of [\d,]+ bytes$", out, re.MULTILINE
    )
    assert re.search(
        r"^last batch:  rows 8, 8, 8, 5; \d+ all-reduces of [\d,]+ bytes$", out, re.MULTILINE
    )
    assert len(losses(out)) >= 2 * 15
    assert float(re.search(r"test accuracy: (\S+) on 360 images", out)[1]) > 0.97
    weight, loss = re.search(r"(\S+) in a weight, (\S+) in the loss", out).groups()
    assert 0 <= float(weight) < 1e-5
    assert 0 <= float(loss) < 1e-5
    assert "after 180 steps, 4 replicas and one device" in out
    png = (tmp_path / "drawing.png").read_bytes()
    assert png.startswith(PNG_SIGNATURE)
    width, height = struct.unpack(">II", png[16:24])
    assert width > 600
    assert height > 400


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo_fails_when_the_difference_is_too_large(run_program):
    """No rounding at all is allowed, and three replicas add in another order than one device."""
    done = run_program(
        EXAMPLES / "digits.py",
        *("--replicas", "3", "--epochs", "1", "--tolerance", "0"),
        is_quick=True,
    )

    assert done.returncode == 1, done.stderr
    assert "FAILED" in done.stdout
    assert "rows 43, 43, 42;" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_remainder_that_is_weighted_wrongly_would_fail_the_demo(run_program, tmp_path):
    """The classic error, the mean of the replicas' own means, is far above the tolerance."""
    program = tmp_path / "wrong.py"
    program.write_text(
        """
import jax
import jax.numpy as jnp
import digits

options = digits.parsed(["--epochs", "1"])

@jax.jit
def wrong_step(state, batch):
    share = -(-len(batch.labels) // 4)

    def loss_fn(weights):
        losses, hits = digits.loss_and_hits(weights, batch)
        means = [jnp.mean(losses[i * share : (i + 1) * share]) for i in range(4)]
        return jnp.mean(jnp.stack(means)), jnp.mean(hits)

    (loss, accuracy), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.weights)
    return digits.updated(state, gradients), (loss, accuracy)

data, _ = digits.train_and_test_data()
trained = []
for step in (digits.plain_step, wrong_step):
    with digits.Display(digits.Console(), "one device", 1, 12) as display:
        trained.append(digits.train(step, lambda batches: batches, data, options, display))
print("apart", digits.Comparison.of(*trained).weights[-1], "allowed", options.tolerance)
"""
    )

    done = run_program(program, is_quick=True)

    assert done.returncode == 0, done.stderr
    apart, allowed = map(float, re.search(r"apart (\S+) allowed (\S+)", done.stdout).groups())
    assert apart > 100 * allowed


def test_the_demo_refuses_bad_numbers(run_program):
    done = run_program(EXAMPLES / "digits.py", "--replicas", "0")

    assert done.returncode == 2
    assert "argument --replicas" in done.stderr
    assert "Traceback" not in done.stderr
