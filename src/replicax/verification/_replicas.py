"""`rx.check_replicas_equal`: whether the copies of mirrored state agree in every bit."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from replicax import errors
from replicax.cluster import agree
from replicax.collectives import TURNS
from replicax.strategies import Strategy
from replicax.values import (
    AXIS,
    DistributedValues,
    Mirrored,
    Variable,
    current_frame,
    live_variables,
)
from replicax.values._operators import ArrayLike
from replicax.values._tracing import is_staged, outermost_level
from replicax.verification._differences import difference
from replicax.verification._digests import Digest, digests, plain_bits

_MOST_ROWS = 20


@dataclass(frozen=True)
class _Mirrored:
    """One mirrored array.

    Attributes:
        name: Name of the variable, or the place in the tree.
        array: The array.
        devices: Where its copies lie, in replica order.
    """

    name: str
    array: jax.Array
    devices: tuple[jax.Device, ...]

    @property
    def copies(self) -> dict[int, jax.Array]:
        """The copies of this process by replica; no memory is copied."""
        by_device = {shard.device: shard.data for shard in self.array.addressable_shards}
        return {i: by_device[d] for i, d in enumerate(self.devices) if d in by_device}


@dataclass(frozen=True)
class _Differing:
    """A copy whose digest is not that of most copies."""

    mirrored: _Mirrored
    replica: int
    reference: int

    def row(self) -> tuple[object, ...]:
        """A row of the table; only now do elements come to the host."""
        copies = self.mirrored.copies
        both = [copies[i] for i in (self.replica, self.reference) if i in copies]
        found = ("", "one of them is on another worker", "")
        if len(both) > 1:
            here, there = (jax.device_get(plain_bits(copy)) for copy in both)
            found = difference(here, there)
        array = self.mirrored.array
        kind = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
        return self.mirrored.name, kind, self.replica, self.reference, *found


def check_replicas_equal(tree_or_strategy: Any) -> None:
    """Check that all replicas hold the same bits of mirrored state.

    The proof makes mirrored values equal by construction. Hardware whose arithmetic is not
    repeatable, faulty memory, or arrays put together by hand can still make them differ: call this
    now and then, between steps. Each device makes a digest of its copy, and only the digests are
    compared, so it costs about one reading of the state. NaN is equal to NaN with the same bits;
    -0.0 is not equal to 0.0.

    Context: cross-replica, or outside of every scope; not inside `rx.function`. Waits for the
    steps under way. Collective: where replicas lie in other processes; the digests are compared
    over all of them.

    Args:
        tree_or_strategy: A strategy, for all its mirrored variables that exist; or a tree, for
            those in it, for `rx.Mirrored` values and for arrays that every device of a strategy
            (or of another mesh) holds whole. Other leaves may differ between replicas or have one
            copy only, and are left out: per-replica values, sync-on-read variables, sharded
            arrays, numbers.

    Raises:
        ReplicaDivergenceError: Copies differ. A row for each tells the variable (or the place in
            the tree), the replica and the largest difference.
        InvalidArgumentError: There is nothing to compare, or an array was donated.
        ContextError: In replica context, in a merge call or inside a traced function.
        CollectiveMismatchError: The workers compare different arrays.

    Examples:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable([1.0, 2.0], name="w")
        >>> rx.check_replicas_equal(strategy)
        >>> rx.check_replicas_equal({"w": w})
    """
    _require_outside()
    found = _found(tree_or_strategy)
    _check_usable(found)
    several = [mirrored for mirrored in found if len(mirrored.devices) > 1]
    if any(device.platform == "cpu" for mirrored in several for device in mirrored.devices):
        TURNS.settle()
    made = digests([list(mirrored.copies.values()) for mirrored in several])
    if any(not mirrored.array.is_fully_addressable for mirrored in several):
        made = _of_all_workers(several, made)
    differing = []
    for mirrored, row in zip(several, made, strict=True):
        # What most copies agree on; of two, the first.
        usual = collections.Counter(row).most_common(1)[0][0]
        reference = row.index(usual)
        differing += [
            _Differing(mirrored, i, reference) for i, digest in enumerate(row) if digest != usual
        ]
    if differing:
        raise _diverged(differing, len(several))


def _require_outside() -> None:
    frame = current_frame()
    inside = frame is not None and (
        frame.replica is not None or frame.access is not None or frame.merging is not None
    )
    if inside or is_staged(outermost_level()):
        raise _inside_a_step()


def _inside_a_step() -> errors.ContextError:
    return errors.ContextError(
        errors.describe(
            "check_replicas_equal was called inside a step.",
            why="It compares what lies on the devices, and here values have no copies of their "
            "own, or none yet.",
            fix="Call it between steps, outside of `rx.function`, `strategy.run` and `jax.jit`.",
        )
    )


# -- what is compared ---------------------------------------------------------------


def _found(tree_or_strategy: Any) -> list[_Mirrored]:
    if isinstance(tree_or_strategy, Strategy):
        strategy = tree_or_strategy
        found = [
            _of_variable(variable.name, variable)
            for variable in live_variables()
            if variable.strategy is strategy and _has_common_value(variable)
        ]
        # Every strategy has a random stream: alone, it is not what the caller wants to check.
        if all(one.array is strategy.random_stream._state._value for one in found):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"check_replicas_equal: {strategy.name} has no mirrored variables, so there "
                    "is nothing to compare.",
                    fix="Create the variables in `strategy.scope()` and keep them, or pass the "
                    "arrays: `rx.check_replicas_equal(state)`.",
                )
            )
        return found
    with_paths, _ = jax.tree_util.tree_flatten_with_path(
        tree_or_strategy, is_leaf=lambda leaf: isinstance(leaf, (DistributedValues, ArrayLike))
    )
    leaves = [(jax.tree_util.keystr(path) or "the value", leaf) for path, leaf in with_paths]
    found = [mirrored for path, leaf in leaves if (mirrored := _of_leaf(path, leaf)) is not None]
    if not found:
        raise _nothing_to_compare(leaves)
    return found


def _has_common_value(variable: Variable) -> bool:
    """Whether all replicas see one value: not so for sync-on-read variables."""
    return isinstance(variable, Mirrored) or not isinstance(variable, DistributedValues)


def _of_leaf(path: str, leaf: Any) -> _Mirrored | None:
    """The mirrored array at a leaf, or None if there is none."""
    if isinstance(leaf, Variable):
        if leaf.strategy is None or not _has_common_value(leaf):
            return None
        return _of_variable(f"{path} (variable {leaf.name})", leaf)
    return _of_array(path, leaf.value if isinstance(leaf, Mirrored) else leaf)


def _of_array(path: str, value: Any) -> _Mirrored | None:
    if isinstance(value, jax.core.Tracer):
        raise _inside_a_step()
    if not isinstance(value, jax.Array) or not value.sharding.is_fully_replicated:
        return None
    sharding = value.sharding
    if isinstance(sharding, NamedSharding):
        devices = tuple(sharding.mesh.devices.flat)
        placed_by_strategy = AXIS in sharding.mesh.axis_names
    else:
        devices = tuple(shard.device for shard in value.addressable_shards)
        placed_by_strategy = False
    # One copy that no strategy placed: perhaps it was never meant to be more.
    return _Mirrored(path, value, devices) if placed_by_strategy or len(devices) > 1 else None


def _of_variable(name: str, variable: Variable) -> _Mirrored:
    # Not `variable.value`, which lends the array, so that the next step would have to copy it.
    array, strategy = variable._value, variable.strategy
    devices = array.sharding.device_set
    if strategy is not None and len(devices) > 1:
        return _Mirrored(name, array, strategy.replica_mesh.devices)
    return _Mirrored(name, array, tuple(devices))


def _check_usable(found: Sequence[_Mirrored]) -> None:
    deleted = [mirrored.name for mirrored in found if mirrored.array.is_deleted()]
    if deleted:
        raise errors.InvalidArgumentError(
            errors.describe(
                f"check_replicas_equal was given deleted arrays: {', '.join(deleted[:8])}.",
                why="They were donated to a step, which reused their memory.",
                fix="Pass what the step returned in their place.",
            )
        )


def _of_all_workers(
    several: Sequence[_Mirrored], made: Sequence[Sequence[Digest]]
) -> list[list[Digest]]:
    """The digests of all copies of each array, given those of this process. Collective."""
    kinds = [(str(one.array.dtype), one.array.shape, len(one.devices)) for one in several]
    own = [dict(zip(one.copies, row, strict=True)) for one, row in zip(several, made, strict=True)]
    records = agree(
        "check_replicas_equal",
        {"arrays": str(kinds)},
        untold={"digests": [[*d.items()] for d in own]},
    )
    found = []
    for i, one in enumerate(several):
        rows = own[i]
        if not one.array.is_fully_addressable:
            rows = {k: tuple(d) for record in records for k, d in record["digests"][i]}
        found.append([rows[replica] for replica in range(len(one.devices))])
    return found


# -- messages -----------------------------------------------------------------------


def _nothing_to_compare(leaves: Sequence[tuple[str, Any]]) -> errors.InvalidArgumentError:
    rows = [(path, _kind(leaf)) for path, leaf in leaves[:_MOST_ROWS]]
    return errors.InvalidArgumentError(
        errors.describe(
            "check_replicas_equal found nothing to compare"
            + (" in:" if rows else ": the tree has no leaves."),
            table=errors.Table(("leaf", "is"), rows) if rows else None,
            why="It compares mirrored variables, `rx.Mirrored` values, and arrays that several "
            "devices hold whole. A check of nothing would look like success.",
            fix="Pass a tree of such values (of a model: its variables), or the strategy.",
        )
    )


def _kind(leaf: Any) -> str:
    if isinstance(leaf, (DistributedValues, ArrayLike)):
        return repr(leaf)
    if not isinstance(leaf, jax.Array):
        return type(leaf).__name__
    count = len(leaf.sharding.device_set)
    where = "on one device" if count == 1 else f"sharded over {count} devices"
    return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}] {where}"


def _diverged(differing: Sequence[_Differing], compared: int) -> errors.ReplicaDivergenceError:
    names = {id(one.mirrored): one.mirrored.name for one in differing}
    left_out = len(differing) - _MOST_ROWS
    more = f" The first {_MOST_ROWS} of {len(differing)} copies:" if left_out > 0 else ""
    columns = (
        "array",
        "type",
        "replica",
        "compared with",
        "elements",
        "largest difference",
        "at",
    )
    return errors.ReplicaDivergenceError(
        errors.describe(
            f"Replicas hold different bits of {len(names)} of {compared} mirrored arrays.{more}",
            table=errors.Table(columns, [one.row() for one in differing[:_MOST_ROWS]]),
            why="Steps keep mirrored values equal only where the same operations give the same "
            "bits on every device. Arithmetic that is not repeatable (atomic scatter-adds), "
            "faulty memory, or an array put together of unequal parts break that.",
            fix="Go back to the last checkpoint before this check failed. If it fails again in "
            "another place, turn on deterministic operations (on GPUs "
            "`XLA_FLAGS=--xla_gpu_deterministic_ops=true`); if always on one device, suspect the "
            "device.",
        )
    )
