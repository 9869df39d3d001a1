"""A strategy as a `keras.distribution.Distribution`, which Keras asks where to put things."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Self

import keras
import numpy as np

from replicax import errors
from replicax.cluster import agree
from replicax.keras import _compat
from replicax.values import AXIS, Frame


class ReplicaDevices(keras.distribution.DeviceMesh):  # type: ignore[misc] # Keras has no types
    """The devices of a strategy's replicas.

    Attributes:
        strategy: The strategy.
    """

    def __init__(self, strategy: Any) -> None:
        devices = np.empty(strategy.num_replicas_in_sync, dtype=object)
        devices[:] = strategy.replica_mesh.devices
        super().__init__(devices.shape, (AXIS,), devices)
        self.strategy = strategy

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself: a copy of a variable belongs to the same strategy."""
        del memo
        return self


class ReplicaDistribution(_compat.Distribution):  # type: ignore[misc]
    """Variables lie on every replica of a strategy, data is split over them row by row.

    `strategy.scope()` makes it the current one of Keras.

    Args:
        strategy: The strategy.
    """

    def __init__(self, strategy: Any) -> None:
        super().__init__(ReplicaDevices(strategy), batch_dim_name=AXIS, auto_shard_dataset=False)
        self.strategy = strategy

    @property
    def num_model_replicas(self) -> int:
        """Number of replicas."""
        count: int = self.strategy.num_replicas_in_sync
        return count

    @property
    def auto_shard_dataset(self) -> bool:
        """No. Keras asks where there are several processes, before it takes data of its own kinds.

        Raises:
            UnimplementedError: Over several workers.
        """
        if self.strategy.replica_mesh.spans_processes:
            raise _rows_of_one_worker("data that is no distributed dataset")
        return False

    def layout(self, *axes: str | None) -> Any:
        """A layout on the replicas."""
        return keras.distribution.TensorLayout(axes, self.device_mesh)

    def get_variable_layout(self, variable: Any) -> Any:
        """One copy on each replica."""
        return self.layout(*(None for _ in variable.shape))

    def get_data_layout(self, data_shape: Sequence[int]) -> Any:
        """Rows split over the replicas; whole on each where they cannot be shared evenly."""
        rest = [None] * (len(data_shape) - 1)
        mesh = self.strategy.replica_mesh
        if not data_shape:
            return self.layout()
        if mesh.spans_processes:
            raise _rows_of_one_worker(f"a batch of {data_shape[0]} rows")
        is_even = data_shape[0] % mesh.num_replicas == 0
        return self.layout(AXIS if is_even else None, *rest)

    def get_tensor_layout(self, path: str) -> None:
        """None: XLA lays activations out as the data is."""
        del path


def _rows_of_one_worker(what: str) -> errors.UnimplementedError:
    return errors.UnimplementedError(
        errors.describe(
            f"A method of Keras' own was given {what}, over several workers.",
            why="Keras would take the rows for those of this worker alone: what all workers pass "
            "would count several times.",
            fix="Use `rx.keras.fit(model, ...)`, `evaluate` or `predict`, which split what all "
            "workers pass; or give `model.fit` a dataset of `strategy.distribute_dataset(...)`.",
        )
    )


_MADE: weakref.WeakKeyDictionary[Any, ReplicaDistribution] = weakref.WeakKeyDictionary()


def distribution_of(strategy: Any) -> ReplicaDistribution:
    """The one distribution of a strategy."""
    if strategy not in _MADE:
        _MADE[strategy] = ReplicaDistribution(strategy)
    return _MADE[strategy]


def current_distribution() -> Any:
    """The distribution that Keras has at present, or None."""
    return keras.distribution.distribution()


@contextlib.contextmanager
def without_distribution() -> Iterator[None]:
    """Let Keras work as in a process of its own."""
    before = current_distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)


@contextlib.contextmanager
def in_scope(frame: Frame) -> Iterator[None]:
    """Install the distribution of the frame's strategy for the length of a strategy's scope."""
    distribution = distribution_of(frame.strategy)
    if distribution is current_distribution():
        yield
        return
    if distribution.strategy.replica_mesh.spans_processes:
        _start_from_one_seed()
    with distribution.scope():
        yield


def _start_from_one_seed() -> None:
    """Have all workers draw the same initial weights. Collective.

    Keras draws the seeds of its initializers from Python's random numbers. Where the workers have
    set none, or different ones, that of worker 0 counts, as it does for any variable.
    """
    seed = _compat.get_random_seed()
    drawn = int(np.random.default_rng().integers(2**31))
    told = agree("the scope of a strategy with Keras", {}, untold={"seed": seed, "drawn": drawn})
    if seed is None or any(record["seed"] != seed for record in told):
        first = told[0]["seed"]
        keras.utils.set_random_seed(told[0]["drawn"] if first is None else first)


def strategy_of_variable(variable: Any) -> Any:
    """The strategy in whose scope a Keras variable was created, or None."""
    devices = getattr(_compat.layout_of(variable), "device_mesh", None)
    return devices.strategy if isinstance(devices, ReplicaDevices) else None
