"""Logical CPU devices. What must come before the first use of jax runs in a fresh interpreter."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from replicax.devices import apply_environment, logical
from replicax.errors import ArgumentTypeError, DevicesStartedError, InvalidArgumentError

COUNT = "print(len(jax.devices('cpu')))"


def output(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("cpu", [1, 4])
def test_before_the_first_use(run_python, cpu):
    done = run_python(f"""
        import jax
        from replicax import devices

        devices.logical(cpu=7)  # Nothing has started: the last word counts.
        devices.logical(cpu={cpu})
        {COUNT}
        devices.logical(cpu={cpu})
    """)
    assert output(done) == [str(cpu)]


def test_it_starts_nothing(run_python):
    done = run_python("""
        import jax
        from replicax import devices

        devices.logical(cpu=2)
        jax.config.update("jax_num_cpu_devices", 3)  # jax refuses it once it has started.
        print(jax.device_count())
    """)
    assert output(done) == ["3"]


def test_too_late(run_python):
    done = run_python("""
        import jax
        from replicax import devices, errors

        jax.devices()
        devices.logical(cpu=1)
        try:
            devices.logical(cpu=4)
        except errors.DevicesStartedError as error:
            print(error)
    """)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "rx.devices.logical(cpu=4) came too late: jax has started with 1 CPU device(s)."
    )
    assert lines[1].startswith("Why: ")
    assert lines[2].startswith(
        "What to do: move the line program.py:8 in <module> above the first use of jax"
    )


def test_in_this_process_too():
    count = len(jax.devices("cpu"))
    logical(cpu=count)
    logical(cpu=np.int32(count))
    with pytest.raises(DevicesStartedError, match=f"jax has started with {count} CPU"):
        logical(cpu=count + 1)
    assert len(jax.devices("cpu")) == count


@pytest.mark.parametrize("cpu", ["4", 4.0, None, True])
def test_wrong_types(cpu):
    with pytest.raises(ArgumentTypeError, match=r"logical got cpu="):
        logical(cpu=cpu)


@pytest.mark.parametrize("cpu", [0, -1])
def test_too_few(cpu):
    with pytest.raises(InvalidArgumentError, match=f"logical got cpu={cpu}"):
        logical(cpu=cpu)


def test_xla_flags_that_disagree(run_python):
    done = run_python(
        f"""
        import jax
        from replicax import devices, errors

        devices.logical(cpu=3)
        try:
            devices.logical(cpu=4)
        except errors.InvalidArgumentError as error:
            print(error)
        {COUNT}
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=3",
    )
    assert done.returncode == 0, done.stderr
    assert "XLA_FLAGS has --xla_force_host_platform_device_count=3" in done.stdout
    assert done.stdout.splitlines()[-1] == "3"


def test_xla_flags_gave_the_same_number(run_python):
    done = run_python(
        f"""
        import jax
        {COUNT}
        from replicax import devices

        devices.logical(cpu=3)
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=3",
    )
    assert output(done) == ["3"]


def test_environment(run_python):
    done = run_python(
        f"""
        import jax
        from replicax import devices

        devices.apply_environment()
        {COUNT}
        devices.apply_environment()
        """,
        REPLICAX_CPU_DEVICES=" 3 ",
    )
    assert output(done) == ["3"]


def test_environment_too_late(run_python):
    done = run_python(
        """
        import jax
        jax.devices()
        from replicax import errors
        try:
            from replicax import devices
            devices.apply_environment()
        except errors.DevicesStartedError as error:
            print(error)
        """,
        REPLICAX_CPU_DEVICES="2",
    )
    assert "REPLICAX_CPU_DEVICES=2 came too late" in done.stdout + done.stderr


def test_without_the_variable_nothing_is_set(monkeypatch):
    before = jax.config.jax_num_cpu_devices
    monkeypatch.delenv("REPLICAX_CPU_DEVICES", raising=False)
    apply_environment()
    monkeypatch.setenv("REPLICAX_CPU_DEVICES", "")
    apply_environment()
    assert jax.config.jax_num_cpu_devices == before


@pytest.mark.parametrize("text", ["four", "0", "-1", "1.5", "4,4"])
def test_bad_environment(monkeypatch, text):
    monkeypatch.setenv("REPLICAX_CPU_DEVICES", text)
    with pytest.raises(InvalidArgumentError, match=f"REPLICAX_CPU_DEVICES='{text}'"):
        apply_environment()
