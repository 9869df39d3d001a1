"""What libraries set in the environment when they are imported is no test's leak."""

from __future__ import annotations

import contextlib
import importlib

for name in ("keras", "sklearn.datasets"):
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(name)
