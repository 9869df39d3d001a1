"""Write the table of docs/zoo.md: the broken programs of tests/zoo, and who names their faults.

It is read off the programs, and none is run. That they are named so is tested in tests/zoo.
`--check` changes nothing and exits with 1 if the page is not up to date.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "zoo.md"
BROKEN = ROOT / "tests" / "zoo" / "broken"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def constants(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """The tuples that a module names at its top level."""
    return {
        target.id: node.value.elts
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def row(program: Path) -> list[str]:
    """The cells of a program."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    found = constants(tree)
    who, *words = found["NAMED_BY"]
    by = f"`{ast.unparse(who).rpartition('.')[2]}`"
    if isinstance(who, ast.Constant):
        by = f"`rx.verify`, {who.value}"
    pattern = (ast.get_docstring(tree) or "").splitlines()[0]
    threads = [ast.literal_eval(one) for one in found.get("SEEN", ())[1:]]
    links = [f"[{one}](https://github.com/{one.replace('#', '/issues/')})" for one in threads]
    quoted = " … ".join(_as_text(ast.literal_eval(word)) for word in words)
    return [f"`{program.stem}`", pattern.removesuffix("."), ", ".join(links), by, quoted]


def _as_text(words: str) -> str:
    """Words of a message; outside of code, a bracket would begin a link."""
    return words if "`" in words else words.replace("[", "\\[")


def table() -> str:
    """All programs, as Markdown."""
    heads = ["program", "what is wrong", "seen in", "named by", "with the words"]
    lines = [heads, ["---"] * len(heads), *map(row, sorted(BROKEN.glob("*.py")))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    new = f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"
    if new != page and options.check:
        print(f"{PAGE.name} is not what the programs say; run `python tools/zoo_table.py`.")
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
