"""How `replicax inspect` finds a job of this host: a file that is there while the job runs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from replicax.errors import ReplicaxError
from replicax.recording import default_folder, own_folder, write_whole

JOB_FILE = "job.json"
FORMAT = "replicax job"


@contextlib.contextmanager
def job_file(*, job: str, control: str, secret_file: str, records: Path | None) -> Iterator[Path]:
    """Tells where the master of a job is, as long as it runs.

    The file has the place of the secret, not the secret. Without it a job cannot be inspected by
    its folder, and runs all the same.

    Args:
        job: What tells the job from others.
        control: Address of the control channel.
        secret_file: Where the secret is.
        records: Where its workers write their records, if that was chosen.

    Yields:
        The folder for records.
    """
    usual = default_folder() / job
    folders = [usual] if records is None else [usual, records]
    told = {
        "format": FORMAT,
        "control": control,
        "secret_file": secret_file,
        "pid": os.getpid(),
        "started": time.time(),
        "records": str(folders[-1]),
    }
    for folder in folders:
        with contextlib.suppress(OSError, ReplicaxError):
            write_whole(own_folder(folder) / JOB_FILE, told)
    try:
        yield folders[-1]
    finally:
        for folder in folders:
            with contextlib.suppress(OSError):
                (folder / JOB_FILE).unlink()
                folder.rmdir()  # Where nobody has written a record.


def is_running(file: Path) -> bool:
    """Whether the launcher that wrote the file is still there."""
    try:
        pid = json.loads(file.read_text(encoding="utf-8"))["pid"]
        os.kill(int(pid), 0)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True
