"""Metrics: means, sums and counts over the real rows of global batches.

Create a metric under `strategy.scope()`, call `update_state` in the function given to
`strategy.run`, and `result` wherever the number is wanted:

    with strategy.scope():
        loss, accuracy = rx.metrics.Mean(), rx.metrics.SparseCategoricalAccuracy()

    @rx.function
    def evaluate(batch):
        def replica_fn(batch):
            x, labels = batch
            scores = model(x)
            loss.update_state(loss_of_each_row(scores, labels))
            accuracy.update_state(labels, scores)
        strategy.run(replica_fn, args=(batch,))

    for batch in strategy.distribute_dataset(dataset):
        evaluate(batch)
    print(loss.result(), accuracy.result())
    loss.reset_state(), accuracy.reset_state()

* Axis 0 of what `update_state` takes is the rows of the replica's batch. Each real row counts
  once, whatever replica it is on and however many rows its batch has. Rows that pad a remainder
  do not count. A value that was averaged before (a scalar) is refused: it has lost its rows.
* `update_state` does not communicate. The totals are variables with `synchronization="on_read"`,
  which `result` sums over the replicas. In replica context `result` is a collective, and gives
  every replica that same number.
* A total is two float32 numbers a replica: the sum, and what was rounded off it. So counts go on
  past 16,777,216, where a float32 stops, and long sums do not drift. Rounding to float32 happens
  once, where the replicas are added up for a result or a checkpoint.
* A metric without rows is 0.0, as in Keras, whose method names these are.
* `rx.checkpoint.Checkpoint` saves a metric, or an object that has one, on any number of replicas.
"""

from replicax.metrics._counts import AUC as AUC
from replicax.metrics._counts import ConfusionMatrix as ConfusionMatrix
from replicax.metrics._means import Mean as Mean
from replicax.metrics._means import MeanOf as MeanOf
from replicax.metrics._means import Sum as Sum
from replicax.metrics._metric import Metric as Metric
from replicax.metrics._pairs import Accuracy as Accuracy
from replicax.metrics._pairs import BinaryAccuracy as BinaryAccuracy
from replicax.metrics._pairs import MeanAbsoluteError as MeanAbsoluteError
from replicax.metrics._pairs import MeanSquaredError as MeanSquaredError
from replicax.metrics._pairs import RootMeanSquaredError as RootMeanSquaredError
from replicax.metrics._pairs import SparseCategoricalAccuracy as SparseCategoricalAccuracy

__all__ = [
    "AUC",
    "Accuracy",
    "BinaryAccuracy",
    "ConfusionMatrix",
    "Mean",
    "MeanAbsoluteError",
    "MeanOf",
    "MeanSquaredError",
    "Metric",
    "RootMeanSquaredError",
    "SparseCategoricalAccuracy",
    "Sum",
]
