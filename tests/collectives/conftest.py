"""A mapped program over some of the logical CPU devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

AXIS = "replica"


@pytest.fixture
def on_replicas() -> Callable[..., Any]:
    """`on_replicas(f, *args, n=2)`: jit(shard_map) of f; its args have a leading replica axis.

    The results are numpy arrays. Indexing a sharded jax array is a sum that loses -0.0.
    """

    def run(function: Callable[..., Any], *args: Any, n: int = 2) -> Any:
        results = jax.jit(mapped(function, n))(*args)
        return jax.tree.map(lambda x: x if is_key(x) else np.asarray(x), results)

    return run


@pytest.fixture
def hlo_on_replicas() -> Callable[..., str]:
    """`hlo_on_replicas(f, *args, n=2)`: the optimised HLO text of the same program."""

    def text(function: Callable[..., Any], *args: Any, n: int = 2) -> str:
        return jax.jit(mapped(function, n)).lower(*args).compile().as_text()

    return text


def is_key(leaf: jax.Array) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def mapped(function: Callable[..., Any], n: int) -> Callable[..., Any]:
    mesh = Mesh(jax.devices()[:n], (AXIS,), axis_types=(AxisType.Auto,))

    def body(*args: Any) -> Any:
        own = jax.tree.map(lambda leaf: leaf[0], args)
        return jax.tree.map(lambda leaf: leaf[None], function(*own))

    return jax.shard_map(body, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False)
