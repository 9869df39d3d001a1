"""The command `replicax`, and `python -m replicax`.

replicax run --nproc-per-node 2 train.py --epochs 3
"""

from __future__ import annotations

from ._main import main as main

__all__ = [
    "main",
]
