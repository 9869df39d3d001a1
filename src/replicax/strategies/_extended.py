"""The part of a strategy that libraries use rather than training loops."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax

from replicax import devices, errors
from replicax.step import run_update
from replicax.strategies._destinations import placed, with_destination
from replicax.values import Frame, PerReplica, Variable, current_frame, entered

if TYPE_CHECKING:
    from replicax.collectives import CommunicationOptions, ReduceOp
    from replicax.strategies._base import Strategy


class StrategyExtended:
    """What libraries need of a strategy, under tf.distribute's names.

    Args:
        strategy: The strategy.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    # -- facts ------------------------------------------------------------------

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Device specs of the replicas, in replica order.

        Examples:
            >>> import replicax as rx
            >>> rx.MirroredStrategy(["cpu:0"]).extended.worker_devices
            ('/job:localhost/replica:0/task:0/device:CPU:0',)
        """
        mesh = self._strategy.replica_mesh
        return tuple(str(devices.spec_of(device)) for device in mesh.devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Device specs that hold the variables: the replicas' devices, or the central one."""
        central = self._strategy.parameter_device
        return self.worker_devices if central is None else (str(devices.spec_of(central)),)

    # -- variables --------------------------------------------------------------

    def variable_created_in_scope(self, v: Any) -> bool:
        """Whether `v` is a variable of this strategy.

        Context: any.
        """
        return isinstance(v, Variable) and v.strategy is self._strategy

    def value_container(self, value: Any) -> Any:
        """Return the variable that `value` is a copy of: variables here stand for all copies.

        Context: any.
        """
        return value

    @contextlib.contextmanager
    def colocate_vars_with(self, colocate_with_variable: Variable) -> Iterator[None]:
        """Create variables on the devices of another variable.

        All variables of a strategy lie on the same devices, so this checks and changes nothing.

        Context: cross-replica.

        Raises:
            ContextError: Outside of the strategy's scope.
            InvalidArgumentError: Not a variable of this strategy.
        """
        frame = current_frame()
        if frame is None or frame.strategy is not self._strategy:
            raise errors.ContextError(
                errors.describe(
                    f"`colocate_vars_with` of {self._strategy.name} was called outside of its "
                    "scope.",
                    fix="Call it under `with strategy.scope():`.",
                )
            )
        self._check_variable(colocate_with_variable, "colocate_vars_with")
        yield

    def update(
        self,
        var: Variable,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,  # noqa: FBT001, FBT002 - tf.distribute's signature
    ) -> Any:
        """Call `fn(var, *args, **kwargs)` for each copy of a variable.

        Inside, variables are seen one copy at a time: reads and writes are those of one replica,
        and per-replica arguments are unpacked. The copies of a mirrored variable must be equal
        afterwards: proved in `rx.function`, compared bit by bit in the eager runner.

        Context: any. In replica context the replicas meet, and their arguments become per-replica
        values. Collective: there.

        Args:
            var: A variable of this strategy.
            fn: Gets the variable and the arguments.
            args: Arguments.
            kwargs: Named arguments.
            group: Whether to return one value for all copies.

        Returns:
            What `fn` returned: with `group` as `strategy.run` returns it, else a tuple with one
            entry a replica.

        Raises:
            InvalidArgumentError: `var` is no variable of this strategy.
            VaryingWriteError: The copies of a mirrored variable would differ.

        Examples:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> with strategy.scope():
            ...     v = rx.Variable(1.0, name="v")
            >>> _ = strategy.extended.update(v, lambda v, x: v.assign_add(x), args=(2.0,))
            >>> float(v)
            3.0
        """
        self._check_variable(var, "update")
        if not callable(fn) or not isinstance(args, (list, tuple)):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"`update` was given {fn!r} with `args` = {args!r}.",
                    why="It takes a function and a list or tuple.",
                    fix="Pass `update(var, fn, args=(value,))`.",
                )
            )
        frame = current_frame()
        if frame is not None and frame.updating:
            raise errors.ContextError(
                errors.describe(
                    f"`update` of `{var.name}` was called inside another `update`.",
                    why="There each copy is on its own.",
                    fix="Call it after the other one.",
                )
            )
        named = dict(kwargs or {})
        if frame is not None and frame.replica is not None:
            replica: Any = frame.replica
            call = functools.partial(_updated, var=var, fn=fn, group=group)
            return replica.merge_call(call, args=tuple(args), kwargs=named)
        if frame is not None and frame.merging is not None and frame.access is not None:
            result = self._update_own_copy(var, fn, args, named)
        else:
            result = run_update(self._strategy, functools.partial(fn, var), tuple(args), named)
        return result if group else self._strategy.local_results(result)

    def _update_own_copy(self, var: Variable, fn: Any, args: Any, kwargs: Any) -> Any:
        """Update in a compiled merge call, which each replica runs for itself."""
        frame: Any = current_frame()

        def inwards(leaf: Any) -> Any:
            return leaf.local if isinstance(leaf, PerReplica) and leaf.local is not None else leaf

        args, kwargs = jax.tree.map(
            inwards, (tuple(args), kwargs), is_leaf=lambda x: isinstance(x, PerReplica)
        )
        with entered(Frame(frame.strategy, access=frame.access, updating=True)):
            result = fn(var, *args, **kwargs)
        return jax.tree.map(
            lambda x: PerReplica.from_local(x) if isinstance(x, jax.Array) else x, result
        )

    def _check_variable(self, v: Any, call: str) -> None:
        if self.variable_created_in_scope(v):
            return
        if isinstance(v, Variable):
            owner = "no strategy" if v.strategy is None else v.strategy.name
            what = f"`{call}` of {self._strategy.name} was given variable `{v.name}` of {owner}."
            why = "It was created outside of this strategy's scope, and has no copies here."
        else:
            what = f"`{call}` of {self._strategy.name} was given {v!r}, which is no variable."
            why = None
        fix = "Pass a variable that was created under `with strategy.scope():`."
        raise errors.InvalidArgumentError(errors.describe(what, why=why, fix=fix))

    # -- values -----------------------------------------------------------------

    def reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Combine the components of a per-replica value, and place the result.

        Context: cross-replica. Collective: in compiled steps.

        Args:
            reduce_op: `"sum"`, `"mean"` or a `ReduceOp`.
            value: A tree of per-replica values; of a value that is equal on all replicas, the mean
                is the value.
            destinations: Where the result goes: a variable or value, on whose devices it is
                placed; or a device spec. In compiled steps it stays on the replicas' devices.
            options: Accepted for tf.distribute's sake; XLA plans the transfer.

        Raises:
            ArgumentTypeError: `destinations` is a list or something else that names no devices.
        """
        del options
        target = placed(self._strategy, destinations, "reduce_to")
        return target(self._strategy.reduce(reduce_op, value, axis=None))

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Combine several values; see `reduce_to`.

        Args:
            reduce_op: `"sum"`, `"mean"` or a `ReduceOp`.
            value_destination_pairs: Pairs of a value and its destinations.
            options: As in `reduce_to`.

        Returns:
            One result a pair.
        """
        return [
            self.reduce_to(reduce_op, value, destinations, options)
            for value, destinations in with_destination(value_destination_pairs)
        ]

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Place one value on the devices of `destinations`; see `reduce_to`.

        Context: cross-replica.

        Examples:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
            >>> with strategy.scope():
            ...     v = rx.Variable(0.0)
            >>> len(strategy.extended.broadcast_to(1.0, v).devices())
            2
        """
        return placed(self._strategy, destinations, "broadcast_to")(tensor)


def _updated(strategy: Any, *args: Any, var: Any, fn: Any, group: bool, **kwargs: Any) -> Any:
    """Update in a merge call."""
    return strategy.extended.update(var, fn, args, kwargs, group)
