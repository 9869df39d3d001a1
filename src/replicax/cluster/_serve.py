"""The master as a program: `python -m replicax.cluster._serve`, started by `MasterProcess`.

It reads one line of JSON with what `Master` takes from standard input, prints one with the two
addresses, and ends some time after standard input does: the process that started it has left then,
or was killed, and the other workers still need to hear of that.
"""

from __future__ import annotations

import json
import logging
import sys
import time

from replicax.errors import StartupError

from ._master import Master
from ._timeouts import Timeouts

POLL_S = 0.1


def main() -> int:
    """Serves until the other end of standard input is gone and all workers have left."""
    logging.basicConfig(format="replicax master: %(message)s")
    options = json.loads(sys.stdin.readline())
    timeouts = Timeouts.from_json(options.pop("timeouts"))
    secret = bytes.fromhex(options.pop("secret"))
    master = Master(secret=secret, timeouts=timeouts, **options)
    try:
        master.start()
    except StartupError as error:
        _answer(error=str(error))
        return 1
    _answer(address=master.address, coordinator_address=master.coordinator_address)
    sys.stdin.read()
    deadline = time.monotonic() + timeouts.shutdown
    while not master.all_left() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    master.stop()
    return 0


def _answer(**fields: str) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
