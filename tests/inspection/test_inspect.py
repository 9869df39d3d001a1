"""Records of several workers side by side: clocks, places, who parts and who is late."""

from __future__ import annotations

import json

import pytest

from replicax import errors
from replicax.cli import main
from replicax.inspection._merged import merged, p95
from replicax.inspection._records import parsed, read
from replicax.inspection._survey import survey, to_json
from replicax.inspection._timeline import FIRST_REPLICA, trace_text

MS = 1_000_000
SUBJECT = {
    "kind": "step",
    "site": "train.py:9 in main",
    "is_shared": True,
    "is_awaited": False,
    "replicas": [0],
    "counts": [1],
    "bytes": [4096],
    "collectives": [[["all_reduce", "MEAN", 1, 100, 2, 4096, "train.py:5 in step"]]],
}
MEETING = {
    **SUBJECT,
    "kind": "meeting",
    "replicas": [],
    "counts": [],
    "bytes": [],
    "collectives": [],
}


def made(worker, entries, *, workers=2, boot="one", wall_offset=0, now=1000 * MS, **more):
    """A record; an entry is a name, a start and an end in ms."""
    names = list(dict.fromkeys(name for name, *_ in entries))
    subjects = [
        {**(MEETING if name == "meeting" else SUBJECT), "name": name, "replicas": [worker]}
        for name in names
    ]
    runs = dict.fromkeys(names, 0)
    rows = []
    for place, (name, start, end) in enumerate(entries):
        drawn = [runs[name], place] if end > 0 else [None, None]
        rows.append([names.index(name), round(start * MS), round(end * MS), *drawn])
        runs[name] += 1
    return {
        "format": "replicax record",
        "version": 1,
        "reason": "a test",
        "host": f"host-{worker}",
        "pid": 100 + worker,
        "boot": boot,
        "worker": worker,
        "workers": workers,
        "now": now,
        "wall_offset": wall_offset,
        "subjects": subjects,
        "entries": rows,
        "stacks": [{"thread": "MainThread", "is_main": True, "frames": ["train.py:9 in main"]}],
        **more,
    }


def steps(count, *, late=0.0, name="train", began=1.0):
    return [(name, began + 10 * i + late, began + 10 * i + late + 2) for i in range(count)]


def of(*records, **more):
    return merged([parsed(record, "a test") for record in records], **more)


def test_workers_that_do_the_same_are_told_apart_by_who_is_late():
    seen = of(made(0, steps(20)), made(1, steps(20, late=3)))

    first, second = seen.paces
    assert seen.parted is None
    assert (first.last, second.last) == (0, 20)
    assert second.late_mean == pytest.approx(0.003)
    assert second.late_p95 == pytest.approx(0.003)
    assert (first.mean, first.p95) == (pytest.approx(0.010), pytest.approx(0.010))
    assert first.start_mean == pytest.approx(0.002)
    assert "They do the same, as far as the records reach." in str(seen)


def test_clocks_of_other_hosts_are_set_by_meetings():
    # Worker 1's clock is 500 ms ahead, and its wall clock 40 ms wrong.
    meeting = ("meeting", 0.5, 0.9)
    ahead = [(name, start + 500, end + 500) for name, start, end in [meeting, *steps(5, late=3)]]
    other = made(1, ahead, boot="two", wall_offset=-460 * MS)
    seen = of(made(0, [meeting, *steps(5)]), other)

    assert seen.offsets == {0: 0, 1: -500 * MS}
    assert seen.paces[1].late_mean == pytest.approx(0.003)


def test_without_meetings_the_wall_clock_counts():
    ahead = [(name, start + 500, end + 500) for name, start, end in steps(5, late=3)]
    seen = of(made(0, steps(5)), made(1, ahead, boot="two", wall_offset=-500 * MS))

    assert seen.offsets[1] == -500 * MS


def test_where_workers_part_is_marked():
    seen = of(
        made(0, [*steps(4), ("evaluate", 50, 51)]),
        made(1, [*steps(4), ("train", 50, 0)]),  # It never came back.
    )

    assert seen.parted is not None
    assert seen.parted.place == 4
    text = str(seen)
    assert "They part at entry 4" in text
    assert "step evaluate" in text
    assert "has not returned" in text
    assert json.loads(to_json(seen))["parted"] == 4


def test_a_step_that_one_worker_left_out_parts_them_for_good():
    seen = of(made(0, [*steps(3), ("evaluate", 33, 34), *steps(5, began=40)]), made(1, steps(9)))

    assert seen.parted is not None
    assert seen.parted.place == 3


def test_a_difference_that_was_refused_and_caught_does_not_part_them():
    refused = ("meeting", 25, 26)
    seen = of(
        made(0, [*steps(2), refused, *steps(3, began=40)]),
        made(1, [*steps(2), ("other", 25, 26), *steps(3, began=40)]),
    )

    assert [row.differs for row in seen.rows] == [False, False, True, False, False, False]
    assert seen.parted is None


def test_the_entry_that_raised_stands_at_its_place():
    seen = of(made(0, [*steps(2), ("train", 30, -35)]), made(1, steps(3)))

    last = seen.rows[-1]
    assert (last.place, sorted(last.done)) == (2, [0, 1])
    assert last.done[0].state == "raised"
    assert "raised after 5 ms" in str(seen)


