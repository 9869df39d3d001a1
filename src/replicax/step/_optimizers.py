"""One call that applies gradients, whatever the optimizer; and optax's in variables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from replicax import errors
from replicax.step._packed_optimizer import PackedTransformation, pack_optimizer
from replicax.step._require_mirrored import require_mirrored
from replicax.step._row_updates import RowUpdates, check_rows
from replicax.step._sharded_optimizer import ShardedTransformation
from replicax.step._sharded_update import ShardedUpdate, check_outermost
from replicax.step._sparse import holds_sparse_rows
from replicax.values import Variable, as_variable, current_frame
from replicax.values._packed import holds_packed
from replicax.values._sparse import dense, is_sparse

_KINDS: list[tuple[Callable[[Any], bool], Callable[..., Any]]] = []


def register_optimizer(predicate: Callable[[Any], bool], apply: Callable[..., Any]) -> None:
    """Teach `rx.apply_gradients` one kind of optimizer.

    Context: any. The kind that was registered last is asked first.

    Args:
        predicate: Whether an object is an optimizer of this kind.
        apply: `apply(optimizer, gradients, variables, **extra)`, given gradients that are checked
            to be equal on all replicas. A keyword `apply_if` (bool[]) means: change nothing where
            it is false.

    Examples:
        >>> import replicax as rx
        >>> class Descent:
        ...     rate = 0.5
        >>> def apply(optimizer, gradients, variables):
        ...     for gradient, variable in zip(gradients, variables):
        ...         variable.assign_sub(optimizer.rate * gradient)
        >>> rx.register_optimizer(lambda x: hasattr(x, "rate"), apply)
        >>> w = rx.Variable(3.0)
        >>> rx.apply_gradients(Descent(), [2.0], [w])
        >>> float(w)
        2.0
    """
    _KINDS.append((predicate, apply))


def apply_gradients(
    optimizer: Any, gradients: Any, variables: Any = None, *, apply_if: Any = None, **extra: Any
) -> Any:
    """Let an optimizer change variables by gradients that the replicas have combined.

    Context: any. Collective: no in a compiled step, unless the optimizer is sharded; in the eager
    runner, where it compares bits.

    Args:
        optimizer: An `rx.Optimizer`, or one of a kind that was registered: those of Keras once
            `rx.keras` is imported, `flax.nnx.Optimizer` with `rx.nnx`.
        gradients: The gradients of the global batch, in the structure of `variables`:
            `ctx.all_reduce("mean", gradients)`. An optimizer of `rx.shard_optimizer` takes each
            replica's own gradients and combines them. Sparse rows (`rx.IndexedSlices`) are for an
            `rx.Optimizer`; others get them as whole arrays.
        variables: What is changed. An `rx.Optimizer` knows its variables.
        apply_if: bool[], equal on all replicas; where it is false, nothing changes, neither the
            variables nor the optimizer's state. None means true.
        **extra: Handed on: `value=loss` for optax transformations that ask for it, say.

    Returns:
        What the optimizer returns; None of an `rx.Optimizer`.

    Raises:
        VaryingWriteError: The gradients may differ between replicas.
        ArgumentTypeError: No kind of optimizer is known that `optimizer` belongs to.

    Examples:
        >>> import optax
        >>> import replicax as rx
        >>> w = rx.Variable(3.0)
        >>> optimizer = rx.Optimizer(optax.sgd(0.5), [w])
        >>> _, gradients = rx.value_and_grad(lambda: w.value**2, [w])()
        >>> rx.apply_gradients(optimizer, gradients)
        >>> float(w)
        0.0
    """
    apply = next((apply for is_kind, apply in reversed(_KINDS) if is_kind(optimizer)), None)
    if apply is None:
        raise _unknown(optimizer)
    if not (isinstance(optimizer, Optimizer) and optimizer.combines_gradients):
        names = gradient_names(optimizer, gradients, variables)
        gradients = require_mirrored(gradients, "rx.apply_gradients", names)
    if not isinstance(optimizer, Optimizer):
        gradients = dense(gradients)
    if apply_if is not None:
        extra["apply_if"] = require_mirrored(apply_if, "rx.apply_gradients", ["`apply_if`"])
    return apply(optimizer, gradients, variables, **extra)


def gradient_names(optimizer: Any, gradients: Any, variables: Any = None) -> list[str] | None:
    """What messages call the leaves of `gradients`; None where no variable is known to each."""
    if variables is None and isinstance(optimizer, Optimizer):
        variables = optimizer.variables
    known = [getattr(v, "path", getattr(v, "name", None)) for v in jax.tree.leaves(variables)]
    if len(known) != len(jax.tree.leaves(gradients)) or not all(
        isinstance(name, str) for name in known
    ):
        return None
    return [f"the gradient of `{name}`" for name in known]


class Optimizer:
    """An optax transformation for variables; its state lies in variables, too.

    Create it where the variables are created, in `strategy.scope()`. A checkpoint saves and
    restores its state like that of any object with variables.

    Where the gradient of a variable is an `rx.IndexedSlices`, only its rows are changed if the rule
    of the transformation says that the others stay what they are (SGD, Adagrad): the numbers are
    those of the dense gradient. Of other transformations the gradient is made dense, unless
    `sparse_rows` is "lazy".

    Variables may be the parts of packed trees, `jax.tree.map(rx.Variable, rx.pack(params))`: each
    pack is updated as one array, by the rule that its leaves have (`rx.pack_optimizer`).

    Args:
        transformation: An `optax.GradientTransformation`, or anything with its `init` and `update`.
        variables: A tree of variables. Those that are not trainable are refused.
        sparse_rows: "exact", the numbers of the dense gradient. "lazy": rows without a gradient,
            and their state, stay as they are, whatever the rule says of them. Moments then do not
            decay between the steps in which a row occurs, so lazy Adam is not Adam; it is for
            large tables, of which a step sees a few rows.

    Attributes:
        transformation: As given.
        variables: As given.
        state: The state of the transformation: a tree whose leaves are variables.

    Raises:
        ArgumentTypeError: No transformation, or something else than variables.
        InvalidArgumentError: `sparse_rows` is neither; or variables are packed together that the
            transformation treats in different ways.
        UnimplementedError: Variables are packed, and it does not treat each element by itself.

    Examples:
        >>> import optax
        >>> import replicax as rx
        >>> with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        ...     w = rx.Variable([1.0, 2.0])
        ...     optimizer = rx.Optimizer(optax.adam(0.1), {"w": w})
        >>> optimizer.state[0].mu["w"].shape
        (2,)
    """

    _holds_variables: ClassVar[bool] = True  # for checkpoints

    def __init__(
        self,
        transformation: Any,
        variables: Any,
        *,
        sparse_rows: Literal["exact", "lazy"] = "exact",
    ) -> None:
        if sparse_rows not in ("exact", "lazy"):
            raise errors.InvalidArgumentError(
                errors.describe(
                    f"rx.Optimizer: `sparse_rows` = {sparse_rows!r}.",
                    fix="Pass 'exact', or 'lazy' to leave rows without a gradient alone.",
                )
            )
        if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
            raise errors.ArgumentTypeError(
                errors.describe(
                    f"rx.Optimizer was given {transformation!r}, which is no transformation.",
                    fix="Pass an optax transformation, such as `optax.adam(1e-3)`, then the "
                    "variables.",
                )
            )
        variables = jax.tree.map(as_variable, variables)
        for leaf in jax.tree.leaves(variables):
            if not isinstance(leaf, Variable) or not leaf.trainable:
                raise errors.ArgumentTypeError(
                    errors.describe(
                        f"rx.Optimizer: `variables` holds {leaf!r}, which is no trainable "
                        "variable.",
                        fix="Pass a list or tree of `rx.Variable` that training changes.",
                    )
                )
        self.transformation = transformation
        self.variables = variables
        if holds_packed(variables) and not isinstance(transformation, PackedTransformation):
            transformation = pack_optimizer(transformation)
        self._rows = RowUpdates(transformation, is_lazy=sparse_rows == "lazy")
        self._jitted = jax.jit(self._update)
        self._sharded: ShardedUpdate | None = None
        if isinstance(transformation, ShardedTransformation):
            frame = current_frame()
            if frame is not None and frame.strategy is not None:
                self._sharded = ShardedUpdate(transformation.transformation, variables)
                self.state = self._sharded.state
                return
            transformation = transformation.transformation  # One replica has it all.
        self._plain = transformation
        start = transformation.init(values_of(variables))
        check_outermost(start)
        # Of constants optax may use one array in two places.
        self.state = jax.tree_util.tree_map_with_path(
            lambda path, x: Variable(
                x, trainable=False, name=f"optimizer{jax.tree_util.keystr(path)}"
            ),
            start,
        )

    @property
    def combines_gradients(self) -> bool:
        """Whether it takes each replica's own gradients: those of `rx.shard_optimizer` do."""
        return self._sharded is not None

    def _update(
        self, gradients: Any, state: Any, before: Any, apply_if: Any, **extra: Any
    ) -> tuple[Any, Any]:
        if holds_sparse_rows(gradients):
            gradients, rule = self._rows.prepared(gradients, before, extra)
            if rule is not None:
                return self._rows.apply(rule, gradients, state, before, apply_if)
        updates, new_state = self._plain.update(gradients, state, before, **extra)
        new = jax.tree.map(lambda w, u: jnp.asarray(w + u).astype(w.dtype), before, updates)
        if apply_if is None:
            return new, new_state
        kept: tuple[Any, Any] = chosen(apply_if, (new, new_state), (before, state))
        return kept

    def apply(self, gradients: Any, *, apply_if: Any = None, **extra: Any) -> None:
        """Change the variables; see `rx.apply_gradients`."""
        rows: Any = jax.tree.structure(self.variables)
        given: Any = jax.tree.structure(gradients, is_leaf=is_sparse)
        if rows != given:
            raise errors.InvalidArgumentError(
                errors.describe(
                    "rx.apply_gradients: the gradients have another structure than the variables.",
                    table=errors.Table(
                        ("what", "structure"),
                        [("gradients", given), ("variables", rows)],
                    ),
                    fix="Pass `rx.value_and_grad(fn, optimizer.variables)` gradients as they are.",
                )
            )
        check_rows(gradients, self.variables)
        if self._sharded is not None:
            self._sharded.apply(gradients, apply_if, extra)
            return
        before, state = values_of(self.variables), values_of(self.state)
        # Compiled as a whole, the eager runner takes milliseconds for it instead of seconds. What
        # is handed on may hold functions, which `jit` does not take.
        update: Any = functools.partial(self._update, **extra) if extra else self._jitted
        new, new_state = update(gradients, state, before, apply_if)
        for variable, value in zip(
            _leaves((self.variables, self.state)), _leaves((new, new_state)), strict=True
        ):
            variable.assign(value)


