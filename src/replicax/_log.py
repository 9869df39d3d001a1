"""What the library says while a program starts: one logger, and who hears it.

All loggers are below `replicax`. What went wrong but can go on is a WARNING. What people look for
when a program starts (devices, groups, batches, compiled steps) is INFO, said once in a job, by its
chief; the other workers say it as DEBUG. A library does not print: who wants to read it configures
`logging`, or sets `REPLICAX_LOG=info`, as `replicax run` does for its workers.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence

from replicax.errors import InvalidArgumentError, describe

NAME = "replicax"
ENVIRONMENT_NAME = "REPLICAX_LOG"
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
_WIDTH = 12

_LOGGER = logging.getLogger(NAME)


def logger(part: str) -> logging.Logger:
    """The logger of one part of the library.

    Examples:
        >>> logger("input").name
        'replicax.input'
    """
    return _LOGGER.getChild(part)


class Console(logging.Handler):
    """Writes to standard error, unless the program has handlers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("replicax %(levelname)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record."""
        others = [one for one in _LOGGER.handlers if one is not self]
        if others or (_LOGGER.propagate and logging.getLogger().handlers):
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)


def apply_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Applies `REPLICAX_LOG`, where it is set. `import replicax` calls it.

    Raises:
        InvalidArgumentError: The value is no level.
    """
    text = environment.get(ENVIRONMENT_NAME, "").strip().lower()
    if not text:
        return
    if text not in LEVELS:
        raise InvalidArgumentError(
            describe(
                f"The environment has {ENVIRONMENT_NAME}={text!r}.",
                why="it is the least level of what the library says on standard error.",
                fix=f"set it to one of {', '.join(LEVELS)}, or unset it.",
            )
        )
    _LOGGER.setLevel(LEVELS[text])
    if not any(isinstance(one, Console) for one in _LOGGER.handlers):
        _LOGGER.addHandler(Console())


def is_told(*, by_chief: bool) -> bool:
    """Whether somebody listens to what `tell` would say."""
    return _LOGGER.isEnabledFor(_level(by_chief))


def tell(title: str, facts: Mapping[str, str | None], *, by_chief: bool) -> None:
    """Says a line and facts, as one block.

    Args:
        title: The line.
        facts: What is known, by name; without those that are None.
        by_chief: Whether this process is the one that speaks for all.
    """
    if is_told(by_chief=by_chief):
        _LOGGER.log(_level(by_chief), "%s", block(title, facts))


def block(title: str, facts: Mapping[str, str | None]) -> str:
    """A line, and facts below it.

    Examples:
        >>> print(block("A step", {"replicas": "2", "plan": None}))
        A step
          replicas    2
    """
    lines: Sequence[str] = [
        f"  {name:<{_WIDTH}}{value}" for name, value in facts.items() if value is not None
    ]
    return "\n".join([title, *lines])


def _level(by_chief: bool) -> int:  # noqa: FBT001 - one fact
    return logging.INFO if by_chief else logging.DEBUG
