"""What import-linter cannot see: private names of others, patches, and what an import starts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import replicax

ROOT = Path(replicax.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
OTHERS = ("jax", "jaxlib", "numpy", "keras", "flax", "grain", "ray")


def relative(module: Path) -> str:
    return str(module.relative_to(ROOT))


def is_private(dotted: str) -> bool:
    root, *rest = dotted.split(".")
    return root in OTHERS and any(part.startswith("_") and part[:2] != "__" for part in rest)


def dotted_names(tree: ast.AST) -> list[tuple[int, str]]:
    """Every dotted name that a module imports or uses, with its line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found.append((node.lineno, ast.unparse(node)))
    return found


def roots_of_others(tree: ast.AST) -> set[str]:
    """The local names that stand for other people's modules."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    return {
        alias.asname or alias.name.split(".")[0]
        for node in imports
        for alias in node.names
        if alias.name.split(".")[0] in OTHERS
    }


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_private_names_of_others_stand_in_compat_modules_alone(module):
    tree = ast.parse(module.read_text(encoding="utf-8"))
    private = [(line, name) for line, name in dotted_names(tree) if is_private(name)]

    assert module.name == "_compat.py" or private == []


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_nothing_is_set_on_modules_of_others(module):
    tree = ast.parse(module.read_text(encoding="utf-8"))
    others = roots_of_others(tree)
    written = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Subscript)]
    patches = [
        (node.lineno, ast.unparse(node))
        for node in written
        if isinstance(node.ctx, ast.Store) and ast.unparse(node).split(".")[0] in others
    ]

    assert patches == []


def test_an_import_starts_no_device(run_python):
    # The number of CPU devices can only be set before jax has started.
    done = run_python(
        """
        import replicax
        import jax
        jax.config.update("jax_num_cpu_devices", 3)
        print(jax.local_device_count())
    """,
        is_fresh=True,
    )

    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_an_import_loads_no_extra(run_python):
    done = run_python(
        """
        import sys
        import replicax
        extras = {"flax", "grain", "keras", "matplotlib", "optax", "ray", "sklearn", "tensorflow"}
        print(sorted(extras & set(sys.modules)))
    """,
        is_fresh=True,
    )

    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