def chosen(condition: Any, new: Any, old: Any) -> Any:
    """`new` where the condition holds, else `old`; leaf by leaf."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def values_of(variables: Any) -> Any:
    """A tree of variables as a tree of their values."""
    return jax.tree.map(lambda variable: variable.value, variables)


def _leaves(tree: Any) -> list[Any]:
    leaves: list[Any] = jax.tree.leaves(tree)
    return leaves


def _apply(optimizer: Optimizer, gradients: Any, variables: Any, **extra: Any) -> None:
    if variables is not None and _leaves(variables) != _leaves(optimizer.variables):
        raise errors.InvalidArgumentError(
            errors.describe(
                "rx.apply_gradients: these are not the variables of the rx.Optimizer.",
                table=errors.Table(
                    ("what", "variables"),
                    [
                        ("given", [variable.name for variable in _leaves(variables)]),
                        ("optimizer", [v.name for v in _leaves(optimizer.variables)]),
                    ],
                ),
                fix="Leave `variables` out, or make an optimizer for these variables.",
            )
        )
    optimizer.apply(gradients, **extra)


register_optimizer(lambda optimizer: isinstance(optimizer, Optimizer), _apply)


def _unknown(optimizer: Any) -> errors.ArgumentTypeError:
    fix = "Pass an `rx.Optimizer`, or teach it with `rx.register_optimizer`."
    if hasattr(optimizer, "init") and hasattr(optimizer, "update"):
        fix = (
            "Make `optimizer = rx.Optimizer(transformation, variables)` once, in the strategy's "
            "scope, and pass that: it keeps the state in variables."
        )
    module = type(optimizer).__module__.partition(".")[0]
    if module in ("keras", "flax"):
        fix = f"Import `replicax.{'nnx' if module == 'flax' else 'keras'}` first, which teaches it."
    return errors.ArgumentTypeError(
        errors.describe(
            f"rx.apply_gradients does not know the optimizer {optimizer!r}.",
            why="It has no rule for this kind of object.",
            fix=fix,
        )
    )
