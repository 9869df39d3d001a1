"""Resolvers: environments as launchers make them, and environments that contradict themselves."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax import errors
from replicax.cluster import (
    CloudTPUResolver,
    ClusterResolver,
    ClusterSpec,
    KubernetesResolver,
    OpenMPIResolver,
    SimpleResolver,
    SlurmResolver,
    TFConfigResolver,
    TorchrunResolver,
    UnionResolver,
    detect_cluster,
)
from replicax.cluster._resolvers._slurm import tasks_per_node

WORKERS = ["a:1", "b:1"]


def tf_config(cluster=None, **task):
    return {"TF_CONFIG": json.dumps({"cluster": cluster or {"worker": WORKERS}, "task": task})}


def torchrun(rank=1, size=2, addr="node0", port=29500, **more):
    made = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": addr, "MASTER_PORT": port, **more}
    return {name: str(value) for name, value in made.items()}


def slurm(rank, nodes, tasks, size, node=None, job=7):
    made = {
        "SLURM_JOB_ID": str(job),
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
    }
    return made | ({} if node is None else {"SLURM_NODEID": str(node)})


def kubernetes(index=1, size=2, host="train-1", **more):
    numbers = {"JOB_COMPLETION_INDEX": str(index), "REPLICAX_NUM_WORKERS": str(size)}
    return numbers | {"HOSTNAME": host, **more}


def openmpi(rank=1, size=2, **more):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), **more}


def tpu(worker=1, hosts="t0,t1", **more):
    return {"TPU_WORKER_ID": str(worker), "TPU_WORKER_HOSTNAMES": hosts, **more}


ENVIRONMENTS = {
    TFConfigResolver: tf_config(type="worker", index=1),
    TorchrunResolver: torchrun(),
    SlurmResolver: slurm(1, "gpu[1-2]", "1(x2)", 2),
    KubernetesResolver: kubernetes(REPLICAX_SUBDOMAIN="svc"),
    OpenMPIResolver: openmpi(MASTER_ADDR="node0"),
    CloudTPUResolver: tpu(),
}
KINDS = pytest.mark.parametrize("kind", list(ENVIRONMENTS), ids=lambda kind: kind.__name__)


@KINDS
def test_each_finds_its_own_variables_and_no_others(kind):
    assert [each.__name__ for each in ENVIRONMENTS if each.detect(ENVIRONMENTS[kind])] == [
        kind.__name__
    ]
    assert not kind.detect({})


@KINDS
def test_the_automatic_choice_is_worker_1_of_2(kind, capfd):
    resolver = detect_cluster(ENVIRONMENTS[kind])

    assert type(resolver) is kind
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert (resolver.rank, resolver.world_size, resolver.worker_count) == (1, 2, 2)
    assert not resolver.is_chief
    assert resolver.cluster_spec().num_tasks("worker") == 2
    assert resolver.cluster_spec().task_address("worker", 0) == resolver.coordinator()
    assert kind.__name__ in repr(resolver)
    assert capfd.readouterr().err == ""


def test_rank_0_says_what_was_found(capfd):
    assert detect_cluster(torchrun(rank=0)).is_chief
    assert capfd.readouterr().err == "replicax: TorchrunResolver found 2 worker(s).\n"


def test_a_missing_variable_is_named():
    for kind in ENVIRONMENTS:
        with pytest.raises(errors.FailedPreconditionError, match=r"not set"):
            _ = kind(environment={}).rank


def test_no_variables_are_no_cluster():
    assert detect_cluster({}) is None


def test_the_environment_is_read_anew_at_each_call():
    environment = torchrun()
    resolver = TorchrunResolver(environment)
    environment["RANK"] = "0"

    assert resolver.rank == 0


def test_the_resolvers_of_this_process_read_its_variables(monkeypatch):
    for name, value in torchrun(rank=1).items():
        monkeypatch.setenv(name, value)

    assert TorchrunResolver.detect()
    assert TorchrunResolver().rank == 1
    assert isinstance(detect_cluster(), TorchrunResolver)


# --- pains of starting up ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment",
    [
        torchrun(addr="127.0.0.1", LOCAL_WORLD_SIZE=1),
        torchrun(addr="localhost", LOCAL_WORLD_SIZE=1),
        tf_config({"worker": ["127.0.0.1:1", "node1:1"]}, type="worker", index=1),
        openmpi(MASTER_ADDR="::1", OMPI_COMM_WORLD_LOCAL_SIZE="1"),
        kubernetes(1, 2, "t-1", REPLICAX_SUBDOMAIN="localhost"),
    ],
    ids=["torchrun", "by name", "TF_CONFIG", "Open MPI", "Kubernetes"],
)
def test_g4_a_loopback_coordinator_with_remote_peers_is_an_error(environment):
    with pytest.raises(errors.InvalidArgumentError, match="each host takes for itself"):
        detect_cluster(environment)


@pytest.mark.parametrize(
    "environment",
    [
        torchrun(addr="127.0.0.1", LOCAL_WORLD_SIZE=2),
        tf_config({"worker": ["127.0.0.1:1", "localhost:2"]}, type="worker", index=1),
        openmpi(OMPI_COMM_WORLD_LOCAL_SIZE="2"),
        torchrun(rank=0, size=1, addr="127.0.0.1", http_proxy="http://proxy:3128"),
    ],
    ids=["torchrun", "TF_CONFIG", "Open MPI", "one worker"],
)
def test_workers_of_one_host_may_meet_on_the_loopback(environment):
    assert detect_cluster(environment).coordinator()


def test_a_proxy_in_the_environment_is_an_error():
    with pytest.raises(errors.FailedPreconditionError, match="no_proxy=node0"):
        detect_cluster(torchrun(http_proxy="http://proxy:3128"))


@pytest.mark.parametrize(
    "environment",
    [
        torchrun(rank=2, size=2),
        torchrun(rank=0, size=2, LOCAL_WORLD_SIZE=4),
        slurm(2, "gpu1", "2", 2),
        slurm(0, "gpu[1-2]", "2", 2),
        slurm(0, "gpu1", "2", 3),
        openmpi(rank=5, size=4),
        openmpi(rank=0, size=1, OMPI_COMM_WORLD_LOCAL_SIZE="4"),
        kubernetes(index=2, size=2, host="train-2"),
        tpu(worker=2),
        tpu(MEGASCALE_NUM_SLICES="2", MEGASCALE_SLICE_ID="2"),
        torchrun() | tf_config({"worker": [*WORKERS, "c:1"]}, type="worker", index=1),
    ],
    ids=lambda environment: "-".join(name.lower() for name in environment if name.isupper())[:40],
)
def test_stale_sizes_are_an_error(environment):
    with pytest.raises(errors.InvalidArgumentError, match="left from another job"):
        detect_cluster(environment)


@pytest.mark.parametrize("value", ["", "-1", "1.0", "one", "²", "0"], ids=repr)
def test_a_size_is_a_whole_number(value):
    with pytest.raises((errors.InvalidArgumentError, errors.FailedPreconditionError)):
        _ = TorchrunResolver(torchrun(rank=0) | {"WORLD_SIZE": value}).world_size


def test_duplicate_indices_in_tf_config_are_an_error():
    text = '{"cluster": {"worker": {"0": "a:1", "0": "b:1"}}, "task": {}}'

    with pytest.raises(errors.InvalidArgumentError, match="'0' twice"):
        TFConfigResolver(environment={"TF_CONFIG": text}).cluster_spec()


# --- TF_CONFIG -----------------------------------------------------------------------------------


def test_tf_config_knows_chief_and_evaluator():
    cluster = {"chief": ["c:1"], "worker": WORKERS, "ps": ["p:1"]}
    chief = TFConfigResolver(environment=tf_config(cluster, type="chief", index=0))
    worker = TFConfigResolver(environment=tf_config(cluster, type="worker", index="1"))
    evaluator = TFConfigResolver(environment=tf_config(cluster, type="evaluator", index=0))

    assert (chief.is_chief, chief.rank, chief.world_size) == (True, 0, 3)
    assert (worker.is_chief, worker.rank, worker.coordinator()) == (False, 2, "c:1")
    assert (evaluator.is_chief, evaluator.world_size) == (True, 1)
    assert worker.master() == "b:1"
    assert worker.master("ps", 0) == "p:1"


def test_the_program_may_say_which_task_it_is():
    resolver = TFConfigResolver("worker", 0, environment=tf_config())

    assert resolver.rank == 0


def test_a_cluster_without_a_task_is_incomplete():
    resolver = TFConfigResolver(environment=tf_config())

    assert "incomplete" in repr(resolver)
    with pytest.raises(errors.FailedPreconditionError, match="which task"):
        _ = resolver.rank


@pytest.mark.parametrize(
    "text", ["{", "[]", "3", '{"cluster": []}', '{"task": 3, "cluster": {"worker": ["a:1"]}}']
)
def test_another_form_of_tf_config_is_refused(text):
    with pytest.raises(errors.InvalidArgumentError, match="TF_CONFIG"):
        TFConfigResolver(environment={"TF_CONFIG": text}).cluster_spec()


@pytest.mark.parametrize(
    ("job", "index"),
    [("worker", 2), ("queue", 0), ("worker", True)],
    ids=["no such index", "no such job", "no index"],
)
def test_a_task_that_the_cluster_does_not_have_is_refused(job, index):
    with pytest.raises(errors.InvalidArgumentError):
        TFConfigResolver(environment=tf_config(type=job, index=index)).cluster_spec()


def test_an_empty_cluster_is_no_cluster():
    assert not TFConfigResolver.detect({"TF_CONFIG": "{}"})
    assert not TFConfigResolver.detect({"TF_CONFIG": " "})


# --- torchrun ------------------------------------------------------------------------------------


def test_workers_of_replicax_run_meet_at_its_coordinator():
    environment = torchrun(LOCAL_RANK=1, LOCAL_WORLD_SIZE=2) | tf_config(type="worker", index=1)
    environment |= {"REPLICAX_CONTROL": "h:1", "REPLICAX_COORDINATOR": "h:2"}
    resolver = detect_cluster(environment)

    assert isinstance(resolver, TorchrunResolver)
    assert (resolver.local_rank, resolver.local_world_size) == (1, 2)
    assert resolver.coordinator() == "h:2"
    assert resolver.cluster_spec() == ClusterSpec({"worker": WORKERS})


def test_an_ipv6_master_gets_brackets():
    assert TorchrunResolver(torchrun(addr="[fd00::1]", port=80)).coordinator() == "[fd00::1]:80"
    assert TorchrunResolver(torchrun(addr="fd00::1", port=80)).coordinator() == "[fd00::1]:80"


# --- Slurm ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_slurm_places_tasks_in_blocks_or_in_turns(counts, data):
    nodes = f"n[0-{len(counts) - 1}]"
    block = [node for node, count in enumerate(counts) for _ in range(count)]
    in_turns = sorted((place, node) for node, count in enumerate(counts) for place in range(count))
    cyclic = [node for _, node in in_turns]
    placed = data.draw(st.sampled_from([block, cyclic]))
    rank = data.draw(st.integers(0, len(placed) - 1))
    text = ",".join(map(str, counts))
    resolver = SlurmResolver(environment=slurm(rank, nodes, text, len(placed), placed[rank]))
    hosts = [address.rpartition(":")[0] for address in resolver.cluster_spec().job_tasks("worker")]

    assert hosts[rank] == f"n{placed[rank]}"
    assert hosts[0] == "n0"
    assert sorted(hosts) == sorted(f"n{node}" for node in placed)
    assert resolver.local_world_size == counts[placed[rank]]


def test_slurm_tasks_of_one_job_agree_where_to_meet_and_jobs_do_not():
    def meeting(rank, job):
        return SlurmResolver(environment=slurm(rank, "n[0-1]", "2(x2)", 4, job=job)).coordinator()

    assert len({meeting(rank, 7) for rank in range(4)}) == 1
    assert len({meeting(0, job) for job in range(100, 200)}) == 100
    assert SlurmResolver(80, environment=slurm(0, "n0", "1", 1)).coordinator() == "n0:80"


def test_another_distribution_of_slurm_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="--distribution=block"):
        SlurmResolver(environment=slurm(0, "n[0-1]", "2(x2)", 4, node=1)).coordinator()


@pytest.mark.parametrize("text", ["", "x", "2(3)", "0", "2(x0)", "2(x99999999)", "1,,1"], ids=repr)
def test_what_is_no_number_of_tasks_is_refused(text):
    with pytest.raises(errors.InvalidArgumentError, match="TASKS_PER_NODE"):
        tasks_per_node(text)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, "not started by srun"),
        ({"JOB_COMPLETION_INDEX": "0"}, "does not set REPLICAX_NUM_WORKERS"),
        ({"WORLD_SIZE": "4"}, "RANK is not set"),
    ],
    ids=["Slurm", "Kubernetes", "torchrun"],
)
def test_a_process_that_should_be_one_of_many_says_that_it_is_alone(environment, says, capfd):
    assert detect_cluster(environment) is None
    assert says in capfd.readouterr().err


def test_a_rank_of_many_without_a_place_to_meet_is_an_error():
    with pytest.raises(errors.FailedPreconditionError, match="MASTER_ADDR"):
        detect_cluster({"RANK": "0", "WORLD_SIZE": "4"})


# --- Kubernetes, Open MPI, TPU --------------------------------------------------------------------


def test_pods_of_a_job_set_find_each_other():
    environment = kubernetes(1, 3, "train-workers-0-1")
    resolver = KubernetesResolver(full_name="train-workers-0-1.train.ns", environment=environment)

    assert resolver.coordinator() == "train-workers-0-0.train.ns:8476"
    assert (resolver.local_rank, resolver.local_world_size) == (0, 1)


@pytest.mark.parametrize("host", ["", "train", "train-2", "train-x"])
def test_a_pod_whose_name_is_not_its_index_is_refused(host):
    environment = kubernetes(1, 3, host, REPLICAX_SUBDOMAIN="svc")

    with pytest.raises(errors.InvalidArgumentError, match="ends in its index"):
        KubernetesResolver(environment=environment).coordinator()


def test_pods_without_a_headless_service_are_refused():
    with pytest.raises(errors.FailedPreconditionError, match="headless service"):
        KubernetesResolver(environment=kubernetes()).coordinator()


@pytest.mark.parametrize(
    ("uri", "host"),
    [
        ("1531576320.0;tcp://10.96.0.1,10.148.0.1:34911", "10.96.0.1"),
        ("1314521088.0;tcp6://[fd00::1,fd00::2]:43370", "[fd00::1]"),
    ],
    ids=["IPv4", "IPv6"],
)
def test_open_mpi_4_names_the_host_of_mpirun(uri, host):
    environment = openmpi(OMPI_MCA_orte_hnp_uri=uri, PMIX_NAMESPACE="job1")

    assert OpenMPIResolver(environment=environment).coordinator().rpartition(":")[0] == host


def test_open_mpi_5_needs_the_host():
    with pytest.raises(errors.FailedPreconditionError, match="-x MASTER_ADDR"):
        OpenMPIResolver(environment=openmpi()).coordinator()


def test_the_hosts_of_several_slices_are_numbered_slice_by_slice():
    slices = {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_COORDINATOR_ADDRESS": "s0:8080"}
    environment = tpu(MEGASCALE_SLICE_ID="1", **slices)
    resolver = CloudTPUResolver(environment=environment)

    assert (resolver.rank, resolver.world_size) == (3, 4)
    assert resolver.cluster_spec().job_tasks("worker") == ["s0:8476", "", "t0:8476", "t1:8476"]


def test_tpu_process_addresses_have_ports():
    environment = {"TPU_WORKER_ID": "0", "TPU_PROCESS_ADDRESSES": "t0:8471,t1:8471"}

    assert CloudTPUResolver(environment=environment).coordinator() == "t0:8476"


# --- simple and union ----------------------------------------------------------------------------


def test_a_simple_cluster_may_meet_elsewhere():
    resolver = SimpleResolver({"worker": WORKERS}, "worker", 1, coordinator="m:9")

    assert (resolver.coordinator(), resolver.master()) == ("m:9", "b:1")
    assert not SimpleResolver.detect()


@pytest.mark.parametrize("task", [("worker", 2), ("ps", 0)], ids=["no index", "no job"])
def test_a_simple_cluster_must_have_the_task(task):
    with pytest.raises(errors.InvalidArgumentError, match="no task"):
        SimpleResolver({"worker": WORKERS}, *task)


@pytest.mark.parametrize("task", [("worker", None), (None, 0), ("worker", "0"), ("worker", True)])
def test_a_task_is_a_name_and_a_number(task):
    with pytest.raises(errors.ArgumentTypeError, match="give both"):
        SimpleResolver({"worker": WORKERS}, *task)


def test_an_unknown_coordinator_is_an_error():
    resolver = SimpleResolver({"worker": ["", "b:1"]}, "worker", 1, environment={})

    with pytest.raises(errors.FailedPreconditionError, match="coordinator="):
        resolver.coordinator()


def test_a_union_joins_lists_and_takes_the_first_task():
    union = UnionResolver(
        SimpleResolver({"worker": ["a:1"]}),
        SimpleResolver({"worker": ["b:1"], "ps": ["p:1"]}, "worker", 0),
    )

    assert union.cluster_spec() == ClusterSpec({"worker": WORKERS, "ps": ["p:1"]})
    assert (union.rank, union.world_size, union.local_rank) == (0, 2, None)
    assert UnionResolver(union, task_type="worker", task_id=1).rank == 1
    assert not UnionResolver.detect()


def test_a_union_with_one_index_twice_is_refused():
    one, other = ({"worker": {3: address}} for address in WORKERS)

    with pytest.raises(errors.InvalidArgumentError, match="task 3"):
        UnionResolver(SimpleResolver(one), SimpleResolver(other)).cluster_spec()


def test_a_union_is_made_of_resolvers():
    with pytest.raises(errors.InvalidArgumentError, match="no resolver"):
        UnionResolver()
    with pytest.raises(errors.ArgumentTypeError, match="place 1"):
        UnionResolver(SimpleResolver({"worker": WORKERS}), {"worker": WORKERS})


def test_a_resolver_of_ones_own_needs_four_answers():
    class Own(ClusterResolver):
        task_type, task_id = "worker", 1

        @classmethod
        def detect(cls, environment=None):
            return environment is not None

        def cluster_spec(self):
            return ClusterSpec({"worker": WORKERS})

    own = Own({})
    own.check()

    assert (own.rank, own.world_size, own.local_rank, own.local_world_size) == (1, 2, None, None)


def test_launchers_that_have_met_on_the_loopback_are_on_one_host():
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "80"}

    with pytest.raises(errors.InvalidArgumentError, match="each host takes for itself"):
        TorchrunResolver(variables).check()
    TorchrunResolver(variables | {"REPLICAX_CONTROL": "127.0.0.1:81"}).check()
