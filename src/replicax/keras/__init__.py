"""Keras on the replicas of a strategy: `fit` in the global view, Keras objects in steps.

Floor 8 of the design; nothing below knows it. It needs Keras 3 with its JAX backend.
"""

from __future__ import annotations

import importlib.util as _util
import os as _os

from replicax import errors as _errors

if _util.find_spec("keras") is None:
    raise _errors.FailedPreconditionError(
        _errors.describe(
            "rx.keras needs Keras, which is not installed.",
            fix="Install it: `python -m pip install 'replicax[keras]'`.",
        )
    )

import keras as _keras

if _keras.config.backend() != "jax":
    raise _errors.FailedPreconditionError(
        _errors.describe(
            f"rx.keras needs Keras on JAX, but the backend of Keras is "
            f"{_keras.config.backend()!r} (KERAS_BACKEND={_os.environ.get('KERAS_BACKEND')!r}).",
            why="Keras reads the environment variable KERAS_BACKEND when it is imported.",
            fix='Start the program with KERAS_BACKEND=jax; or set `os.environ["KERAS_BACKEND"] = '
            '"jax"` before the first `import keras`.',
        )
    )

from replicax import input as _input
from replicax.keras import _verification as _verification
from replicax.keras._adapters import KerasDataset as _KerasDataset
from replicax.keras._adopt import adopt as adopt
from replicax.keras._embedding import Embedding as Embedding
from replicax.keras._fit import evaluate as evaluate
from replicax.keras._fit import fit as fit
from replicax.keras._fit import predict as predict
from replicax.keras._hooks import hook as _hook
from replicax.keras._lifted import lift as _lift
from replicax.keras._lifted import parts as _parts
from replicax.keras._model import Distributed as Distributed
from replicax.keras._model import Model as Model
from replicax.keras._model import Sequential as Sequential
from replicax.keras._optimizers import apply_gradients as _apply_gradients
from replicax.keras._optimizers import is_optimizer as _is_optimizer
from replicax.step import register_optimizer as _register_optimizer
from replicax.values import register_foreign as _register_foreign
from replicax.values import register_frame_hook as _register_frame_hook
from replicax.values._foreign import register_holder as _register_holder

_register_frame_hook(_hook)
_register_foreign(lambda thing: isinstance(thing, _keras.Variable), _lift)
_register_holder(_parts)
_register_optimizer(_is_optimizer, _apply_gradients)
_input.register_dataset_class(_KerasDataset)

__all__ = [
    "Distributed",
    "Embedding",
    "Model",
    "Sequential",
    "adopt",
    "evaluate",
    "fit",
    "predict",
]
