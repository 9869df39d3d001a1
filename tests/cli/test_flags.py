"""The command line of `replicax run`: flags, variables, and what contradicts itself."""

from __future__ import annotations

import pathlib
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import replicax as rx
from replicax import errors
from replicax.cli._flags import FLAGS, parse, usage
from replicax.cli._run import options_of

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "launching.md"
BY_NAME = {flag.name: flag for flag in FLAGS}


def options(*argv, **environment):
    return options_of(parse(argv, environment), environment)


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return "train.py"


@given(
    st.lists(
        st.sampled_from(FLAGS).flatmap(
            lambda flag: st.tuples(
                st.just(flag),
                st.sampled_from(flag.options),
                st.text("ab1:=-", min_size=1) if flag.value else st.just(""),
                st.booleans(),
            )
        )
    ),
    st.lists(st.text("-a=", min_size=1), max_size=3),
)
def test_every_command_line_is_taken_apart_as_it_was_put_together(flags, arguments):
    words, expected = [], {}
    for flag, option, value, is_joined in flags:
        expected[flag.name] = value if flag.value else "1"
        if not flag.value:
            words.append(option)
        elif is_joined and option.startswith("--"):
            words.append(f"{option}={value}")
        else:
            words += [option, value]
    for dashes in ([], ["--"]):
        parsed = parse([*words, *dashes, "train.py", *arguments], {})

        assert dict(parsed.values) == expected
        assert parsed.command == ["train.py", *arguments]


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_each_flag_has_a_variable_and_the_flag_wins(flag):
    given_ = "7" if flag.value else "true"

    assert parse([], {flag.variable: given_}).values == {flag.name: "7" if flag.value else "1"}
    word = f"--{flag.name}={'8' if flag.value else '0'}"
    assert parse([word], {flag.variable: given_}).values == {flag.name: word[-1]}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_each_flag_is_in_the_help_and_in_the_docs(flag):
    table = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]

    assert f"--{flag.name}" in usage()
    assert any(f"`--{flag.name}`" in line or f"`--{flag.name} " in line for line in table)


def test_the_docs_have_no_flag_that_is_not_there():
    text = DOCS.read_text(encoding="utf-8")
    # Those of other programs stand in the recipes.
    others = {"nodes", "ntasks-per-node", "gpus-per-node", "signal", "epochs"}

    assert set(re.findall(r"--([a-z][a-z-]+)", text)) - set(BY_NAME) - others == set()


def test_help_asks_for_nothing_else():
    assert parse(["--tee", "3", "--help", "--no-such-flag"], {}).wants_help


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--no-such-flag"], "There is no flag --no-such-flag"),
        (["-x3"], "There is no flag -x"),
        (["--nnodes"], "lacks its value"),
        (["--standalone=maybe"], "is a switch"),
        (["--rdzv_backend=c10d"], "the rendezvous is built in"),
    ],
    ids=["unknown", "unknown short", "no value", "no switch", "torchrun's"],
)
def test_a_wrong_flag_is_refused(words, says):
    with pytest.raises(errors.InvalidArgumentError, match=says):
        parse(words, {})


# --- what they mean ------------------------------------------------------------------------------


def test_a_python_program_gets_an_interpreter(program):
    assert options(program, "--lr", "1").command == [sys.executable, "-u", program, "--lr", "1"]
    assert options("-m", "pkg.train", "-x").command == [
        sys.executable,
        "-u",
        "-m",
        "pkg.train",
        "-x",
    ]
    assert options("--no-python", "--", "bash", "x.sh").command == ["bash", "x.sh"]


def test_one_host_by_default(program):
    made = options(program)

    assert (made.workers, made.nnodes, made.node_rank, made.max_restarts) == (1, 1, 0, 0)
    assert (made.master_addr, made.master_port, made.secret) == ("127.0.0.1", 0, None)
    assert made.timeouts == rx.Timeouts()


def test_flags_become_options(program, tmp_path):
    (tmp_path / "secret").write_text("0123456789abcdef\n")
    made = options(
        *("--nnodes", "2:2", "--nproc-per-node=4", "--node_rank", "1", "--secret-file", "secret"),
        *("--rdzv-endpoint", "node0", "--max-restarts", "3", "--start-timeout", "7"),
        *("--log-dir", "logs", "-t", "0:1,2:3", "-r1:2", "--local-ranks-filter", "0,1", program),
    )

    assert (made.nnodes, made.workers, made.node_rank, made.max_restarts) == (2, 4, 1, 3)
    assert (made.master_addr, made.master_port) == ("node0", 29400)
    assert made.secret == b"0123456789abcdef"
    assert made.timeouts == rx.Timeouts(start=7)
    assert made.files == {0: 1, 1: 2, 2: 3, 3: 0}
    assert made.console == {0: 3, 1: 1, 2: 0, 3: 0}


