"""A Keras `Embedding` whose gradient is rows."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras

from replicax.step import embedding_lookup
from replicax.values import current_frame


@keras.saving.register_keras_serializable(package="replicax")
class Embedding(keras.layers.Embedding):  # type: ignore[misc] # Keras has no types
    """A `keras.layers.Embedding` that looks its rows up with `rx.embedding_lookup`.

    In a replica function the gradient of its table is an `rx.IndexedSlices`: the replicas exchange
    the rows that they looked up. An `rx.Optimizer` of the table also changes those rows alone;
    Keras' own optimizers take the gradient as a whole array. The numbers are those of Keras' layer,
    which it is everywhere else: in `fit`, outside of steps, quantized, and with LoRA.

    Examples:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     layer = rx.keras.Embedding(1000, 2)
        ...     layer.build()
        >>> @rx.function
        ... def step(ids):
        ...     def replica_step(ids):
        ...         loss = lambda: jnp.sum(layer(ids))
        ...         _, (gradient,) = rx.value_and_grad(loss, [layer.embeddings])()
        ...         return rx.get_replica_context().all_reduce("sum", gradient)
        ...     return strategy.run(replica_step, args=(ids,))
        >>> step(rx.PerReplica([jnp.array([3, 4]), jnp.array([7, 3])]))
        IndexedSlices(values=float32[4, 2], indices=int32[4], dense_shape=(1000, 2))
    """

    def call(self, inputs: Any) -> Any:
        """The rows for some ids, `[..., output_dim]`."""
        frame = current_frame()
        is_plain = self.quantization_mode is None and not self.lora_enabled
        if frame is None or frame.replica is None or not is_plain:
            return super().call(inputs)
        ids = jnp.asarray(inputs)
        if not jnp.issubdtype(ids.dtype, jnp.integer):
            ids = ids.astype("int32")
        # As in Keras, negative ids count from the end.
        ids = jnp.where(ids < 0, ids + self.input_dim, ids)
        rows = embedding_lookup(self.embeddings, ids)
        return keras.ops.cast(rows, self.compute_dtype)
