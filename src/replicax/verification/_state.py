"""All state of a step at one moment: taken out, given to replicas or to one device, put back."""

from __future__ import annotations

import contextlib
import gc
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.collectives import TURNS
from replicax.step._anew import Elsewhere
from replicax.strategies import Strategy
from replicax.values import (
    PerReplica,
    ReplicaMesh,
    Variable,
    VariableAggregation,
    live_variables,
)
from replicax.values._mesh import copied, own_part
from replicax.values._shares import aggregate

Array = np.ndarray[Any, Any]
Values = Mapping[Variable, jax.Array]
"""An array for each variable, which nobody may give away."""


def take(strategy: Strategy) -> dict[Variable, jax.Array]:
    """The arrays of all variables that a step of the strategy can write; they stay theirs."""
    return {v: v._value for v in live_variables() if v.strategy is strategy or v.strategy is None}


def give(values: Values) -> None:
    """Set variables to copies of arrays, which steps may give away."""
    for variable, array in values.items():
        if variable._is_there:  # Parts of another library's objects may end meanwhile.
            variable._value = copied(array)
            variable._lent = False


def copied_tree(tree: Any) -> Any:
    """A functional state in memory of its own, for a step that donates it."""
    return jax.tree.map(lambda x: copied(x) if isinstance(x, jax.Array) else x, tree)


@contextlib.contextmanager
def put_back(strategy: Strategy) -> Iterator[None]:
    """Whatever runs inside: afterwards each variable holds the very array that it held before.

    While inside, variables hold copies.
    """
    before = [(v, array, v._lent) for v, array in take(strategy).items()]
    drawn = PythonRandom()
    collects = gc.isenabled()
    gc.disable()  # What is there now, such as a model that nobody holds, stays until the end.
    keys = strategy.collective_keys
    instances = dict(keys._next_instance)
    give({variable: array for variable, array, _ in before})
    try:
        yield
    finally:
        TURNS.settle()
        for variable, array, lent in before:
            if variable._is_there:
                variable._value = array
                variable._lent = lent
        keys._next_instance = instances
        drawn.restore()
        if collects:
            gc.enable()


class PythonRandom:
    """Where the random numbers of Python and NumPy stand, which data and models draw from."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002

    def restore(self) -> None:
        """Go back there."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002 - what others draw from


def first_device(strategy: Strategy) -> ReplicaMesh:
    """One replica, on the first device of this process."""
    return ReplicaMesh(strategy._mesh.local_devices[:1])


@contextlib.contextmanager
def on_one_device(strategy: Strategy, one: ReplicaMesh, programs: Elsewhere) -> Iterator[None]:
    """While inside, the strategy has one replica.

    Variables must be given what they are to hold there.
    """
    TURNS.settle()
    whole = strategy._mesh
    spanning = [v for v in live_variables() if getattr(v, "_spans_processes", False)]
    strategy._mesh = one
    for variable in spanning:
        variable._spans_processes = False
    try:
        with programs.entered():
            yield
    finally:
        strategy._mesh = whole
        for variable in spanning:
            variable._spans_processes = True


def on_one(values: Values, strategy: Strategy, one: ReplicaMesh) -> dict[Variable, jax.Array]:
    """What one device holds where the replicas hold `values`."""
    return {
        variable: _placed(variable, array, one) if variable.strategy is strategy else array
        for variable, array in values.items()
    }


def _placed(variable: Variable, array: jax.Array, one: ReplicaMesh) -> jax.Array:
    if variable.is_on_read:
        return one.from_rows([jnp.asarray(_common(variable, array))])
    if variable.strategy is not None and variable.strategy.parameter_device is not None:
        return array  # It lies on the parameter device, wherever the replicas are.
    return one.place_mirrored(own_part(array))


def _common(variable: Variable, copies: jax.Array) -> Any:
    """What reading a sync-on-read variable gives, or the first copy where there is no rule."""
    if copies.is_fully_addressable:
        rows = jnp.asarray(jax.device_get(copies))
    else:
        rows = variable.strategy.replica_mesh.all_rows(copies)  # type: ignore[union-attr]
    if variable.aggregation is VariableAggregation.NONE:
        return rows[0]
    return aggregate(rows, variable.aggregation).astype(copies.dtype)


def tree_on_one(tree: Any, one: ReplicaMesh) -> Any:
    """A functional state on one device."""

    def placed(leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            raise NotComparable("the state holds a value of each replica's own")
        return one.place_mirrored(own_part(leaf)) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(placed, tree, is_leaf=lambda x: isinstance(x, PerReplica))


class NotComparable(Exception):  # noqa: N818 - no error: one device cannot do the same
    """Why one device cannot be compared with the replicas."""


# -- by name, on the host --------------------------------------------------------------------------


def host_values(values: Values, names: Mapping[Variable, str]) -> dict[str, Array]:
    """Variables by name, as one device would hold them."""
    found = {}
    for variable, name in names.items():
        if variable not in values:
            continue
        array = values[variable]
        if variable.is_on_read:
            if variable.aggregation is VariableAggregation.NONE:
                continue
            array = _common(variable, array)
        found[name] = host(array)
    return found


def names_of(variables: list[Variable]) -> dict[Variable, str]:
    """Names that differ, in order."""
    counted = Counter(variable.name for variable in variables)
    seen: Counter[str] = Counter()
    names = {}
    for variable in variables:
        seen[variable.name] += 1
        more = f" ({seen[variable.name]})" if counted[variable.name] > 1 else ""
        names[variable] = variable.name + more
    return names


def host_tree(tree: Any, name: str) -> dict[str, Array]:
    """The arrays and numbers of a tree by their places in it; values of each replica left out."""
    with_paths, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: isinstance(x, (PerReplica, Variable))
    )
    found = {}
    for path, leaf in with_paths:
        value = own_part(leaf)
        if isinstance(value, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
            found[name + jax.tree_util.keystr(path)] = host(value)
    return found


def host(value: Any) -> Array:
    """An array on the host; of keys their numbers."""
    value = own_part(value)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)
