"""`fit`, `evaluate` and `predict` on the replicas of a strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from replicax import errors
from replicax.collectives import TURNS
from replicax.input import DistributedDataset
from replicax.keras import _compat
from replicax.keras._adapters import KerasDataset, PlacedBatches
from replicax.keras._adopt import strategy_for
from replicax.keras._callbacks import for_this_worker
from replicax.keras._checks import check_call, check_placed, check_steps, check_wire_dtype
from replicax.keras._distribution import without_distribution
from replicax.keras._shuffle import shuffle_alike
from replicax.keras._steps import Interruptions, SafeSteps
from replicax.values import current_frame


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int | None = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Any = None,
    sample_weight: Any = None,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    callbacks: Any = None,
    **options: Any,
) -> Any:
    """Train a Keras model on the replicas of a strategy: `Model.fit`, with its arguments.

    Losses, metrics, weights and the statistics of BatchNorm are those of one device, whatever the
    number of rows; BatchNorm and Dropout see the global batch. Over several workers all pass the
    same data, each computes its part of each batch, and files are written by worker 0.

    Context: in the scope of the model's strategy, or outside of every scope. Collective: yes.

    Args:
        model: A compiled `keras.Model`, made in `strategy.scope()` or adopted.
        x: What `Model.fit` takes (arrays, a generator, a `PyDataset`, ...), or a distributed
            dataset of `(x, y)` or `(x, y, sample_weight)`.
        y: Targets, one entry a row.
        batch_size: Rows of a global batch; 32 by default for arrays.
        validation_split: Part of the rows to validate with: the last ones.
        validation_data: Data to validate with, like `x` or a tuple.
        shuffle: Whether arrays are shuffled before each epoch. Workers shuffle alike.
        class_weight: Weights by class.
        sample_weight: Weights by row.
        steps_per_epoch: Global batches of an epoch, not more than there are.
        validation_steps: Global batches of a validation.
        validation_batch_size: Rows of a global batch of a validation.
        callbacks: Keras callbacks.
        **options: `epochs`, `verbose`, `initial_epoch`, `validation_freq`.

    Returns:
        The `History`.

    Raises:
        MixedStrategiesError: A variable of the model was made outside of the scope.
        InvalidArgumentError: An epoch has fewer steps than asked for, or an argument would be
            ignored.

    Examples:
        >>> import keras
        >>> import numpy as np
        >>> import replicax as rx
        >>> with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> x = np.ones((5, 1), "float32")
        >>> history = rx.keras.fit(model, x, x, batch_size=2, verbose=0)
        >>> len(history.history["loss"])
        1
    """
    strategy = strategy_for(model)
    check_wire_dtype(strategy)
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = _compat.train_validation_split(
            (x, y, sample_weight), validation_split=validation_split
        )
    with _training(model, strategy) as safe:
        shuffle_alike(strategy, shuffle=shuffle)
        data = _adapter(
            strategy,
            x,
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
        )
        check_steps("steps_per_epoch", steps_per_epoch, data)
        validation = None
        if validation_data is not None:
            val_x, val_y, val_weight = _unpacked(validation_data)
            validation = _adapter(
                strategy,
                val_x,
                val_y,
                sample_weight=val_weight,
                batch_size=None
                if isinstance(val_x, DistributedDataset)
                else validation_batch_size or batch_size,
                steps_per_epoch=validation_steps,
            )
            check_steps("validation_steps", validation_steps, validation)
        return stock(model, "fit")(
            x=data,
            validation_data=validation,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            callbacks=[*for_this_worker(strategy, callbacks), safe],
            **options,
        )


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int | None = None,
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    **options: Any,
) -> Any:
    """Evaluate a Keras model on the replicas of a strategy: `Model.evaluate`; see `fit`.

    Every row counts once. Context and arguments are those of `fit`.

    Args:
        model: A compiled `keras.Model`.
        x: Data, as for `fit`.
        y: Targets.
        batch_size: Rows of a global batch.
        sample_weight: Weights by row.
        steps: Global batches to take, not more than there are.
        callbacks: Keras callbacks.
        **options: `verbose`, `return_dict`.

    Returns:
        What `Model.evaluate` returns: the loss and metrics, equal on all workers.
    """
    strategy = strategy_for(model)
    with _training(model, strategy) as safe:
        data = _adapter(
            strategy,
            x,
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps,
        )
        check_steps("steps", steps, data)
        callbacks = [*for_this_worker(strategy, callbacks), safe]
        return stock(model, "evaluate")(x=data, steps=steps, callbacks=callbacks, **options)


def predict(
    model: Any,
    x: Any,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    callbacks: Any = None,
    **options: Any,
) -> Any:
    """Predict with a Keras model on the replicas of a strategy: `Model.predict`; see `fit`.

    Args:
        model: A `keras.Model`.
        x: Data, as for `fit`.
        batch_size: Rows of a global batch.
        steps: Global batches to take, not more than there are.
        callbacks: Keras callbacks.
        **options: `verbose`.

    Returns:
        What `Model.predict` returns: arrays `[N, ...]` with one entry for each row, in order. Every
        worker gets all of them.
    """
    strategy = strategy_for(model)
    with _training(model, strategy) as safe:
        data = _adapter(strategy, x, batch_size=batch_size, steps_per_epoch=steps)
        check_steps("steps", steps, data)
        callbacks = [*for_this_worker(strategy, callbacks), safe]
        return stock(model, "predict")(x=data, steps=steps, callbacks=callbacks, **options)


def stock(model: Any, call: str) -> Any:
    """Keras' own method of a model, also where the model's class has a method of ours before it."""
    for kind in type(model).__mro__:
        method = kind.__dict__.get(call)
        if method is not None and not getattr(method, "_is_distributed", False):
            return method.__get__(model)
    raise errors.InternalError(f"{type(model).__name__} has no `{call}`.")


@contextlib.contextmanager
def _training(model: Any, strategy: Any) -> Iterator[SafeSteps]:
    """In the strategy's scope; the callback has the model take steps that can be interrupted."""
    frame = current_frame()
    in_scope = frame is not None and frame.strategy is strategy
    check_placed(model, strategy.replica_mesh)
    scope = contextlib.nullcontext() if in_scope else strategy.scope()
    with scope, Interruptions() as interruptions:
        TURNS.settle()
        steps = SafeSteps(model, strategy.replica_mesh, interruptions)
        try:
            yield steps
        finally:
            steps.restore()


def _adapter(strategy: Any, x: Any, y: Any = None, **given: Any) -> Any:
    if isinstance(x, DistributedDataset):
        check_call({"y": y, **given})
        if x._mesh is not strategy.replica_mesh:
            raise errors.MixedStrategiesError(
                errors.describe(
                    f"The model belongs to {strategy.name}, the dataset to another strategy: {x!r}",
                    fix="Distribute the data with the model's strategy.",
                )
            )
        if isinstance(x, KerasDataset):
            return x
        return KerasDataset(x._feed, x._mesh, x._options, x.plan)  # made before Keras was imported
    with without_distribution():
        inner = _compat.get_data_adapter(x, y, **given)
    return PlacedBatches(inner, strategy.replica_mesh)


def _unpacked(data: Any) -> tuple[Any, Any, Any]:
    import keras  # noqa: PLC0415 - its own rules for `x`, `(x,)`, `(x, y)` and `(x, y, weights)`

    found: tuple[Any, Any, Any] = keras.utils.unpack_x_y_sample_weight(data)
    return found
