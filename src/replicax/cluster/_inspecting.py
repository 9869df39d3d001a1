"""The end of a look at a job that is outside of it: see `_inspections`."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from replicax.errors import StartupError, UnavailableError, describe

from ._control import Control
from ._inspections import PATIENCE_S

LIMIT_S = 2 * PATIENCE_S


@dataclasses.dataclass(frozen=True)
class JobLook:
    """What was seen of a job.

    Attributes:
        records: What each worker that answered has recorded, by rank.
        silent: The workers that did not answer.
        states: Where each worker is, as the master knows.
        failure: The first failure, as a record; None if there is none.
        workers: Number of workers.
    """

    records: dict[int, dict[str, Any]]
    silent: tuple[int, ...]
    states: list[dict[str, Any]]
    failure: dict[str, Any] | None
    workers: int


def look_at_job(address: str, secret: bytes, *, patience: float = 5.0) -> JobLook:
    """Asks all workers of a running job for their records. Context: any; not a worker of the job.

    Args:
        address: `host:port` of the job's master.
        secret: The secret of the job.
        patience: Seconds to wait for the master.

    Raises:
        UnavailableError: There is no master of this job, or it did not answer in time.
        InvalidArgumentError: The address is none.
    """
    began = time.monotonic()
    try:
        control = Control.connect(address, secret, 1, began + min(patience, 1.0), patience)
    except StartupError as error:
        raise UnavailableError(
            describe(
                f"There is no running job with this secret at {address}.",
                why=str(error.__cause__ or error),
                fix="read the records that its workers wrote when it ended: "
                "`replicax inspect FOLDER`.",
            )
        ) from error
    try:
        return _asked(control, address, time.monotonic() + patience)
    finally:
        control.close()


def _asked(control: Control, address: str, deadline: float) -> JobLook:
    control.send("inspect")
    records: dict[int, dict[str, Any]] = {}
    try:
        while (left := deadline - time.monotonic()) > 0:
            for message in control.receive(left):
                if message["kind"] == "record":
                    records[int(message["worker"])] = message["record"]
                elif message["kind"] == "done":
                    return JobLook(
                        records=records,
                        silent=tuple(message["silent"]),
                        states=message["states"],
                        failure=message["failure"],
                        workers=message["workers"],
                    )
    except (ConnectionError, KeyError, TypeError) as error:
        problem = str(error)
    else:
        problem = "it did not answer in time"
    raise UnavailableError(
        describe(f"The master of the job at {address} did not tell of its workers: {problem}.")
    )
