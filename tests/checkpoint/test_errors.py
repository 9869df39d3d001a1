"""What cannot be saved or restored is refused, with both sides shown, and nothing is changed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax import errors
from replicax.checkpoint import Checkpoint


def test_all_differences_stand_in_one_table(path, part):
    saved = {"a": np.zeros(2), "b": np.zeros(3, np.int32), "c": 1, "same": 1, "more": 2}
    Checkpoint(model=part(**saved)).save(path)
    w = rx.Variable(np.float32([5.0]))
    target = part(a=np.ones(3), b=np.ones(3, np.int64), c=1.0, same=0, w=w)

    with pytest.raises(errors.InvalidArgumentError) as caught:
        Checkpoint(model=target).restore(path)
    rows = [line.split("  ") for line in str(caught.value).splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert ["model.a", "float64[2]", "float64[3]"] in cells
    assert ["model.b", "int32[3]", "int64[3]"] in cells
    assert ["model.c", "int", "float"] in cells
    assert ["model.w", "missing", "float32[1]"] in cells
    assert not any("model.same" in row or "model.more" in row for row in cells)
    # nothing was restored, not even what fits
    assert (target.same, target.a.tolist(), w.value.tolist()) == (0, [1, 1, 1], [5])


def test_keys_of_another_implementation(path):
    Checkpoint(key=jax.random.key(0)).save(path)

    with pytest.raises(errors.InvalidArgumentError, match=r"key<fry>\[\] +key<rbg>\[\]"):
        Checkpoint(key=jax.random.key(0, impl="rbg")).restore(path)


def test_nothing_is_at_the_path(path):
    with pytest.raises(errors.NotFoundError, match="nothing is there"):
        Checkpoint(x=1).restore(path)


def test_an_empty_folder_can_be_saved_to_but_not_restored_from(path):
    path.mkdir()

    with pytest.raises(errors.NotFoundError, match="the folder is empty"):
        Checkpoint(x=1).restore(path)
    Checkpoint(x=1).save(path)
    Checkpoint(x=0).restore(path).assert_consumed()


@pytest.mark.parametrize("kind", ["file", "folder", "dangling link"])
def test_something_else_is_at_the_path(path, kind):
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
        (path / "thesis.tex").write_text("mine")
    else:
        path.symlink_to(path.parent / "nowhere")
    checkpoint = Checkpoint(x=1)
    what = "'thesis.tex'" if kind == "folder" else "a file"

    with pytest.raises(errors.AlreadyExistsError, match=what):
        checkpoint.save(path)
    with pytest.raises(errors.InvalidArgumentError, match=what):
        checkpoint.restore(path)
    if kind == "file":
        assert path.read_text() == "mine"
    if kind == "folder":
        assert [entry.name for entry in path.iterdir()] == ["thesis.tex"]


def test_a_checkpoint_among_other_things_is_not_replaced(path):
    Checkpoint(x=1).save(path)
    (path / "notes.txt").write_text("mine")

    with pytest.raises(errors.AlreadyExistsError, match=r"notes\.txt"):
        Checkpoint(x=2).save(path)
    assert (path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("part", ["arrays/d", "arrays/_METADATA", "manifest/metadata"])
@pytest.mark.parametrize("harm", ["lost", "changed"])
def test_files_that_were_lost_or_changed(path, part, harm):
    Checkpoint(x=np.arange(1000.0)).save(path)
    (commit,) = path.iterdir()
    for file in (commit / part).rglob("*") if (commit / part).is_dir() else [commit / part]:
        if harm == "lost":
            file.unlink()
        else:
            file.write_bytes(bytes(byte ^ 255 for byte in file.read_bytes()))
    target = {"x": np.zeros(1000)}

    with pytest.raises(errors.DataLossError, match="cannot be read"):
        Checkpoint(**target).restore(path)


def test_a_path_below_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")

    with pytest.raises(errors.ReplicaxError, match=r"while saving|file"):
        Checkpoint(x=1).save(tmp_path / "file" / "checkpoint")


@pytest.mark.parametrize("path", [None, 3, b"bytes"])
def test_what_is_no_path(path):
    with pytest.raises(errors.ArgumentTypeError, match="is not a path"):
        Checkpoint(x=1).save(path)
    with pytest.raises(errors.ArgumentTypeError, match="is not a path"):
        Checkpoint(x=1).restore(path)


def test_remote_stores_are_not_supported():
    with pytest.raises(errors.UnimplementedError, match="remote store"):
        Checkpoint(x=1).save("gs://bucket/checkpoint")


@pytest.mark.parametrize("objects", [{}, {"save": 1}, {"objects": 1}, {"_own": 1}])
def test_names_that_are_taken(objects):
    with pytest.raises(errors.InvalidArgumentError, match="was given"):
        Checkpoint(**objects)


@pytest.mark.parametrize("call", ["save", "restore"])
def test_in_replica_context(path, strategy, runner, call):
    checkpoint = Checkpoint(x=1)
    checkpoint.save(path)
    step = runner(lambda: strategy.run(lambda: getattr(checkpoint, call)(path)))

    with pytest.raises(errors.ContextError, match=f"`Checkpoint.{call}` was called in replica"):
        step()


@pytest.mark.parametrize("call", ["save", "restore"])
def test_inside_a_function(path, call):
    checkpoint = Checkpoint(x=1)
    checkpoint.save(path)

    with pytest.raises(errors.ContextError, match=r"inside an rx\.function"):
        rx.function(lambda: getattr(checkpoint, call)(path))()


def test_under_jit(path):
    v = rx.Variable(1.0)
    with pytest.raises(errors.ContextError):
        jax.jit(lambda: Checkpoint(v=v).save(path))()
    with pytest.raises(errors.ContextError, match="`x` is being traced"):
        jax.jit(lambda x: Checkpoint(x=x).save(path))(1.0)
    assert not path.exists()


def test_a_per_replica_value(path):
    with pytest.raises(errors.InvalidArgumentError, match=r"`model\['x'\]` is .*PerReplica"):
        Checkpoint(model={"x": rx.PerReplica([jnp.ones(1), jnp.ones(1)])}).save(path)
    assert not path.exists()


def test_keys_that_look_alike(path):
    class Key:
        def __repr__(self):
            return "key"

    with pytest.raises(errors.InvalidArgumentError, match=r"path `x\[key\]`"):
        Checkpoint(x={Key(): 1, Key(): 2}).save(path)
