"""Variables in the eager runner: each replica writes its own copies, which are then compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.step._access import require_same_strategy, written_inside_transformation
from replicax.values import StrategyLike, Variable, _deferred, same_bits
from replicax.values._lending import mark_lent
from replicax.values._tracing import is_staged, trace_level


class EagerVariables:
    """Variables as one replica of the eager runner sees them: its own copies.

    Args:
        strategy: The strategy.
        place: Number of the replica among those of this process.
    """

    def __init__(self, strategy: StrategyLike, place: int) -> None:
        self._strategy, self._place = strategy, place
        self._copies: dict[Variable, jax.Array] = {}
        self.stored: dict[Variable, errors.CallSite | None] = {}
        self._level = trace_level()

    @property
    def is_local(self) -> bool:
        """Yes: states are those of one replica."""
        return True

    def create(self, make: Callable[[], Variable]) -> Variable:
        """Refuse: replicas create variables together, through their contexts."""
        del make
        raise errors.InternalError("A replica tried to create a variable on its own.")

    def read(self, variable: Variable) -> jax.Array:
        """Return this replica's copy, on its device."""
        require_same_strategy(variable, self._strategy, "read")
        if is_staged(self._level):
            raise errors.UnimplementedError(
                errors.describe(
                    f"Variable `{variable.name}` was read inside `jax.jit`, `jax.lax.scan` or "
                    "another traced function in the eager runner.",
                    why="JAX keeps traced functions, and with them the value that the variable "
                    "has now; later calls would use the old value.",
                    fix="Read it before (`w = variable.value`) and pass the array in; or call the "
                    "step through `rx.function`, where variables may be read anywhere.",
                )
            )
        if variable not in self._copies:
            _deferred.settle()
            mark_lent(variable)  # The user may keep what was read here, beyond the run.
            self._copies[variable] = variable._copies()[self._place]
        return self._copies[variable]

    def store(self, variable: Variable, value: Any, call_site: errors.CallSite | None) -> None:
        """Record a write to this replica's copy."""
        require_same_strategy(variable, self._strategy, "written")
        if trace_level() != self._level:
            raise written_inside_transformation(variable, call_site)
        if variable not in self._copies:
            _deferred.settle()  # a value that waits must not come after this one
        device = self._strategy.replica_mesh.local_devices[self._place]
        self._copies[variable] = jax.device_put(value, device)
        self.stored[variable] = call_site
        variable._note_state(self._copies[variable])

    def holds(self, array: jax.Array) -> bool:
        """Whether ``array`` is a copy of a variable, as it was read or written."""
        return any(copy is array for copy in self._copies.values())

    def written(self) -> list[jax.Array]:
        """The copies that were written."""
        return [self._copies[variable] for variable in self.stored]

    def forget(self) -> None:
        """Drop copies and writes, after they were committed."""
        self._copies.clear()
        self.stored.clear()


def commit(replicas: Sequence[EagerVariables]) -> None:
    """Check that the replicas wrote equal values to mirrored variables, then write; all or none.

    Args:
        replicas: What each replica wrote, in replica order.

    Raises:
        VaryingWriteError: They differ; no variable was changed.
    """
    written = list(dict.fromkeys(variable for one in replicas for variable in one.stored))
    new: dict[Variable, jax.Array] = {}
    for variable in written:
        copies = [one.read(variable) for one in replicas]
        is_equal = all(same_bits(copies[0], other) for other in copies[1:])
        if not variable.is_on_read and not is_equal:
            raise _differing(variable, replicas, copies)
        new[variable] = variable._state_from_copies(copies)
    for variable, value in new.items():
        variable._value = value
        variable._lent = False
        mark_lent(variable)  # The copies may have been returned to the user as results.
    for one in replicas:
        one.forget()


def _differing(
    variable: Variable, replicas: Sequence[EagerVariables], copies: Sequence[jax.Array]
) -> errors.VaryingWriteError:
    first = _host(copies[0])
    rows = []
    for i, (one, copy) in enumerate(zip(replicas, copies, strict=True)):
        wrote = one.stored.get(variable, "did not write it")
        gap = np.abs(_host(copy) - first).max(initial=0.0)
        rows.append((i, wrote, f"{gap:.3g}"))
    return errors.VaryingWriteError(
        errors.describe(
            f"Mirrored variable `{variable.name}` was written with different values on different "
            "replicas. No variable was changed.",
            table=errors.Table(("replica", "written at", "largest difference to replica 0"), rows),
            why="Each replica would keep a value of its own. Most often a gradient was not "
            "all-reduced.",
            fix="Combine the value first: `ctx.all_reduce('mean', value)`, or give the variable "
            "an aggregation (`rx.Variable(..., aggregation='mean')`).",
        )
    )


def _host(copy: jax.Array) -> np.ndarray[Any, Any]:
    if jnp.issubdtype(copy.dtype, jax.dtypes.prng_key):
        copy = jax.random.key_data(copy)
    return np.asarray(copy).astype(np.complex128)
