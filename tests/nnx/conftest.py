"""Tests of `rx.nnx` need Flax."""

from __future__ import annotations

import pytest

pytest.importorskip("flax", reason="Flax is not installed: pip install 'replicax[flax]'")
