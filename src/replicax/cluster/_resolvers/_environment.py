"""Numbers out of environment variables, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from replicax.errors import FailedPreconditionError, InvalidArgumentError, Table, describe

Environment = Mapping[str, str]


def require(environment: Environment, resolver: str, names: Iterable[str], *, fix: str) -> None:
    """Refuses an environment that lacks one of `names`."""
    rows = [[name, environment.get(name, "(not set)")] for name in names]
    missing = [name for name, _ in rows if not environment.get(name)]
    if missing:
        message = describe(
            f"{resolver} needs the variable {missing[0]}.",
            table=Table(["variable", "value"], rows),
            fix=fix,
        )
        raise FailedPreconditionError(message)


def number(environment: Environment, name: str, *, least: int = 0) -> int:
    """The value of a variable that is set, as a whole number."""
    text = environment[name].strip()
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        message = describe(
            f"The environment has {name}={environment[name]!r}.",
            why=f"it must be a whole number from {least}.",
        )
        raise InvalidArgumentError(message)
    return int(text)


def optional(environment: Environment, name: str, *, least: int = 0) -> int | None:
    """The value of a variable as a whole number; None where it is not set."""
    return number(environment, name, least=least) if environment.get(name) else None


def rank_and_size(environment: Environment, rank_name: str, size_name: str) -> tuple[int, int]:
    """A rank and the size that it must be below."""
    rank, size = number(environment, rank_name), number(environment, size_name, least=1)
    if rank >= size:
        message = describe(
            f"The environment has {rank_name}={rank}, but {size_name}={size}.",
            why=f"ranks go from 0 to {size - 1}. One of the two is left from another job.",
            fix="unset both, and start the workers again.",
        )
        raise InvalidArgumentError(message)
    return rank, size


def check_local(environment: Environment, local_name: str, size_name: str) -> None:
    """Refuses more workers on this host than there are workers at all."""
    local, size = optional(environment, local_name, least=1), number(environment, size_name)
    if local is not None and local > size:
        message = describe(
            f"The environment has {local_name}={local}, but {size_name}={size}.",
            why="a host cannot have more workers than the job. One of the two is left from "
            "another job.",
            fix="unset both, and start the workers again.",
        )
        raise InvalidArgumentError(message)
