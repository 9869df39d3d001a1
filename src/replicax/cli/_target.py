"""A function of a script or a module, named on the command line, and what it returns."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

from replicax.errors import InvalidArgumentError, NotFoundError, describe


def load(target: str) -> tuple[Any, tuple[Any, ...]]:
    """Calls the function that `target` names, and returns its step and arguments.

    Args:
        target: `path/script.py:function` or `package.module:function`.

    Raises:
        InvalidArgumentError: It is no such name, or the function returns something else.
        NotFoundError: There is no such script, module or function.
    """
    returned = returned_by(target)
    is_pair = isinstance(returned, tuple) and len(returned) == 2  # noqa: PLR2004 - as it says
    if not is_pair or not callable(returned[0]) or not isinstance(returned[1], (tuple, list)):
        raise other_result(
            target,
            returned,
            "return `(step, arguments)`: the `rx.function`, and a tuple of what it is called with.",
        )
    return returned[0], tuple(returned[1])


def other_result(target: str, returned: Any, fix: str) -> InvalidArgumentError:
    """The error of a function that returns something else than a command takes."""
    return InvalidArgumentError(describe(f"`{target}` returned {returned!r:.100}.", fix=fix))


def returned_by(target: str) -> Any:
    """What the function that `target` names returns; raises as `load` does."""
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise InvalidArgumentError(
            describe(
                f"`{target}` names no function.",
                fix="write script.py:function or package.module:function.",
            )
        )
    names = _names_of(place)
    if not callable(names.get(name)):
        known = [key for key, value in names.items() if callable(value) and key[0] != "_"]
        raise NotFoundError(
            describe(
                f"{place} has no function `{name}`.",
                why=f"its functions are {', '.join(sorted(known)[:20]) or 'none'}.",
            )
        )
    return names[name]()


def _names_of(place: str) -> dict[str, Any]:
    if not place.endswith(".py"):
        sys.path.insert(0, "")
        try:
            return vars(importlib.import_module(place))
        except ModuleNotFoundError as error:
            raise NotFoundError(describe(f"There is no module `{place}`: {error}.")) from error
        finally:
            sys.path.remove("")
    path = Path(place)
    if not path.is_file():
        raise NotFoundError(describe(f"There is no script `{place}`."))
    sys.path.insert(0, str(path.resolve().parent))  # As `python script.py` does.
    try:
        return runpy.run_path(place, run_name="replicax_target")
    finally:
        sys.path.pop(0)
