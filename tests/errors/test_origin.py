"""Call sites and origins."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import inspect
import operator
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from replicax.errors import CallSite, Origin, call_site


def run(code):
    """The output of a program in a fresh interpreter."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def here():
    return inspect.currentframe().f_back.f_lineno


def test_the_line_of_the_caller():
    site, line = call_site(), here()
    assert site == CallSite(__file__, line, "test_the_line_of_the_caller")


def test_jax_frames_are_passed_over():
    sites = []

    def body(carry, x):
        jax.tree.map(lambda _: None, {"a": 1})
        sites.append(call_site())
        return carry + x, x

    jax.make_jaxpr(lambda x: jax.lax.scan(body, 0.0, x))(jnp.ones(3))
    assert {site.function for site in sites} == {"body"}
    assert sites[0].file == __file__


def test_called_by_jax_itself_gives_the_line_that_called_jax():
    # A method caller is no Python frame: all frames in between are of jax.
    (site,), line = jax.tree.map(operator.methodcaller("__call__"), [call_site]), here()
    assert site == CallSite(
        __file__, line, "test_called_by_jax_itself_gives_the_line_that_called_jax"
    )


def test_library_frames_are_passed_over():
    # A module of the library is one whose file lies in its folder.
    folder = Path(call_site.__code__.co_filename).parents[1]
    scope = {"call_site": call_site, "__name__": "replicax.step._made_up"}
    source = "def inside(): return call_site()"
    exec(compile(source, str(folder / "step" / "_made_up.py"), "exec"), scope)  # noqa: S102
    assert scope["inside"]().function == "test_library_frames_are_passed_over"
    # A folder beside it that only begins with the same letters is user code.
    exec(compile(source, f"{folder}_user/x.py", "exec"), scope)  # noqa: S102
    assert scope["inside"]().function == "inside"


def test_generated_methods_of_the_library_are_passed_over():
    scope = {"call_site": call_site, "__name__": "replicax.values._made_up"}
    exec(compile("def __init__(): return call_site()", "<string>", "exec"), scope)  # noqa: S102
    assert scope["__init__"]().function == "test_generated_methods_of_the_library_are_passed_over"


def test_context_managers_are_passed_over():
    scope = {"call_site": call_site, "sites": [], "__name__": "replicax.made_up"}
    folder = Path(call_site.__code__.co_filename).parents[1]
    source = "def inside():\n  sites.append(call_site())\n  yield"
    exec(compile(source, str(folder / "made_up.py"), "exec"), scope)  # noqa: S102
    with contextlib.contextmanager(scope["inside"])():
        pass
    assert scope["sites"][0].function == "test_context_managers_are_passed_over"


@pytest.mark.parametrize("name", ["<stdin>", "<doctest replicax.errors[0]>", "<ipython-input-1>"])
def test_prompts_and_doctests_are_user_code(name):
    scope = {"call_site": call_site, "__name__": "replicax.errors"}
    exec(compile("site = call_site()", name, "exec"), scope)  # noqa: S102
    assert scope["site"] == CallSite(name, 1, "<module>")
    assert str(scope["site"]) == f"{name}:1 in <module>"


def test_a_script_given_on_the_command_line():
    done = run("""
        import functools
        from replicax.errors import call_site

        print(functools.partial(call_site)())
    """)
    assert done == "<string>:5 in <module>\n"


def test_a_stack_without_user_code():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(call_site).result() is None
        assert pool.submit(lambda: [call_site()]).result()[0].function == "<lambda>"


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("step.py", "step.py"),
        ("/elsewhere/deep/below/step.py", "below/step.py"),
        ("/step.py", "step.py"),
    ],
)
def test_shown_path(file, shown):
    assert str(CallSite(file, 12, "train_step")) == f"{shown}:12 in train_step"


def test_paths_below_the_working_directory_are_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    site = CallSite(str(tmp_path / "src" / "a" / "step.py"), 1, "f")
    assert str(site) == f"{os.path.join('src', 'a', 'step.py')}:1 in f"  # noqa: PTH118


def test_no_user_name_is_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert str(CallSite(str(tmp_path / "someone" / "step.py"), 1, "f")) == "step.py:1 in f"


def test_a_deleted_working_directory(tmp_path):
    done = run(f"""
        import os
        from replicax.errors import CallSite

        os.chdir({str(tmp_path)!r})
        os.rmdir({str(tmp_path)!r})
        print(CallSite("/a/b/c.py", 1, "f"))
    """)
    assert done == "b/c.py:1 in f\n"


def test_origin_names_only_what_is_known():
    assert Origin(replica=0, step=0).describe() == "replica 0, step 0"
    site = CallSite("a.py", 7, "f")
    origin = Origin(job="worker", task=1, replica=3, step=20, call_site=site)
    assert origin.describe() == "job worker, task 1, replica 3, step 20, a.py:7 in f"
    assert pickle.loads(pickle.dumps(origin)) == origin  # noqa: S301


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Origin().task = 1
