"""`rx.checkpoint` is there without an import, and Orbax is loaded for it alone."""

from __future__ import annotations


def test_orbax_is_loaded_when_checkpoints_are_first_used(run_python):
    done = run_python("""
        import sys
        import replicax as rx
        import jax
        print("orbax" in sys.modules, "checkpoint" in dir(rx))
        print(rx.TerminationConfig.__name__, "orbax" in sys.modules)
        print(rx.checkpoint.Checkpoint(x=1), rx.PreemptionHandler.__name__)
        jax.config.update("jax_num_cpu_devices", 3)  # nothing has started jax
        print(jax.local_device_count())
    """)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "False False",
        "TerminationConfig True",
        "<Checkpoint of x> PreemptionHandler",
        "3",
    ]
