"""Keras is imported before any test: what it sets in the environment is no test's leak."""

from __future__ import annotations

import contextlib

with contextlib.suppress(ModuleNotFoundError):
    import keras  # noqa: F401
