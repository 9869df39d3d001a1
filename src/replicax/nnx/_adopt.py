"""Make the parts of modules and optimizers variables of a strategy."""

from __future__ import annotations

import weakref
from typing import Any

import jax

from replicax import errors
from replicax.nnx import _binding
from replicax.nnx._compat import nnx, value_of
from replicax.nnx._model_variable import BY_PART
from replicax.nnx._owner import Owner, not_adopted, parts_of
from replicax.values import current_frame

# By identity: modules may define equality.
_OWNERS: dict[int, Owner] = {}


def adopt(*objects: Any) -> Any:
    """Let steps of the current strategy use modules and optimizers in place.

    Every `nnx.Variable` of the objects becomes a mirrored variable of the strategy: one copy a
    replica, all equal to that of replica 0 (of worker 0). The objects stay what they are: use them
    in `strategy.run` as arguments or from outside, inside `rx.function` or not, and read or write
    them between steps. What a replica writes means, by the type of the `nnx.Variable`:

    * `nnx.BatchStat`: the mean over the replicas.
    * `nnx.metrics.MetricState`: the sum of what the replicas added.
    * `nnx.RngKey`: each replica reads a key of its own, folded with its number.
    * All others, such as `nnx.Param` and the state of optimizers: it must be proved equal.

    A compiled step gives the old arrays of what it writes away: read a module after the step, not
    an array that was taken from it before.

    Context: cross-replica, in `strategy.scope()`. Collective: over several workers, where each
    must adopt the same objects in the same order.

    Args:
        *objects: Modules, optimizers, metrics or random streams of Flax NNX. Calling it again
            after a change of their structure adopts what is new. Over several workers, calling it
            again is also how all get what worker 0 wrote to a module between steps.

    Returns:
        The object, or a tuple of them if there are several.

    Raises:
        ContextError: Outside of a scope, or in replica context.
        ArgumentTypeError: Something else than an NNX object.
        UnimplementedError: A metric whose parts do not add up over replicas, as those of
            `nnx.metrics.Welford` do not.

    Examples:
        >>> from flax import nnx
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     counter = rx.nnx.adopt(nnx.metrics.Average("n"))
        >>> def replica_fn(n):
        ...     counter.update(n=n)
        >>> strategy.run(replica_fn, args=(rx.PerReplica([1.0, 4.0]),))
        >>> print(counter.compute())
        2.5
    """
    frame = current_frame()
    if frame is None or frame.strategy is None or frame.access is not None:
        raise errors.ContextError(
            errors.describe(
                "`rx.nnx.adopt` was called outside of a strategy's scope, or inside a step.",
                why="The parts of modules become variables of the strategy in whose scope it is "
                "called.",
                fix="Call it once, before training: `with strategy.scope(): rx.nnx.adopt(model)`.",
            )
        )
    for value in objects:
        _check(value)
        owner = _OWNERS.get(id(value))
        if owner is None:
            owner = _OWNERS[id(value)] = Owner(value)
            weakref.finalize(value, _OWNERS.pop, id(value), None)
        owner.adopt()
    return objects[0] if len(objects) == 1 else objects


def variables(module: Any, *filters: Any) -> Any:
    """The variables of an adopted module, to differentiate with respect to them.

    `rx.value_and_grad` and `rx.accumulate` take them; the gradients then are an `nnx.State` that
    `optimizer.update(module, gradients)` and `rx.apply_gradients` take.

    Context: any. Collective: no.

    Args:
        module: A module that was adopted.
        *filters: Which types; by default `nnx.Param`.

    Returns:
        An `nnx.State` with a variable in the place of each array.

    Raises:
        ContextError: A part was not adopted.
    """
    by_value = {}
    for name, part in parts_of(module):
        variable = BY_PART.get(id(part))
        if variable is None:
            raise not_adopted(name, part)
        by_value[id(value_of(part))] = variable
    state = nnx.state(module, *(filters or (nnx.Param,)))
    if len(filters) > 1:
        return tuple(jax.tree.map(lambda x: by_value[id(x)], one) for one in state)
    return jax.tree.map(lambda x: by_value[id(x)], state)


def _check(value: Any) -> None:
    if not _binding.is_object(value):
        raise errors.ArgumentTypeError(
            errors.describe(
                f"rx.nnx.adopt was given {value!r}, which is no module or optimizer of Flax NNX.",
                fix="Pass modules and optimizers: `rx.nnx.adopt(model, optimizer)`.",
            )
        )
    for path, node in nnx.iter_graph(value):
        if isinstance(node, nnx.metrics.Welford):
            raise errors.UnimplementedError(
                errors.describe(
                    f"rx.nnx.adopt: {type(value).__name__} holds an nnx.metrics.Welford at {path}.",
                    why="The parts of two replicas' running variances do not add up to that of all "
                    "rows.",
                    fix="Keep it out of steps, or use the metrics of `rx.metrics`.",
                )
            )
