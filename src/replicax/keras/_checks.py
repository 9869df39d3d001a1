"""What is checked before Keras takes a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from replicax import errors
from replicax.keras import _compat
from replicax.keras._callbacks import WRITERS
from replicax.keras._distribution import current_distribution
from replicax.values import ReplicaMesh

_NAMED = 20

OURS: list[Any] = []
"""Models that `rx.keras.fit` and its relatives are at work on."""


def variables_of(model: Any) -> list[Any]:
    """All variables that a model's steps use: weights, seeds, optimizer and metrics."""
    optimizer = getattr(model, "optimizer", None)
    found = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    found += model.metrics_variables if getattr(model, "compiled", False) else []
    return list({id(variable): variable for variable in found}.values())


def check_placed(model: Any, mesh: ReplicaMesh) -> None:
    """Refuse a model some of whose variables lie elsewhere than on the replicas.

    Raises:
        MixedStrategiesError: Naming them.
    """
    if model is None:
        return
    found = variables_of(model)
    if current_distribution() is None and getattr(model, "compiled", False):
        # Outside of the scope Keras sets metrics to zeros that lie nowhere in particular.
        metrics = {id(variable) for variable in model.metrics_variables}
        found = [variable for variable in found if id(variable) not in metrics]
    wrong = [v for v in found if not lies_on(_compat.array_of(v), mesh)]
    if wrong:
        raise not_on_replicas(wrong, f"Model `{model.name}`")


def lies_on(array: Any, mesh: ReplicaMesh) -> bool:
    """Whether an array lies on all replicas, or does not exist yet."""
    return not isinstance(array, jax.Array) or array.sharding.device_set == set(mesh.devices)


def not_on_replicas(variables: Iterable[Any], who: str) -> errors.MixedStrategiesError:
    """The error of Keras variables that were created outside of the strategy's scope."""
    listed = list(variables)
    rows = []
    for variable in listed[:_NAMED]:
        array = _compat.array_of(variable)
        rows.append((variable.path, ", ".join(sorted(str(d) for d in array.devices()))))
    first, more = listed[0].path, len(listed) - 1
    return errors.MixedStrategiesError(
        errors.describe(
            f"{who} uses variable `{first}`{f' and {more} more' if more else ''}, which was "
            "created outside of the strategy's scope.",
            table=errors.Table(("variable", "lies on"), rows),
            why="It has one copy, and the replicas would have none of their own.",
            fix="Create the model, its optimizer and its metrics (so also `compile`) under `with "
            "strategy.scope():`; or bring over what exists: `with strategy.scope(): "
            "rx.keras.adopt(model)`.",
        )
    )


def check_call(given: Mapping[str, Any]) -> None:
    """Refuse what Keras would ignore beside a dataset that makes its own batches.

    Args:
        given: The arguments of the call, by name.

    Raises:
        InvalidArgumentError: Naming the argument.
    """
    ignored = ("y", "sample_weight", "class_weight", "batch_size")
    wrong = [name for name in ignored if given.get(name) is not None]
    if wrong:
        names = ", ".join(f"`{name}`" for name in wrong)
        raise errors.InvalidArgumentError(
            errors.describe(
                f"{names} was given beside a distributed dataset.",
                why="The dataset makes the batches, and Keras would ignore the argument in "
                "silence.",
                fix="Put targets and weights into the dataset, `(x, y, sample_weight)`, and its "
                "batch size into `rx.InputOptions(global_batch_size=...)`.",
            )
        )


def check_own_method(call: _compat.Call) -> None:
    """Refuse what Keras' own methods get wrong over several workers.

    Args:
        call: A call with a distributed dataset.

    Raises:
        UnimplementedError: It is `predict`, or has callbacks that write files.
    """
    if any(model is call.model for model in OURS):
        return
    given = call.callbacks if isinstance(call.callbacks, (list, tuple)) else [call.callbacks]
    writers = [type(one).__name__ for one in given if isinstance(one, WRITERS)]
    if call.method == "predict":
        what, why = "", "Each worker holds the predictions of its own rows only."
    elif writers:
        what = f" with {', '.join(writers)}"
        why = "All workers would write the same files at once."
    else:
        return
    raise errors.UnimplementedError(
        errors.describe(
            f"Keras' own `{call.method}` was called over several workers{what}.",
            why=why,
            fix=f"Use `rx.keras.{call.method}(model, ...)`, or a model with the mixin "
            "(`rx.keras.Model`, `rx.keras.Sequential`, `rx.keras.Distributed`).",
        )
    )


def check_wire_dtype(strategy: Any) -> None:
    """Refuse to train with gradients in half precision where XLA combines them.

    Raises:
        UnimplementedError: The options of the strategy ask for it.
    """
    wire = strategy.communication_options.wire_dtype
    if wire in {None, "float32"}:
        return
    raise errors.UnimplementedError(
        errors.describe(
            f"`fit` was called with a strategy whose options have `wire_dtype={wire!r}`.",
            why="In Keras' own training XLA combines the gradients, in their own dtype.",
            fix="Train in a loop with `rx.value_and_grad` and `ctx.all_reduce`; or leave "
            "`wire_dtype` out of the strategy's options.",
        )
    )


def check_steps(name: str, steps: int | None, data: Any) -> None:
    """Refuse more steps than the data has global batches.

    Raises:
        InvalidArgumentError: Keras would end the training in the middle of an epoch.
    """
    count = data.num_batches
    if steps is None or count is None or steps <= count:
        return
    raise errors.InvalidArgumentError(
        errors.describe(
            f"`{name}` = {steps}, but the data has {count} global batches.",
            why="A step takes one global batch, which all replicas share: the number of replicas "
            f"does not count. The global batch is {data.batch_size or 'the dataset'}"
            f"{' rows' if data.batch_size else chr(39) + 's own'}.",
            fix="Leave it out, to take every row once an epoch; or divide the rows by the global "
            "batch, not by one replica's part of it.",
        )
    )
