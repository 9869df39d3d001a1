"""Check the files of the repository for what no linter looks at.

No file holds a path of one machine or the address of a package index, and no module outgrows
what a reader can hold.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

MAX_LINES = 800
KIT = Path("tests/parity/kit")  # kept as it came
MACHINE_PATH = re.compile(r"(?<![\w.~>])/(?:home|root|Users|tmp|work|farm)/[\w.]")
PACKAGE_INDEX = re.compile(r"^\s*--(?:index-url|extra-index-url|find-links)|file:///", re.MULTILINE)


def files() -> list[Path]:
    """Every file that is tracked, or would be with `git add --all`."""
    git = shutil.which("git")
    if git is None or not Path(".git").exists():
        return []
    listed = subprocess.run(
        [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [file for name in listed.stdout.split("\0") if name and (file := Path(name)).is_file()]


def faults(file: Path) -> list[str]:
    """What is wrong with one file, a line each."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []
    found = []
    for number, line in enumerate(lines, start=1):
        if MACHINE_PATH.search(line):
            found.append(f"{file}:{number}: a path of one machine: {line.strip()}")
        if PACKAGE_INDEX.search(line) and file.parts[0] != "tools":
            found.append(f"{file}:{number}: the address of a package index: {line.strip()}")
    is_ours = KIT not in file.parents
    if file.suffix == ".py" and is_ours and len(lines) > MAX_LINES:
        found.append(f"{file}: {len(lines)} lines; split what is over {MAX_LINES}")
    return found


def main() -> int:
    """Print every fault; 1 if there is any."""
    looked_at = files()
    found = [fault for file in looked_at for fault in faults(file)]
    print("\n".join(found) or f"{len(looked_at)} files hold no machine's paths")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
