"""How a step starts a program that all workers run together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicax.cluster import ORDER, running, site_here
from replicax.step._variant import entry_by_call
from replicax.step._workers import check_level, compare_call

Call = Callable[..., Any]


def starting(
    jitted: Call,
    name: str,
    compared: Mapping[Any, int],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    names: Sequence[str],
    of_parts: Callable[[Call], Call],
) -> Call:
    """Returns what starts a program: under the guard, and entered in the order of what runs.

    Args:
        jitted: The jitted function.
        name: The name of the user's function.
        compared: The entry of each trace that the workers have compared, by `(structure,
            signature)`.
        args: Arguments of a call.
        kwargs: Named arguments of a call.
        names: The names of the parameters.
        of_parts: Makes a function of `(args, kwargs)` one of what `jitted` is given.
    """
    entry = next(iter(compared.values()))
    ORDER.started = 0  # There is another trace, and other shapes to tell apart.
    ORDER.name(entry, f"`{name}`", f"{site_here()} (first call)")
    signatures = [signature for _, signature in compared]
    by_call = entry_by_call(entry, signatures, args, kwargs)
    call = running(jitted, by_call if isinstance(by_call, int) else of_parts(by_call))
    if check_level() != "strict":
        return call
    compare = of_parts(lambda args, kwargs: compare_call(name, args, kwargs, names))

    def compared_first(*parts: Any) -> Any:
        compare(*parts)
        return call(*parts)

    return compared_first
