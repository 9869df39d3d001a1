"""The programs of the zoo: how they are found, and what `rx.verify` says of one.

Each is a module that stands alone. `make()` gives the arguments of `rx.verify`: a strategy, a step,
its state or variables, and a dataset. A broken program says by what it is named, and where
it was seen; `figures()` gives what its fault makes of a number, and the number of one device.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import pytest

import replicax as rx

EXTRAS = ("flax", "keras", "optax", "sklearn")

ZOO = Path(__file__).parent
# Broken programs may also be seen through by what is only a warning elsewhere.
NOTICED = (rx.verification.Status.FAILED, rx.verification.Status.WARNING)


class Verdict(NamedTuple):
    """What was said of a program.

    Attributes:
        by: Who said it: the class of an error, or checks of `rx.verify`.
        text: What was said; empty where all is well.
    """

    by: tuple[str, ...]
    text: str


def names(kind: str, *, workers: int = 1) -> list[str]:
    """The programs of a folder for so many worker processes; none is imported."""
    mark = "\nWORKERS = "
    found = sorted((ZOO / kind).glob("*.py"))
    texts = {path.stem: path.read_text(encoding="utf-8") for path in found}
    return [
        name for name, text in texts.items() if int(text.partition(mark)[2][:1] or 1) == workers
    ]


def load(kind: str, name: str) -> ModuleType:
    """The module of a program."""
    path = ZOO / kind / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as missing:
        if missing.name not in EXTRAS:
            raise
        pytest.skip(f"{missing.name} is not installed")
    return module


def verdict(program: ModuleType) -> Verdict:
    """What an error or `rx.verify` says of a program."""
    try:
        made = program.make()
        report = None if made is None else rx.verify(*made)
    except (rx.errors.ReplicaxError, jax.errors.JAXTypeError) as error:
        return Verdict((type(error).__name__,), str(error))
    found = [one for one in report.findings if one.status in NOTICED] if report else []
    return Verdict(tuple(one.check for one in found), "\n".join(map(str, found)))


def missing(program: ModuleType, said: Verdict) -> list[Any]:
    """Which parts of `NAMED_BY` are not in a verdict.

    Where it names lines of the program, the one that is marked must be among them.
    """
    who, *words = program.NAMED_BY
    parts = [] if _is_by(who, said) else [who]
    parts += [word for word in words if word not in said.text]
    lines = fault_lines(program)
    file = Path(str(program.__file__)).name
    if lines and f"{file}:" in said.text and not any(_names(said, file, n) for n in lines):
        parts.append(f"{file}:{lines}")
    return parts


def fault_lines(program: ModuleType) -> list[int]:
    """The lines that end in `# fault`."""
    text = Path(str(program.__file__)).read_text(encoding="utf-8")
    return [n for n, line in enumerate(text.splitlines(), start=1) if "# fault" in line]


def _names(said: Verdict, file: str, line: int) -> bool:
    return f"{file}:{line} " in said.text or f"{file}:{line}:" in said.text


def _is_by(who: Any, said: Verdict) -> bool:
    """An error of a step that `rx.verify` has tried is a finding, which names the class."""
    if isinstance(who, str):
        return who in said.by
    name = who.__name__
    return name in said.by or ("runs" in said.by and f"({name})" in said.text)