def test_slurm_tells_the_hosts_and_kubernetes_the_index(program):
    environment = {"REPLICAX_SECRET": "0123456789", "SLURM_JOB_NODELIST": "n[1-4]"}
    slurm = options("--nnodes=4", program, SLURM_NODEID="2", **environment)
    words = ("--nnodes=4", "--master-addr=t-0.t", program)
    indexed = options(*words, JOB_COMPLETION_INDEX="3", **environment)

    assert (slurm.node_rank, slurm.master_addr) == (2, "n1")
    assert (indexed.node_rank, indexed.master_addr) == (3, "t-0.t")


def test_an_ipv6_host_has_brackets_only_beside_a_port(program):
    given_ = {"REPLICAX_SECRET": "0123456789", "JOB_COMPLETION_INDEX": "0"}
    ends = [["--rdzv-endpoint", "[fd00::1]:7"], ["--master-addr", "fd00::1", "--master-port=7"]]

    for words in [*ends, ["--master-addr=[fd00::1]", "--master-port=7"]]:
        made = options("--nnodes=2", *words, program, **given_)
        assert (made.master_addr, made.master_port) == ("fd00::1", 7)


def test_workers_share_the_cores_or_the_gpus(program, monkeypatch):
    gpus = {"CUDA_VISIBLE_DEVICES": "0,3"}

    assert options("--nproc-per-node=gpu", program, **gpus).workers == 2
    assert options("--nproc-per-node=auto", program, **gpus).workers == 2
    assert options("--nproc-per-node=auto", program, JAX_PLATFORMS="cpu", **gpus).workers >= 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no program to run"),
        (["missing.py"], "no program 'missing.py'"),
        (["--nproc-per-node=0", "train.py"], "--nproc-per-node is '0'"),
        (["--nproc-per-node=many", "train.py"], "--nproc-per-node is 'many'"),
        (["--nnodes=x", "train.py"], "--nnodes is 'x'"),
        (["--nnodes=2", "train.py"], "would meet at no address"),
        (["--nnodes=2", "--master-addr=localhost", "train.py"], "loopback"),
        (["--nnodes=2", "--master-addr=node0", "train.py"], "nothing says which"),
        (["--nnodes=2", "--master-addr=node0", "--node-rank=0", "train.py"], "needs a secret"),
        (["--standalone", "--nnodes=2", "train.py"], "--standalone and --nnodes 2 exclude"),
        (["--standalone", "--master-addr=a", "train.py"], "exclude each other"),
        (["--rdzv-endpoint=a:1", "--master-port=2", "train.py"], "exclude each other"),
        (["-m", "--no-python", "train"], "exclude each other"),
        (["--tee=3", "train.py"], "--log-dir"),
        (["--log-dir=x", "--tee=4", "train.py"], "--tee is '4'"),
        (["--log-dir=x", "--tee=1,2", "train.py"], "--tee is '1,2'"),
        (["--start-timeout=soon", "train.py"], "--start-timeout is 'soon'"),
        (["--beacon-timeout=-1", "train.py"], "beacon=-1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_work_is_refused_before_anything_starts(program, words, says):
    with pytest.raises(errors.InvalidArgumentError, match=says):
        options(*words)


def test_gpus_must_be_there_to_be_counted(program):
    with pytest.raises(errors.InvalidArgumentError, match="no GPU here"):
        options("--nproc-per-node=gpu", program, CUDA_VISIBLE_DEVICES="")


def test_a_range_of_hosts(program, tmp_path):
    (tmp_path / "secret").write_text("0123456789abcdef")
    words = ["--master-addr=host0", "--node-rank=2", "--secret-file=secret", program]
    made = options("--nnodes=1:4", "--last-call-timeout=2.5", *words)

    assert (made.least_nodes, made.nnodes, made.last_call) == (1, 4, 2.5)
    assert options("--nnodes=4:4", *words).min_nodes is None
    assert options(program).least_nodes == 1
    with pytest.raises(errors.InvalidArgumentError, match="the smaller number first"):
        options("--nnodes=4:1", *words)


def test_what_follows_a_preemption(program):
    assert options(program).on_preemption == "exit"
    assert options("--on-preemption=restart", program).on_preemption == "restart"
    with pytest.raises(errors.InvalidArgumentError, match="write exit or restart"):
        options("--on-preemption=ignore", program)


def test_a_missing_secret_file_is_named(program):
    with pytest.raises(errors.NotFoundError, match="cannot be read"):
        options("--secret-file=none", program)
