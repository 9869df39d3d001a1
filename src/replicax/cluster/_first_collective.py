"""The start is proved by a collective of all workers, whose values are looked at."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import StartupError, Table, describe

from ._waiting import call_elsewhere

_FINE = "proved"

Numbers = Callable[[], tuple[list[int], int]]


class Worker(Protocol):
    """What the proof asks of the runtime."""

    def check(self) -> None:
        """Raises the failure of another worker, if there is one."""

    def explain(self, error: BaseException) -> BaseException:
        """What an exception of the engine means."""

    def gather(self, name: str, data: Any, *, timeout: float | None = None) -> list[Any]:
        """Hands data to all workers."""


def prove(worker: Worker, seconds: float) -> None:
    """Has the devices of all workers exchange and add up numbers, and looks at them. Collective.

    Args:
        worker: The runtime of this worker.
        seconds: How long the collective may take.

    Raises:
        StartupError: It did not end in time, failed, or gave wrong numbers on some worker.
        WorkerFailedError: A worker failed meanwhile.
    """
    call = compiled()
    worker.gather("start/compiled", None, timeout=seconds)  # The engine waits less patiently.
    found = worker.gather("start/collective", _outcome(worker, call, seconds), timeout=seconds)
    if set(found) != {_FINE}:
        raise StartupError(
            describe(
                "The devices of the workers cannot compute together.",
                table=Table(("worker", "first collective"), list(enumerate(found))),
                why="a gather and a sum over all devices were tried before anything else.",
                fix="look whether the hosts reach each other on all ports, and whether each host's "
                "name leads to an address that the others reach.",
            )
        )


def _outcome(worker: Worker, call: Numbers, seconds: float) -> str:
    """What became of the collective on this worker, in words."""
    deadline = time.monotonic() + seconds

    def check() -> None:
        worker.check()
        if time.monotonic() > deadline:
            raise TimeoutError

    try:
        numbers, total = call_elsewhere(call, check)
    except TimeoutError:
        return f"did not end within {seconds:g} s"
    except Exception as error:  # noqa: BLE001 - told in the table
        worker.check()
        explained = worker.explain(error)
        worker.check()
        return f"failed: {str(explained).partition(chr(10))[0]:.300}"
    return verdict(numbers, total)


def compiled() -> Numbers:
    """A call that gathers a number of each device of all workers, and adds them up."""
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("device",))
    shared = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    equal = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    own = [
        jax.device_put(np.array([place + 1], np.int32), device)
        for place, device in enumerate(devices)
        if device.process_index == jax.process_index()
    ]
    numbers = jax.make_array_from_single_device_arrays((len(devices),), shared, own)
    together = jax.jit(lambda x: (x, jnp.sum(x)), out_shardings=equal).lower(numbers).compile()

    def exchange() -> tuple[list[int], int]:
        gathered, total = (np.asarray(each.addressable_data(0)) for each in together(numbers))
        return gathered.tolist(), int(total)

    return exchange


def verdict(numbers: list[int], total: int) -> str:
    """Whether the numbers of devices 1, 2, ... and their sum came.

    Examples:
        >>> verdict([1, 2], 3), verdict([1, 1], 2)
        ('proved', 'gave [1, 1] and 2 instead of [1, 2] and 3')
    """
    expected = list(range(1, len(numbers) + 1))
    if numbers == expected and total == sum(expected):
        return _FINE
    return f"gave {numbers} and {total} instead of {expected} and {sum(expected)}"
