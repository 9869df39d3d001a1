"""Both READMEs say the same, and their code is the code that runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
PAGES = {"README.md": ENGLISH, "README.zh-CN.md": CHINESE}
CONTRACT = (
    "A step run under any strategy gives the numbers that one device gives on the same global "
    "batch, or it raises an error that names what differs. It never hangs without a report, and "
    "never returns a wrong number in silence."
)


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [
        Block(*found)
        for found in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ]


def prose(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def shape(page: str) -> list[str]:
    """The page's structure, section by section: what every line begins with."""
    starts = r"^(#+ |- |\||> \*\*|```\w+)"
    return re.findall(starts, page, re.MULTILINE)


EXAMPLES = [(ROOT / "examples" / name).read_text() for name in ("variables.py", "pytrees.py")]


def programs() -> list[tuple[str, str]]:
    """Each Python block with the text block right after it, which shows what it prints."""
    pair = r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?"
    return re.findall(pair, ENGLISH, re.MULTILINE | re.DOTALL)


SHOWN = [(code, output) for code, output in programs() if code not in EXAMPLES]


def test_both_pages_have_the_same_headings():
    levels = [re.findall(r"^(#+) ", prose(page), re.MULTILINE) for page in PAGES.values()]

    assert levels[0] == levels[1]
    assert len(levels[0]) > 5


def test_both_pages_have_the_same_blocks_of_code():
    assert blocks(ENGLISH) == blocks(CHINESE)
    assert {block.language for block in blocks(ENGLISH)} == {"console", "python", "text"}


def test_both_pages_have_the_same_lists_tables_and_blocks_in_order():
    assert shape(ENGLISH) == shape(CHINESE)


def test_both_pages_link_to_the_same_files():
    links = [set(re.findall(r"\]\(([^)#]+)\)", prose(page))) for page in PAGES.values()]

    assert links[0] == links[1]
    assert [link for link in sorted(links[0]) if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_anchors_lead_to_a_heading(name):
    headings = re.findall(r"^#+ (.+)$", prose(PAGES[name]), re.MULTILINE)
    known = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}

    assert set(re.findall(r"\]\(#([^)]+)\)", PAGES[name])) <= known


@pytest.mark.parametrize("name", PAGES)
def test_the_first_screen_has_the_two_commands(name):
    first = blocks(PAGES[name])[0]

    assert first == Block("console", "$ make demo\n$ make test\n")
    assert re.findall(r"^(demo|test):", (ROOT / "Makefile").read_text(), re.MULTILINE) == [
        "demo",
        "test",
    ]


def test_the_contract_is_quoted_as_it_is():
    quoted = " ".join(re.findall(r"^> (.+)$", ENGLISH, re.MULTILINE))
    docs = " ".join((ROOT / "docs/index.md").read_text().split())

    assert quoted == f"**The replica contract.** {CONTRACT}"
    assert CONTRACT in docs


@pytest.mark.parametrize("name", ["variables.py", "pytrees.py"])
def test_the_readme_shows_the_programs_of_examples(name):
    """They run in test_examples.py."""
    code = (ROOT / "examples" / name).read_text()

    assert Block("python", code) in blocks(ENGLISH)
    # The page includes the file, and so cannot differ from it.
    assert f'--8<-- "examples/{name}"' in (ROOT / "docs/index.md").read_text()


@pytest.mark.parametrize("number", range(len(SHOWN)))
def test_the_other_code_of_the_readme_prints_what_is_shown(number, run_program, tmp_path):
    code, output = SHOWN[number]
    program = tmp_path / "program.py"
    program.write_text(code, encoding="utf-8")

    done = run_program(program)

    assert done.returncode == 0, done.stderr
    assert output
    assert done.stdout == output


def test_the_error_of_the_readme_is_what_a_forgotten_all_reduce_prints(run_program, tmp_path):
    code = (ROOT / "examples/variables.py").read_text()
    forgotten = code.replace('ctx.all_reduce("mean", gradient)', "gradient")
    assert forgotten != code
    program = tmp_path / "variables.py"
    program.write_text(forgotten, encoding="utf-8")

    done = run_program(program)

    shown = next(block.text for block in blocks(ENGLISH) if "VaryingWriteError" in block.text)
    assert done.returncode == 1
    assert shown in done.stderr
    assert "loss" not in done.stdout


def test_the_version_of_python_is_the_one_that_is_required():
    project = (ROOT / "pyproject.toml").read_text()

    assert 'requires-python = ">=3.11"' in project
    assert '"jax>=0.10"' in project
    for page in PAGES.values():
        assert "Python 3.11" in page
        assert "jax 0.10" in page
