"""How the tests of the proof pass prove a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import pytest

from replicax.step._proof import Proof, Source, prove

REPLICAS = 4


def prove_function(fn: Callable[..., Any], *args: Any, varies: Sequence[int] = ()) -> Proof:
    """Prove `fn` for arguments of which those at `varies` vary."""
    jaxpr = jax.make_jaxpr(fn, axis_env=[("replica", REPLICAS)])(*args)
    kinds = [
        Source(f"argument `{i}`", None) if i in varies else None
        for i, argument in enumerate(args)
        for _ in jax.tree.leaves(argument)
    ]
    return prove(jaxpr, kinds)


def kinds_of(fn: Callable[..., Any], *args: Any, varies: Sequence[int] = ()) -> str:
    """One letter an output: m (mirrored) or v (varying)."""
    proof = prove_function(fn, *args, varies=varies)
    return "".join("m" if kind is None else "v" for kind in proof.outputs)


@pytest.fixture
def proved() -> Callable[..., Proof]:
    return prove_function


@pytest.fixture
def kinds() -> Callable[..., str]:
    return kinds_of
