"""`strategy.run`: choose the runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax import errors
from replicax.step._access import ForeignTrace, surrounding_trace
from replicax.step._arguments import check_run_arguments
from replicax.step._compiled import run_compiled
from replicax.step._eager import run_eager
from replicax.values import StrategyLike, current_frame
from replicax.values._tracing import outermost_level, trace_level


def run(
    strategy: StrategyLike,
    fn: Callable[..., Any],
    args: Any = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Run a replica function on every replica of a strategy; see `Strategy.run`."""
    if not callable(fn):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"{strategy.name}.run takes a function, not {fn!r}.",
                fix="Pass the function and its arguments apart: `run(fn, args=(x,))`.",
            )
        )
    check_run_arguments(strategy, args, kwargs)
    require_cross_replica(strategy, "run")
    frame = current_frame()
    access = frame.access if frame is not None else None
    trace = surrounding_trace(access)
    if trace is None and trace_level() != outermost_level():
        access = trace = ForeignTrace()
    if trace is not None and access is not None:
        return run_compiled(strategy, fn, args, kwargs or {}, trace, access)
    return run_eager(strategy, fn, args, kwargs or {})


def run_update(
    strategy: StrategyLike, fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Run the function of `extended.update` for each replica's copy of the variables."""
    frame = current_frame()
    access = frame.access if frame is not None else None
    trace = surrounding_trace(access)
    if trace is not None and access is not None:
        return run_compiled(strategy, fn, args, kwargs, trace, access, updating=True)
    return run_eager(strategy, fn, args, kwargs, updating=True)


def require_cross_replica(strategy: StrategyLike, call: str) -> None:
    """Check that the current context is cross-replica, or outside of every scope.

    Raises:
        ContextError: In replica context, or in a merge call for `run`.
        MixedStrategiesError: In the scope of another strategy.
    """
    frame = current_frame()
    if frame is None:
        return
    within = frame.merging is not None or frame.updating
    if frame.replica is not None or (call == "run" and within):
        where = "in a merge function" if frame.merging is not None else "in `extended.update`"
        where = "in replica context" if frame.replica is not None else where
        raise errors.ContextError(
            errors.describe(
                f"`strategy.{call}` was called {where}.",
                why="It acts across the replicas, and they are in the middle of a run.",
                fix="Call it outside of the function given to `strategy.run`. Inside, replicas "
                "meet with `rx.get_replica_context().all_reduce(...)`, `all_gather` or "
                "`merge_call`.",
            )
        )
    if call == "run" and frame.strategy is not None and frame.strategy is not strategy:
        raise mixed(frame.strategy, strategy, "run")


def mixed(current: StrategyLike, other: StrategyLike, call: str) -> errors.MixedStrategiesError:
    """The error of using one strategy inside another's scope."""
    return errors.MixedStrategiesError(
        errors.describe(
            f"`{call}` of {other.name} was called in the scope of {current.name}.",
            why="One scope, one strategy: variables and replicas of different strategies do not "
            "mix.",
            fix=f"Leave the scope of {current.name} first.",
        )
    )
