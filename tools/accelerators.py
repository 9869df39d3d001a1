"""Say which GPUs or TPUs jax sees here, before `make accelerator` runs the tests on them.

Exit status: 0 where there are some; 77 where there are none; 1 where there is hardware that this
jax cannot use, or where this interpreter lacks what the tests import.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tomllib
from pathlib import Path

import jax

NONE_HERE = 77
HIDING = ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS")
# A device node of the driver -> what it drives, and the extra of jax that uses it.
HARDWARE = {
    "/dev/nvidiactl": ("an NVIDIA GPU", "cuda13"),
    "/dev/kfd": ("an AMD GPU", "rocm7-local"),
    "/dev/accel0": ("a TPU", "tpu"),
}


def hidden_by() -> str:
    """The set variables that may hide an accelerator, as one line; empty if none is set."""
    return ", ".join(f"{name}={os.environ[name]}" for name in HIDING if name in os.environ)


def install(what: str) -> str:
    """The command that installs `what` for this interpreter."""
    if importlib.util.find_spec("pip") is None:  # an environment that uv has made
        return f"uv pip install --python {sys.executable} {what}"
    return f"{sys.executable} -m pip install {what}"


def missing_test_packages() -> list[str]:
    """The requirements of the tests that this interpreter lacks."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    return [
        requirement
        for requirement in project["dependency-groups"]["test"]
        if importlib.util.find_spec(import_name(requirement)) is None
    ]


def import_name(requirement: str) -> str:
    """`pytest-timeout>=2.4` -> `pytest_timeout`; `pytest-xdist` is the odd one, `xdist`."""
    name = re.split(r"[^\w.-]", requirement)[0].replace("-", "_")
    return "xdist" if name == "pytest_xdist" else name


def main() -> int:
    """Say what is here."""
    try:
        seen = [device for device in jax.devices() if device.platform != "cpu"]
    except (RuntimeError, AssertionError) as error:  # jax asserts where the only platform is gone
        print(f"jax cannot start ({hidden_by() or 'no variable set'}): {error or type(error)}")
        return 1
    if seen:
        for device in seen:
            print(f"{device}: {device.device_kind}")
        missing = missing_test_packages()
        if missing:
            print("The tests need: " + install(" ".join(f"'{one}'" for one in missing)))
        return 1 if missing else 0
    if hidden_by():
        print(f"No accelerator: jax sees CPUs only, with {hidden_by()}. Nothing to run.")
        return NONE_HERE
    for node, (what, extra) in HARDWARE.items():
        if Path(node).exists():
            print(f"There is {what} here, and this jax has no plug-in for it. Either")
            print("  " + install(f"'jax[{extra}]=={jax.__version__}'"))
            print("or name an interpreter whose jax has one, and take it as it is:")
            print("  make accelerator VENV=system PYTHON=python3")
            return 1
    print("No accelerator: there is no GPU or TPU here. Nothing to run.")
    return NONE_HERE


if __name__ == "__main__":
    sys.exit(main())
