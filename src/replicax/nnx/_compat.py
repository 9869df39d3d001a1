"""What this package uses of Flax, and the names of it that have no public form."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from typing import Any

from replicax import errors


def _imported() -> Any:
    try:
        return importlib.import_module("flax.nnx")
    except ImportError as error:
        if (error.name or "flax").partition(".")[0] != "flax":
            raise
        raise ImportError(
            errors.describe(
                "`rx.nnx` needs Flax, which is not installed.",
                fix="Install it: `pip install 'replicax[flax]'`.",
            ),
            name="flax",
        ) from error


nnx: Any = _imported()


value_of: Callable[[Any], Any] = operator.attrgetter("_raw_value")
"""The array that an `nnx.Variable` holds; in C, as it is asked for each leaf of each step."""

set_value: Callable[[Any, Any], None] = nnx.Variable._raw_value.__set__
"""`set_value(part, array)` lets an `nnx.Variable` hold an array, whatever is being traced.

`set_raw_value` asks JAX which trace runs; this is called for each leaf of each step.
"""


def level_of(part: Any) -> Any:
    """The level of tracing at which an `nnx.Variable` may be written."""
    return part._trace_state


def set_level(part: Any, level: Any) -> None:
    """Let an `nnx.Variable` be written at another level of tracing."""
    object.__setattr__(part, "_trace_state", level)


def level_of_node(node: Any) -> Any:
    """The level of tracing at which a module's attributes may be set."""
    return node._pytree__state._trace_state


def set_level_of_node(node: Any, level: Any) -> None:
    """Let a module be used and changed at another level of tracing."""
    object.__setattr__(node._pytree__state, "_trace_state", level)


def attributes_of(node: Any) -> dict[str, Any]:
    """A module's attributes, without the bookkeeping of Flax."""
    return {k: v for k, v in vars(node).items() if not k.startswith("_pytree__")}


def current_level() -> Any:
    """The level of tracing of code that runs now."""
    return nnx.Variable(0)._trace_state
