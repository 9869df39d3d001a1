"""Checkpoints, and the last call of a job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from checks import Job, check, mine, numbers, raised

import replicax as rx
from replicax.cluster import LastCall, gather
from replicax.cluster._last_call import _StoreLink

# --- checkpoints -----------------------------------------------------------------------------


@check
def a_checkpoint_of_all_workers(job: Job) -> Any:
    w = job.variable([1.0, 2.0], name="w")
    total = job.variable(0.0, synchronization="on_read", aggregation="sum", name="total")
    total.assign(rx.PerReplica(mine(job, [1.0, 2.0, 3.0, 4.0])))
    free = job.variable(0, synchronization="on_read", name="free")
    free.assign(rx.PerReplica(mine(job, [5, 6, 7, 8])))
    state = job.step(lambda x: rx.get_replica_context().all_reduce("sum", x))(job.ids)
    objects = {"w": w, "total": total, "free": free, "state": {"sum": state, "epoch": 3}}
    checkpoint = rx.checkpoint.Checkpoint(**objects)
    checkpoint.save(job.folder / "all")
    checkpoint.save(job.folder / "all")
    w.assign([0.0, 0.0])
    total.assign(0.0)
    free.assign(0)
    checkpoint.restore(job.folder / "all").assert_consumed()
    assert [int(x) for x in free.values] == mine(job, [5, 6, 7, 8])
    assert numbers(checkpoint.state["sum"]) == [6, 6]
    late = rx.checkpoint.Checkpoint(model=[])
    waits = rx.checkpoint.Checkpoint(w=w)
    waits.save(job.folder / "late")
    del late
    return [numbers(w), float(total)]


@check
def a_checkpoint_that_fails_fails_on_all(job: Job) -> Any:
    checkpoint = rx.checkpoint.Checkpoint(n=1)
    missing = raised(rx.errors.NotFoundError, lambda: checkpoint.restore(job.folder / "nothing"))
    taken = raised(rx.errors.AlreadyExistsError, lambda: checkpoint.save(Path(__file__)))
    other = rx.checkpoint.Checkpoint(**{f"n{job.rank}": 1})
    raised(rx.errors.CollectiveMismatchError, lambda: other.save(job.folder / "other"))
    return [missing.splitlines()[0], "exists and is no checkpoint" in taken]


@check
def i2_a_checkpoint_that_one_worker_saves_is_an_error_on_all(job: Job) -> Any:
    checkpoint = rx.checkpoint.Checkpoint(n=1)
    save = lambda: checkpoint.save(job.folder / "lone")  # noqa: E731
    reduce = lambda: job.strategy.reduce("sum", job.ids, axis=None)  # noqa: E731
    text = raised(rx.errors.CollectiveMismatchError, reduce if job.rank else save)
    assert "Checkpoint.save" in text
    assert "strategy.reduce" in text
    save()
    return rx.checkpoint.commits(job.folder / "lone")


@check
def all_workers_stop_before_the_same_call(job: Job) -> Any:
    """Over the control channel, and over what workers use that something else has started."""
    found = []
    for link in (None, _StoreLink("stops/store")):
        calls = LastCall("stops", link)
        for _ in range(2 + 3 * job.rank):
            assert not calls.stops_here()
        gather("both have begun", None)
        if job.rank == 0:
            calls.ask()
        while not calls.stops_here():
            time.sleep(0.001)
        assert calls.is_asked
        calls.close()
        found.append(calls.count)
    assert min(found) >= 5
    return found


@check
def nobody_stops_once_a_worker_has_made_its_last_call(job: Job) -> Any:
    for link in (None, _StoreLink("late/store")):
        calls = LastCall("late", link)
        if job.rank == 1:
            calls.close()
        gather("worker 1 is done", None)
        if job.rank == 0:
            calls.ask()
            while not calls._is_known.is_set():
                assert not calls.stops_here()
                time.sleep(0.001)
            assert not calls.stops_here()
            calls.close()
    return True
