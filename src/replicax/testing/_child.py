"""Runs one function in a worker process of `run_workers`; run by its path, not as a module.

It imports neither replicax nor jax: what the function needs, its own module imports.

    python _child.py TASK RESULT
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

MAIN = "__replicax_main__"
"""The name of the parent's `__main__` here, so that its guarded part is not run again."""


def main(task_path: str, result_path: str) -> None:
    """Runs the function, and writes what it returned or raised."""
    task = pickle.loads(Path(task_path).read_bytes())  # noqa: S301 - our parent wrote it
    sys.path[:] = task["path"]
    function = _found(_module(task["module"], task["file"]), task["name"])
    arguments = pickle.loads(task["arguments"])  # noqa: S301 - the same; its classes are there now
    try:
        result = {"value": function(*arguments)}
    except BaseException as error:
        _write(result_path, {"error": error, "traceback": traceback.format_exc()})
        raise  # what the function joined hears of it in its own way
    _write(result_path, result)


def _module(name: str, file: str) -> ModuleType:
    """The module of the function, by its name or else from its file."""
    if name != MAIN:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if name == MAIN:
        sys.modules["__main__"].__dict__.update(vars(module))
    spec.loader.exec_module(module)
    return module


def _found(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _write(path: str, result: dict[str, Any]) -> None:
    """The result as a whole or not at all."""
    try:
        data = pickle.dumps(result)
        pickle.loads(data)  # noqa: S301 - our own bytes; what cannot come back is found here
    except Exception as error:  # noqa: BLE001 - objects may raise anything
        text = result.get("traceback") or f"{type(result.get('value')).__name__}"
        data = pickle.dumps({"unpicklable": f"{type(error).__name__}: {error}", "traceback": text})
    new = Path(f"{path}.new")
    new.write_bytes(data)
    os.replace(new, path)  # noqa: PTH105 - few imports


if __name__ == "__main__":
    main(*sys.argv[1:])
