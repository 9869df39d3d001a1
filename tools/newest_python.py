"""Print the newest Python here, of another minor version than the one that runs this file.

Only Python 3.12 and newer count, and only those that run and can make virtual environments: a
pyenv shim may be on PATH and fail when called. Exits with 1 and prints nothing if there is none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PROBE = """
import ensurepip, sys, sysconfig, venv
assert sys.version_info.releaselevel == "final"
assert not sysconfig.get_config_var("Py_GIL_DISABLED")
print(*sys.version_info[:3])
"""
PROBE_TIMEOUT_S = 20
OLDEST = (3, 12)


def on_path() -> list[Path]:
    """Every python3.N in every folder of PATH, working or not."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    return [
        file
        for folder in folders
        for file in sorted(folder.glob("python3.*"))
        if re.fullmatch(r"python3\.\d+", file.name)
    ]


def of_pyenv() -> list[Path]:
    """The interpreters that pyenv has built, whether it shows them on PATH or not."""
    pyenv = shutil.which("pyenv")
    if pyenv is None:
        return []
    root = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False)
    return sorted(Path(root.stdout.strip()).glob("versions/3.*/bin/python"))


def version(python: Path) -> tuple[int, ...] | None:
    """The version that `python` says it is; None where it does not run or lacks venv or pip."""
    try:
        said = subprocess.run(
            [python, "-I", "-c", PROBE],
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tuple(map(int, said.stdout.split())) if said.returncode == 0 else None


def main() -> int:
    """Print the path of the newest; 1 if there is none."""
    found = [
        (number, str(python))
        for python in [*on_path(), *of_pyenv()]
        if (number := version(python)) is not None
        and number >= OLDEST
        and number[:2] != sys.version_info[:2]
    ]
    if not found:
        return 1
    print(max(found)[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
