"""`launch`: workers, their environment, their output, their failures."""

from __future__ import annotations

import io
import json
import os
import pathlib
import re
import stat
import sys
import time

import pytest

import replicax as rx
from replicax import errors
from replicax.cluster import TorchrunResolver, launch
from replicax.cluster._launcher._environment import shares

IMPATIENT = rx.Timeouts(start=20, shutdown=0.5)


def test_workers_find_their_place_and_no_secret(options, tmp_path, capfd, monkeypatch):
    for name in ("REPLICAX_SECRET", "REPLICAX_RUN_NNODES", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "41")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    secret = b"0123456789abcdef0123456789abcdef"
    source = """
        path = os.environ["REPLICAX_SECRET_FILE"]
        seen = {"environment": dict(os.environ), "secret": open(path).read(), "path": path}
        seen["mode"] = [os.stat(path).st_mode, os.stat(os.path.dirname(path)).st_mode]
        seen["words"] = [open(f"/proc/{pid}/cmdline").read() for pid in ("self", os.getppid())]
        with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
            json.dump(seen, file)
        print("started", rank)
    """

    code = launch(options(source, tmp_path, workers=2, secret=secret))

    out, err = capfd.readouterr()
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == ["[0] started 0", "[1] started 1"]
    for rank, each in enumerate(seen):
        environment = each["environment"]
        resolver = TorchrunResolver(environment)
        resolver.check()
        assert (resolver.rank, resolver.local_rank) == (rank, rank)
        assert (resolver.world_size, resolver.local_world_size) == (2, 2)
        assert resolver.coordinator() == environment["REPLICAX_COORDINATOR"]
        config = json.loads(environment["TF_CONFIG"])
        assert config["task"] == {"type": "worker", "index": rank}
        assert len(set(config["cluster"]["worker"])) == 2
        assert rx.Timeouts.from_json(json.loads(environment["REPLICAX_TIMEOUTS"])).start == 20
        assert environment["REPLICAX_RESTART"] == "0"
        assert environment["OMP_NUM_THREADS"] == "41"
        assert environment["NPROC"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
        assert each["secret"] == secret.decode()
        assert [stat.S_IMODE(mode) for mode in each["mode"]] == [0o600, 0o700]
        assert secret.decode() not in json.dumps([environment, each["words"], out])
        assert not {"REPLICAX_SECRET", "REPLICAX_RUN_NNODES"} & set(environment)
    assert not pathlib.Path(seen[0]["path"]).exists()


def test_the_first_failure_ends_the_job_and_is_told_in_a_box(options, capfd):
    source = """
        if rank == 1:
            print("half a line", end="")
            raise ValueError("boom")
        time.sleep(50)
    """
    started = time.monotonic()

    code = launch(options(source, workers=3))

    out, err = capfd.readouterr()
    box = err[err.index("╭") :]
    assert code == 1
    assert time.monotonic() - started < 10
    assert out == "[1] half a line\n"
    assert "first failure: worker 1 of 3" in box
    assert "exit: Its process ended with exit code 1." in box
    assert "workers 0, 2: SIGTERM" in box
    assert re.search(r"when +\d{4}-\d\d-\d\d .* after the start", box)
    assert box.index("Traceback") < box.index("ValueError: boom")


def test_h2_a_worker_may_be_done_before_the_others(options, capfd):
    source = "time.sleep(0 if rank else 1)"

    assert launch(options(source, workers=2, timeouts=IMPATIENT)) == 0
    assert capfd.readouterr() == ("", "")


def test_the_exit_code_is_the_first_failures(options, capfd):
    source = "time.sleep(0 if rank else 50); sys.exit(7)"

    assert launch(options(source, workers=2)) == 7
    assert "worker 0: SIGTERM" in capfd.readouterr().err


def test_a_signal_is_128_and_its_number(options, capfd):
    source = "os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(50)"

    assert launch(options(source, workers=2)) == 137
    assert "signal: It was killed by SIGKILL" in capfd.readouterr().err


def test_who_does_not_leave_is_killed(options, capfd):
    source = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        meet()
        time.sleep(0 if rank else 50)
        sys.exit(3)
    """

    assert launch(options(source, workers=2, timeouts=IMPATIENT)) == 3
    assert "worker 0: killed by the launcher" in capfd.readouterr().err


def test_a_stopped_worker_does_not_keep_the_others(options, capfd):
    source = """
        stopped = meet()[0]
        if rank == 0:
            os.kill(stopped, signal.SIGSTOP)
        while open(f"/proc/{stopped}/stat").read().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        sys.exit(3)
    """

    assert launch(options(source, workers=2, timeouts=IMPATIENT)) == 3
    assert "worker 0: killed by the launcher" in capfd.readouterr().err


def test_what_a_worker_leaves_behind_is_ended(options, capfd):
    source = """
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(50)"])
        print(child.pid)
    """

    assert launch(options(source)) == 0
    (pid,) = re.findall(r"\[0\] (\d+)", capfd.readouterr().out)
    process = pathlib.Path(f"/proc/{pid}")
    deadline = time.monotonic() + 5
    while process.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not process.exists()


def test_h7_three_failures_with_two_restarts_end_after_the_third(options, capfd):
    source = """
        print("start", os.environ["REPLICAX_RESTART"])
        os.kill(os.getpid(), signal.SIGKILL)
    """

    assert launch(options(source, max_restarts=2)) == 137
    out, err = capfd.readouterr()
    assert out.splitlines() == ["[0] start 0", "[0] start 1", "[0] start 2"]
    assert err.count("first failure: worker 0 of 1") == 3
    assert "start  3 of 3" in err
    assert "starting again, 2 of 2" in err


def test_a_restart_may_succeed(options, tmp_path):
    source = "sys.exit(0 if os.environ['REPLICAX_RESTART'] == '1' else 9)"

    assert launch(options(source, workers=2, max_restarts=5)) == 0


def test_lines_of_workers_are_never_mixed(options, capfd):
    source = """
        for number in range(300):
            for part in (f"{rank}", f"-{number}-", "x" * 50, "\\n"):
                os.write(1 + number % 2, part.encode())
    """

    assert launch(options(source, workers=3)) == 0
    out, err = capfd.readouterr()
    for text, odd in ((out, 0), (err, 1)):
        expected = {
            f"[{rank}] {rank}-{number}-{'x' * 50}"
            for rank in range(3)
            for number in range(odd, 300, 2)
        }
        assert set(text.splitlines()) == expected
        for rank in range(3):
            mine = [line for line in text.splitlines() if line.startswith(f"[{rank}]")]
            numbers = [int(line.split("-")[1]) for line in mine]
            assert numbers == sorted(numbers)


def test_output_goes_to_files_as_it_is(options, tmp_path, capfd):
    source = "os.write(1, b'\\xff out 1%\\r2%\\n'); os.write(2, b'no end')"
    streams = {"console": {0: 3, 1: 2}, "files": {0: 3, 1: 1}}

    assert launch(options(source, workers=2, log_dir=str(tmp_path / "logs"), **streams)) == 0
    (run,) = (tmp_path / "logs").iterdir()
    files = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*.log")}
    assert files == {
        "start_0/rank_0/stdout.log": b"\xff out 1%\r2%\n",
        "start_0/rank_0/stderr.log": b"no end",
        "start_0/rank_1/stdout.log": b"\xff out 1%\r2%\n",
    }
    out, err = capfd.readouterr()
    assert out == "[0] 2%\n"
    assert sorted(err.splitlines()) == ["[0] no end", "[1] no end"]


def test_a_program_that_is_not_there_is_an_error(options):
    made = options("")
    made = type(made)(command=["no-such-program"], workers=2)

    with pytest.raises(errors.NotFoundError, match="no-such-program"):
        launch(made)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"nnodes": 2, "node_rank": 2}, "node rank is 2"),
        ({"nnodes": 2}, "needs a secret"),
        ({"nnodes": 2, "min_nodes": 3}, "least number of nodes is 3"),
        ({"min_nodes": 0}, "least number of nodes is 0"),
        ({"last_call": -1}, "last_call is -1"),
        ({"on_preemption": "ignore"}, "on_preemption is 'ignore'"),
        ({"nnodes": 2, "secret": b"x" * 16}, "needs a port"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_cannot_work_are_refused(options, fields, says):
    with pytest.raises(errors.InvalidArgumentError, match=says):
        options("", **fields)


def test_a_folder_that_cannot_be_made_is_an_error(options, tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(errors.InvalidArgumentError, match="--log-dir"):
        launch(options("", log_dir=str(tmp_path / "file")))


def test_gpus_are_shared_equally_or_not_at_all():
    mine = {"CUDA_VISIBLE_DEVICES": "0,2,4,GPU-8", "NPROC": "7"}

    assert [shares(mine, rank, 2)["CUDA_VISIBLE_DEVICES"] for rank in range(2)] == [
        "0,2",
        "4,GPU-8",
    ]
    assert "NPROC" not in shares(mine, 0, 2)
    assert shares(mine, 0, 1) == {}
    assert "CUDA_VISIBLE_DEVICES" not in shares({**mine, "JAX_PLATFORMS": "cpu"}, 0, 3)
    with pytest.raises(errors.InvalidArgumentError, match="4 GPUs cannot be shared equally by 3"):
        shares(mine, 0, 3)


def test_a_console_without_bytes_shows_text(options, monkeypatch):
    monkeypatch.setattr("sys.stdout", io.StringIO())  # as in a notebook

    assert launch(options("print('fine')")) == 0
    assert sys.stdout.getvalue() == "[0] fine\n"


def test_the_secret_is_in_no_representation(options):
    assert "hunter2" not in repr(options("", secret=b"hunter2hunter2"))
