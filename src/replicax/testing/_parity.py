"""Parity with one device, as a test that everybody can call."""

from __future__ import annotations

from typing import Any

from replicax.strategies import Strategy
from replicax.verification import Report, verify


def assert_one_device_parity(
    strategy: Strategy, step: Any, state_or_variables: Any, dataset: Any
) -> Report:
    """Raises unless a training step does on all replicas what it does on one device.

    All checks of `rx.verify` must pass, not parity alone: a step whose replicas all compute the
    same agrees with one device, too. Nothing is changed.

    Context: cross-replica, or outside of every scope. Collective: where the strategy spans workers.

    Args:
        strategy: The strategy.
        step: The training step; see `rx.verify`.
        state_or_variables: Its functional state; or what it writes in place, or None.
        dataset: A distributed dataset, or what `rx.verify` takes for one.

    Returns:
        The report.

    Raises:
        VerificationError: A check has failed; the message has the table.

    Examples:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     total = rx.Variable(0.0, name="total")
        >>> def step(batch):
        ...     def replica_step(x):
        ...         total.assign_add(rx.get_replica_context().all_reduce("mean", x.sum()))
        ...     strategy.run(replica_step, args=(batch,))
        >>> dataset = rx.data.from_arrays(np.arange(8, dtype="float32")).batch(8)
        >>> try:
        ...     rx.testing.assert_one_device_parity(strategy, rx.function(step), None, dataset)
        ... except rx.errors.VerificationError as error:
        ...     print("1/2 of that of one device" in str(error))
        True
    """
    report = verify(strategy, step, state_or_variables, dataset)
    report.raise_if_failed()
    return report
