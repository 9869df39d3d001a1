"""Values with one component a replica."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np

from replicax import errors
from replicax.values._operators import ArrayLike


class DistributedValues:
    """Base of the values that hold one component a replica."""

    @property
    def values(self) -> tuple[Any, ...]:
        """The components, in replica order."""
        raise NotImplementedError


@dataclass(frozen=True)
class Provenance:
    """Which step produced a per-replica value, and why the value varies."""

    function: int
    cause: str


UNKNOWN = Provenance(function=0, cause="")


class _Form(str):
    """How a `PerReplica` holds its components, by name; the provenance rides along.

    Forms compare as strings, in C: trees whose values come from different steps are equal, and
    JAX finds them in its caches without running Python.
    """

    __slots__ = ("provenance",)

    provenance: Provenance

    def __new__(cls, name: str, provenance: Provenance = UNKNOWN) -> Self:
        form = super().__new__(cls, name)
        form.provenance = provenance
        return form


_COMPONENTS, _STACKED = _Form("components"), _Form("stacked")
_PADDED, _LOCAL = _Form("padded"), _Form("local")


def _no_number(self: Any, *_: Any, **__: Any) -> NoReturn:
    raise errors.ArgumentTypeError(
        errors.describe(
            f"{self!r} was used as one array or number outside of a replica context.",
            why="It holds one component a replica, and they may differ.",
            fix="Combine the components with `strategy.reduce(op, value, axis=None)`, look at them "
            "with `strategy.local_results(value)`, or pass the value to `strategy.run`.",
        )
    )


class PerReplica(DistributedValues):
    """A value that may differ between replicas: a *varying* value outside of replica context.

    It is a pytree node. In compiled steps its components are the rows of one array
    ``[num_replicas, ...]`` that is sharded over the mesh axis ``"replica"``; in the eager runner
    they are separate arrays, whose shapes may differ.

    Args:
        values: The components, in replica order.

    Examples:
        >>> import replicax as rx
        >>> rx.PerReplica([1.0, 2.0]).values
        (1.0, 2.0)
    """

    __slots__ = ("_parts",)

    def __init__(self, values: Sequence[Any]) -> None:
        if not isinstance(values, (list, tuple)):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"PerReplica takes a list or tuple of components, not {type(values).__name__}.",
                    fix="Pass one component a replica: `rx.PerReplica([a, b])`.",
                )
            )
        if not values:
            raise errors.InvalidArgumentError(
                errors.describe(
                    "PerReplica was given no components.",
                    fix="Pass one component a replica: `rx.PerReplica([a, b])`.",
                )
            )
        self._parts: tuple[tuple[Any, ...], _Form] = (tuple(values), _COMPONENTS)

    @classmethod
    def _of(cls, form: _Form, children: tuple[Any, ...]) -> PerReplica:
        new = cls.__new__(cls)
        new._parts = (children, form)
        return new

    @property
    def _children(self) -> tuple[Any, ...]:
        return self._parts[0]

    @property
    def _form(self) -> _Form:
        return self._parts[1]

    @classmethod
    def from_stacked(
        cls, stacked: Any, rows: Any = None, provenance: Provenance = UNKNOWN
    ) -> PerReplica:
        """Wrap an array ``[num_replicas, ...]``.

        Args:
            stacked: Component ``i`` is ``stacked[i]``.
            rows: i32[num_replicas], how many leading rows of each component are real; the others
                are padding. None if all are.
            provenance: Where the value comes from.
        """
        form = _STACKED if rows is None else _PADDED
        if provenance is not UNKNOWN:
            form = _Form(form, provenance)
        return cls._of(form, (stacked,) if rows is None else (stacked, rows))

    @classmethod
    def from_local(cls, local: Any) -> PerReplica:
        """Wrap this replica's component inside a compiled replica function (``merge_call``)."""
        return cls._of(_LOCAL, (local,))

    @property
    def provenance(self) -> Provenance:
        """Where the value comes from."""
        return self._form.provenance

    def came_from(self, provenance: Provenance) -> PerReplica:
        """Note where the value comes from, and return it."""
        self._parts = (self._children, _Form(self._form, provenance))
        return self

    @property
    def stacked(self) -> Any:
        """The array ``[num_replicas, ...]`` with padding, or None if held as components."""
        return self._children[0] if self._form in ("stacked", "padded") else None

    @property
    def local(self) -> Any:
        """This replica's component inside a compiled merge call, else None."""
        return self._children[0] if self._form == "local" else None

    @property
    def rows(self) -> Any:
        """i32[num_replicas] counts of real rows, or None if every row is real."""
        return self._children[1] if self._form == "padded" else None

    _stacked, _rows = stacked, rows  # the keys of the leaves; a dash: no part of their names

    @property
    def _components(self) -> tuple[Any, ...] | None:
        return self._children if self._form == "components" else None

    @property
    def values(self) -> tuple[Any, ...]:
        """The components in replica order, without padding; those of this process.

        Raises:
            ContextError: While tracing, if the components are padded to one shape.
        """
        if self._components is not None:
            return self._components
        if self.stacked is None:
            raise errors.ContextError(
                errors.describe(
                    f"The components of {self!r} are not at hand here.",
                    fix="Inside `merge_call`, use `strategy.local_results(value)`.",
                )
            )
        if self.rows is None:
            return tuple(self._unstacked(self.stacked))
        if isinstance(self.rows, jax.core.Tracer):
            raise errors.ContextError(
                errors.describe(
                    f"The components of {self!r} are padded to one shape in a compiled step, where "
                    "the number of real rows is not a Python number.",
                    fix="Ask for the components outside of `rx.function`, or use `strategy.reduce`,"
                    " which counts real rows only.",
                )
            )
        counts = self.row_counts
        return tuple(
            x[:k] for x, k in zip(self._unstacked(self.stacked), counts or (), strict=True)
        )

    @property
    def row_counts(self) -> list[int] | None:
        """How many rows of each component of this process are real; None if all are."""
        return None if self.rows is None else [int(k) for k in self._unstacked(self.rows)]

    @staticmethod
    def _unstacked(stacked: Any) -> list[Any]:
        """The rows of an array ``[num_replicas, ...]``, those of this process."""
        if isinstance(stacked, jax.core.Tracer) or not isinstance(stacked, jax.Array):
            return [stacked[i] for i in range(stacked.shape[0])]
        shards = sorted(stacked.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        return [shard.data[i] for shard in shards for i in range(shard.data.shape[0])]

    @property
    def num_components(self) -> int | None:
        """Number of components, or None inside a merge call.

        Where a strategy has replicas in other processes: of all of them where one array holds
        the components, else those of this process.
        """
        if self._components is not None:
            return len(self._components)
        return None if self.stacked is None else int(self.stacked.shape[0])

    def __repr__(self) -> str:
        if self._components is not None:
            return f"PerReplica({', '.join(_brief(x) for x in self._components)})"
        if self.stacked is None:
            return f"PerReplica(this replica: {_brief(self.local)})"
        shape = getattr(self.stacked, "shape", None)
        if shape is None:
            return "PerReplica(...)"
        inner = ", ".join(map(str, shape[1:]))
        return f"PerReplica({shape[0]} x {self.stacked.dtype}[{inner}])"

    def __format__(self, spec: str) -> str:
        return _no_number(self) if spec else repr(self)

    def __eq__(self, other: object) -> bool:
        # Objects are compared by identity; a comparison with a number would be False in silence.
        if isinstance(other, (bool, int, float, complex)) or _is_array(other):
            _no_number(self)
        return self is other

    def __hash__(self) -> int:
        return id(self)

    __array__ = __jax_array__ = __float__ = __int__ = __bool__ = __index__ = _no_number
    __complex__ = __round__ = __abs__ = __neg__ = __pos__ = __len__ = __getitem__ = _no_number
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __pow__ = __rpow__ = _no_number
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _no_number
    __matmul__ = __rmatmul__ = __lt__ = __le__ = __gt__ = __ge__ = _no_number
    __array_ufunc__ = _no_number


def _brief(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is None:
        return repr(value)
    if shape == () and not isinstance(value, jax.core.Tracer):
        return f"{value!s}"
    return f"{value.dtype}[{', '.join(map(str, shape))}]"


class Mirrored(DistributedValues, ArrayLike):
    """A value that is the same on every replica.

    What a step returns and is proved mirrored comes back as a plain array; this class marks a
    value as mirrored explicitly, and is the base of mirrored variables. Plain arrays that are
    passed to `strategy.run` are mirrored as well.

    Args:
        value: The array.

    Examples:
        >>> import replicax as rx
        >>> rx.Mirrored(3.0) + 1.0
        4.0
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    @classmethod
    def from_values(cls, values: Sequence[Any]) -> Mirrored:
        """Make one value of components that must be equal bit by bit.

        Raises:
            ReplicaDivergenceError: The components differ; the error has a row a replica.
        """
        if not values:
            raise errors.InvalidArgumentError("Mirrored.from_values needs at least one component.")
        if not all(same_bits(values[0], other) for other in values[1:]):
            rows = [(i, _brief(x), str(np.asarray(x).ravel()[:4])) for i, x in enumerate(values)]
            raise errors.ReplicaDivergenceError(
                errors.describe(
                    "The components of a mirrored value differ.",
                    table=errors.Table(("replica", "type", "first elements"), rows),
                    fix="Reduce them first, or keep them as `rx.PerReplica`.",
                )
            )
        return cls(values[0])

    @property
    def value(self) -> Any:
        """The array."""
        return self._value

    @property
    def values(self) -> tuple[Any, ...]:
        """The value, once."""
        return (self.value,)

    def __repr__(self) -> str:
        return f"Mirrored({_brief(self.value)})"


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays or scalars agree in dtype, shape and every bit (NaN equals NaN)."""
    if a is b:
        return True
    if not _is_array(a) or not _is_array(b):
        return type(a) is type(b) and bool(a == b)
    x, y = _host(a), _host(b)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic))


