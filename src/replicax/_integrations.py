"""Parts of the upper floors that belong to other libraries, once a program has imported those.

The core imports no model library. Where a program has, the part that joins the two is imported when
the first strategy's scope is entered, the first dataset distributed or the first step run.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_WAITING = {"keras": "replicax.keras"}


def load() -> None:
    """Import the parts whose libraries are there by now. Costs a look-up while none is."""
    for library in [name for name in _WAITING if name in sys.modules]:
        if _is_usable(sys.modules[library]):
            importlib.import_module(_WAITING.pop(library))


def _is_usable(keras: Any) -> bool:
    """Whether Keras has been imported to its end and computes with JAX."""
    backend = getattr(getattr(keras, "config", None), "backend", None)
    return backend is not None and backend() == "jax"
