"""Files: order, turns, shards, readers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import replicax as rx

LINES = {"a": ["a0", "a1", "a2"], "b": [], "c": ["c0"], "d": ["d0", "d1"], "e": ["e0"]}


@pytest.fixture
def folder(tmp_path):
    for name, lines in LINES.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


@pytest.fixture
def data(folder):
    return rx.data.from_files([folder / name for name in LINES], rx.data.read_lines)


def in_turns(lines, cycle):
    """What tf.data's interleave gives: a file that ends hands its turn to the next one."""
    waiting, reading, out = [list(one) for one in lines], [], []
    while waiting or reading:
        while waiting and len(reading) < cycle:
            reading.append(waiting.pop(0))
        current = reading.pop(0)
        if current:
            out.append(current.pop(0))
            reading.append(current)
        elif waiting:
            reading.insert(0, waiting.pop(0))
    return out


def test_one_file_after_the_other(data):
    lines = list(itertools.chain.from_iterable(LINES.values()))
    assert [list(data), list(data)] == [lines, lines]
    assert [list(data.open(start=at)) for at in range(9)] == [lines[at:] for at in range(9)]
    assert data.row_ids(0) is None


@pytest.mark.parametrize("cycle", [1, 2, 3, 9])
def test_files_in_turns(data, cycle):
    turns = in_turns(LINES.values(), cycle)
    assert list(data.interleave(cycle)) == turns
    assert sorted(turns) == sorted(data)
    assert list(data.interleave(cycle).open(start=3)) == turns[3:]


def test_two_files_in_turns_as_they_are_written_down(data):
    assert list(data.interleave(2)) == ["a0", "c0", "a1", "d0", "a2", "d1", "e0"]


@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_shards_of_the_files_of_a_chain(data, num_shards):
    chain = data.interleave(2).map(str.upper).batch(2).prefetch()
    shards = [chain.sharded(num_shards, i, by="files") for i in range(num_shards)]
    assert [shard.files for shard in shards] == [
        data.files[i::num_shards] for i in range(num_shards)
    ]
    rows = sorted(row for shard in shards for batch in shard for row in batch.tolist())
    assert rows == sorted(line.upper() for line in data)
    assert all(shard.is_sharded is (num_shards > 1) for shard in shards)


def test_fewer_files_than_shards_are_refused(data):
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"5 files .* over 6 pipelines"):
        data.sharded(6, 0, by="files")


def test_a_pattern_is_sorted(folder):
    data = rx.data.from_files(f"{folder}/[ca]", rx.data.read_lines)
    assert list(data) == LINES["a"] + LINES["c"]


@pytest.mark.parametrize(
    ("paths", "error", "words"),
    [
        ([], rx.errors.InvalidArgumentError, "empty"),
        (["x", "x"], rx.errors.InvalidArgumentError, "'x' twice"),
        (["no such file"], rx.errors.NotFoundError, "the first: 'no such file'"),
        ("no/such/*", rx.errors.NotFoundError, r"no/such/\*"),
        (3, rx.errors.ArgumentTypeError, "`paths` = 3"),
        ([3], rx.errors.ArgumentTypeError, "no paths"),
    ],
)
def test_what_are_no_files_is_refused(paths, error, words):
    with pytest.raises(error, match=words):
        rx.data.from_files(paths, rx.data.read_lines)


def test_an_error_of_a_reader_names_the_file(folder):
    def read(path):
        yield 1
        raise OSError("disk")

    elements = iter(rx.data.from_files([folder / "a"], read))
    assert next(elements) == 1
    with pytest.raises(OSError, match="disk") as caught:
        next(elements)
    assert caught.value.__notes__ == [
        f"Raised by the reader for element 1 of {str(folder / 'a')!r}."
    ]


def test_a_reader_that_returns_nothing_is_refused(folder):
    with pytest.raises(rx.errors.ArgumentTypeError, match="returned None"):
        list(rx.data.from_files([folder / "a"], lambda path: None))


def test_npz(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(6).reshape(3, 2), y=np.arange(3))
    data = rx.data.from_files(str(tmp_path / "x.npz"), rx.data.read_npz).batch(2)
    assert [(b["x"].tolist(), b["y"].tolist()) for b in data] == [
        ([[0, 1], [2, 3]], [0, 1]),
        ([[4, 5]], [2]),
    ]
    np.savez(tmp_path / "y.npz", x=np.arange(3), y=np.arange(2))
    with pytest.raises(rx.errors.InvalidArgumentError, match=r"y +\(2,\)"):
        list(rx.data.from_files(str(tmp_path / "y.npz"), rx.data.read_npz))


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    table = pyarrow.table({"x": [[1, 2], [3, 4], [5, 6]], "y": [0.5, 1.5, 2.5]})
    parquet.write_table(table, tmp_path / "x.parquet")
    data = rx.data.from_files(str(tmp_path / "x.parquet"), rx.data.read_parquet).batch(3)
    (batch,) = data
    assert batch["x"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch["y"].tolist() == [0.5, 1.5, 2.5]


def test_array_records(tmp_path):
    pytest.importorskip("grain", reason="Grain is not installed")
    array_record = pytest.importorskip(
        "array_record.python.array_record_module", reason="array_record is not installed"
    )
    path = str(tmp_path / "x.array_record")
    writer = array_record.ArrayRecordWriter(path, "group_size:1")
    for record in (b"one", b"two"):
        writer.write(record)
    writer.close()
    assert list(rx.data.from_files(path, rx.data.read_array_records)) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("reader", "package"), [("read_parquet", "pyarrow"), ("read_array_records", "grain")]
)
def test_a_reader_without_its_package_says_what_to_install(run_python, reader, package):
    done = run_python(f"""
        import sys
        sys.modules[{package!r}] = None  # as if it were not installed
        sys.modules["pyarrow.parquet"] = None
        import replicax as rx
        try:
            list(rx.data.from_files(__file__, rx.data.{reader}))
        except rx.errors.FailedPreconditionError as error:
            print(error)
    """)
    assert f"pip install {package}" in done.stdout, done.stderr