def test_a_worker_that_does_not_answer_is_listed_with_what_the_master_knows():
    states = [
        {"worker": 0, "has run": 5, "last": "`train`", "is": "waiting"},
        {"worker": 1, "has run": 4, "last": "`train`", "is": "in Python"},
    ]
    seen = of(made(0, steps(5)), silent=[1], states=states)

    assert (seen.workers, seen.silent) == (2, (1,))
    assert "Not answering, or without a record: worker 1." in str(seen)
    assert "in Python" in str(seen)


def test_of_several_records_of_a_worker_the_latest_counts():
    seen = of(made(0, steps(5), workers=1), made(0, steps(2), workers=1, now=1))

    assert len(seen.rows) == 5
    assert seen.paces[0].late_mean is None


def test_few_entries_are_shown_and_the_place_where_they_part_is_among_them():
    apart = [*steps(3), ("evaluate", 35, 36)]
    seen = of(made(0, apart + steps(90, began=40)), made(1, [*steps(4), *steps(90, began=40)]))

    assert survey(seen, last=4).count("step train 2") == 1
    assert ">>> they part" in survey(seen, last=4)


@pytest.mark.parametrize(("values", "found"), [([], None), ([2], 2), (range(1, 41), 38)])
def test_p95_is_a_value_that_was_there(values, found):
    assert p95(list(values)) == found


def test_a_trace_has_rows_for_workers_and_replicas_and_lists_collectives():
    seen = of(made(0, steps(2)), made(1, [*steps(1), ("train", 30, 0)]))
    ends = {(0, 0): (9 * MS,)}
    found = json.loads(trace_text(seen, ends=ends))["traceEvents"]

    slices = [event for event in found if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in slices} == {
        (0, 0),
        (0, FIRST_REPLICA),
        (1, 0),
        (1, FIRST_REPLICA + 1),
    }
    on_replica = [event for event in slices if event["tid"] == FIRST_REPLICA]
    assert (on_replica[0]["ts"], on_replica[0]["dur"]) == (0.0, 8000.0)  # That was waited for.
    assert on_replica[1]["dur"] == 2000.0
    (shown,) = on_replica[0]["args"]["collectives"]
    assert shown == "all_reduce MEAN: 4 KiB in 2 array(s), key 1:100, train.py:5 in step"
    (running,) = [event for event in slices if event["args"].get("state") == "runs"][:1]
    assert running["dur"] == pytest.approx(970_000)
    named = {event["args"]["name"] for event in found if event["name"] == "thread_name"}
    assert {"replica 0", "replica 1"} < named


@pytest.mark.parametrize(
    "record",
    [
        [],
        {"format": "another"},
        {**made(0, []), "version": 2},
        {**made(0, []), "entries": [[3, 1, 2, 0, 0]]},
        {**made(0, []), "now": "soon"},
        {**made(0, steps(1)), "subjects": [{}]},
    ],
    ids=["list", "format", "version", "subject", "time", "fields"],
)
def test_what_is_no_record_is_refused(record):
    with pytest.raises(errors.InvalidArgumentError, match="a test is no record of a worker"):
        parsed(record, "a test")


@pytest.fixture
def folder(tmp_path):
    """The records of two workers that parted."""
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "worker-0.json").write_text(json.dumps(made(0, steps(3))))
    (folder / "worker-1.json").write_text(json.dumps(made(1, steps(3, name="evaluate"))))
    return folder


def test_the_command_shows_a_folder_and_writes_a_trace(folder, tmp_path, capsys):
    trace = tmp_path / "trace.json"
    assert main(["inspect", str(folder), "--trace", str(trace)]) == 1  # They part.

    assert "They part at entry 0" in capsys.readouterr().out
    assert {event["pid"] for event in json.loads(trace.read_text())["traceEvents"]} == {0, 1}


def test_the_command_prints_json(folder, capsys):
    assert main(["inspect", "--json", str(folder / "worker-0.json")]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["silent"] == [1]
    assert [row["place"] for row in told["rows"]] == [0, 1, 2]


def test_a_trace_of_one_worker_can_be_read_back(folder, tmp_path):
    (record,) = read(folder / "worker-0.json")
    path = tmp_path / "trace.json"
    path.write_text(trace_text(merged([record])))

    assert read(path) == [record]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "cannot be read"),
        (["."], "There are no records"),
        (["text.json"], "is no JSON"),
        (["127.0.0.1:1"], "inspected with its secret"),
        ([], "No job of yours runs"),
    ],
    ids=["nothing", "empty", "text", "no secret", "no job"],
)
def test_what_cannot_be_inspected_is_explained(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("REPLICAX_SECRET", raising=False)
    (tmp_path / "text.json").write_text("no JSON")

    assert main(["inspect", *words]) != 0
    assert message in capsys.readouterr().err


def test_a_job_file_of_a_job_that_was_killed_leads_to_its_records(folder, tmp_path, capsys):
    secret = tmp_path / "secret"
    secret.write_text("a secret of the job")
    told = {"format": "replicax job", "control": "127.0.0.1:9", "secret_file": str(secret)}
    (folder / "job.json").write_text(json.dumps(told))

    assert main(["inspect", str(folder), "--timeout", "0.2"]) == 1
    assert "They part at entry 0" in capsys.readouterr().out
