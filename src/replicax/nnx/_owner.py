"""A module or optimizer that was adopted, and whether it is still built as it was."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from replicax import errors
from replicax.nnx._compat import nnx, value_of
from replicax.nnx._model_variable import BY_PART, ModelVariable


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Each `nnx.Variable` of an object, once, with its place: ``Model.layers[0].kernel``."""
    for path, node in nnx.iter_graph(value):
        if isinstance(node, nnx.Variable):
            yield type(value).__name__ + "".join(map(_step, path)), node


def _step(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


class Owner:
    """One adopted object. It keeps the variables of its parts alive, and they live as long as it.

    Args:
        value: The module, optimizer, metric or random stream.
    """

    def __init__(self, value: Any) -> None:
        self._value = weakref.ref(value)
        self.variables: list[ModelVariable] = []
        self._adoptions = 0

    def adopt(self) -> None:
        """Make variables of the parts that are none yet."""
        self._adoptions += 1
        for name, part in parts_of(self._value()):
            variable = BY_PART.get(id(part))
            if variable is not None and variable.has_form(value_of(part)):
                variable.take_up()
                continue
            if variable in self.variables:
                self.variables.remove(variable)
            self.variables.append(ModelVariable(part, name, self))

    def nodes(self) -> list[Any]:
        """The object itself, and the modules in it."""
        value = self._value()
        if value is None:
            return []
        return [node for _, node in nnx.iter_graph(value) if isinstance(node, nnx.Pytree)]

    def guard(self) -> Callable[[], bool]:
        """A quick question: is the object built as it is now?

        Attributes are compared by identity. Only where one was replaced, the whole structure is
        looked at.
        """
        snapshot, adoptions = self._snapshot(), self._adoptions
        structure, parts = self._structure()

        def holds() -> bool:
            nonlocal adoptions
            for attributes, values in snapshot:
                if len(attributes) != len(values):
                    break
                if not all(map(operator.is_, attributes.values(), values)):
                    break
            else:
                if self._adoptions == adoptions:
                    return True
            if self._structure() != (structure, parts):
                return False
            snapshot[:], adoptions = self._snapshot(), self._adoptions
            return True

        return holds

    def _snapshot(self) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
        return [(vars(node), tuple(vars(node).values())) for node in self.nodes()]

    def _structure(self) -> tuple[Any, tuple[int, ...]]:
        """What tells one structure from another.

        Raises:
            ContextError: A part is no variable yet.
        """
        value = self._value()
        if value is None:
            return None, ()
        parts = []
        for name, part in parts_of(value):
            if id(part) not in BY_PART:
                raise not_adopted(name, part)
            parts.append(id(BY_PART[id(part)]))
        return nnx.graphdef(value), tuple(parts)


def not_adopted(name: str, part: Any) -> errors.ContextError:
    """The error of a part that nobody made a variable of the strategy."""
    return errors.ContextError(
        errors.describe(
            f"`{name}`, a {type(part).__name__}, is no variable of the strategy.",
            why="It was never adopted, or was put into its module afterwards. Steps would take it "
            "for a constant, and lose what they write to it.",
            fix="Call `rx.nnx.adopt(module)` in the strategy's scope, once for each module and "
            "optimizer, and again after a change of their structure.",
        )
    )
