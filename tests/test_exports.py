"""The public names: sorted, there, documented, and Replicax's own."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil

import pytest

import replicax


def public_packages() -> list[str]:
    found = pkgutil.walk_packages(replicax.__path__, "replicax.", onerror=lambda _: None)
    names = ["replicax", *(info.name for info in found if info.ispkg)]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


def sort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest: the order that ruff's RUF022 keeps."""
    if len(name) > 1 and name.isupper():
        return 0, name
    return (1 if name[0].isupper() else 2), name


@pytest.fixture(params=public_packages())
def package(request):
    try:
        return importlib.import_module(request.param)
    except ImportError as error:
        if "pip install 'replicax[" not in str(error):
            raise
        pytest.skip(f"{error.name} is not installed")


def test_all_is_sorted_and_names_nothing_twice(package):
    assert sorted(set(package.__all__), key=sort_key) == list(package.__all__)


def test_every_name_exists(package):
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_nothing_public_is_left_out_of_all(package):
    listed = {"annotations", *package.__all__}
    public = {name for name in vars(package) if not name.startswith("_")} - listed
    submodules = {info.name for info in pkgutil.iter_modules(package.__path__)}

    assert public - submodules == set()


def test_package_and_every_name_have_a_docstring(package):
    documented = {name: getattr(package, name) for name in package.__all__}
    # A dataclass or an enum without words gets some from Python: look at what the class says.
    silent = [
        name
        for name, thing in documented.items()
        if (inspect.isclass(thing) and is_made_up(thing))
        or (inspect.isroutine(thing) and not thing.__doc__)
    ]

    assert package.__doc__
    assert silent == []


def is_made_up(cls: type) -> bool:
    words = vars(cls).get("__doc__") or ""
    return not words or words.startswith(f"{cls.__name__}(")


def test_every_name_is_our_own(package):
    homes = {
        name: thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", None)
        for name in package.__all__
        if inspect.ismodule(thing := getattr(package, name))
        or inspect.isclass(thing)
        or inspect.isroutine(thing)
    }
    borrowed = {
        name: home for name, home in homes.items() if not f"{home}.".startswith("replicax.")
    }

    assert borrowed == {}