def _host(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def regroup(trees: Sequence[Any], combine: Callable[[Sequence[Any]], Any]) -> Any:
    """Turn one tree a replica into one tree whose leaves are combined by ``combine``.

    Raises:
        StructureMismatchError: The trees have different structures.
    """
    flat: list[tuple[list[Any], Any]] = [jax.tree.flatten(tree) for tree in trees]
    structures = [structure for _, structure in flat]
    if any(structure != structures[0] for structure in structures[1:]):
        raise errors.StructureMismatchError(
            errors.describe(
                "The replicas' values have different structures.",
                table=errors.Table(
                    ("replica", "structure"),
                    [(i, str(structure)) for i, structure in enumerate(structures)],
                ),
                why="They are combined leaf by leaf into one structure.",
                fix="Return the same keys, lengths and types on every replica.",
            )
        )
    columns = zip(*[leaves for leaves, _ in flat], strict=True)
    return structures[0].unflatten([combine(column) for column in columns])


def spread(tree: Any, keep: Callable[[Any], bool] | None = None) -> Any:
    """Turn per-replica values whose components are trees into trees of per-replica values.

    What `keep` is true of stays the object that it is.

    Raises:
        StructureMismatchError: The components have different structures.
    """

    def one(value: Any) -> Any:
        if not isinstance(value, PerReplica) or value._components is None:
            return value
        if all(jax.tree_util.all_leaves([component]) for component in value._components):
            return value
        return regroup(value._components, lambda column: PerReplica(tuple(column)))

    return jax.tree.map(
        one,
        tree,
        is_leaf=lambda value: (
            isinstance(value, (DistributedValues, ArrayLike)) or (keep is not None and keep(value))
        ),
    )


# -- pytree registration: leaves are the arrays inside ----------------------


# Each step flattens its arguments: `attrgetter` does it without running Python, and what it gives
# is there already. The form is kept by name, because JAX also makes trees whose leaves are None.
_flatten_per_replica = operator.attrgetter("_parts")


def _flatten_per_replica_with_keys(value: PerReplica) -> tuple[list[tuple[Any, Any]], _Form]:
    children, form = _flatten_per_replica(value)
    keys: list[Any] = [jax.tree_util.GetAttrKey(name) for name in ("_stacked", "_rows")]
    if form == "components":
        keys = [jax.tree_util.SequenceKey(i) for i in range(len(children))]
    return list(zip(keys, children, strict=False)), form


def _unflatten_per_replica(form: _Form, leaves: Iterable[Any]) -> PerReplica:
    return PerReplica._of(form, tuple(leaves))


jax.tree_util.register_pytree_with_keys(
    PerReplica,
    _flatten_per_replica_with_keys,
    _unflatten_per_replica,
    _flatten_per_replica,
)
jax.tree_util.register_pytree_node(
    Mirrored, lambda value: ((value._value,), None), lambda _, children: Mirrored(children[0])
)
