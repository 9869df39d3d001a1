from __future__ import annotations

import dataclasses
import pickle

import pytest

from replicax.collectives import Entry, Ledger, differences
from replicax.errors import ArgumentTypeError, CallSite, InvalidArgumentError

ENTRY = Entry(1, 100, "all_reduce", "SUM", ("float32",), ((2, 3),), CallSite("a.py", 1, "f"))


def test_entries_are_values():
    assert pickle.loads(pickle.dumps(ENTRY)) == ENTRY  # noqa: S301
    with pytest.raises(InvalidArgumentError, match="`kind='reduce'`"):
        dataclasses.replace(ENTRY, kind="reduce")


def test_differences_names_fields_but_not_the_call_site():
    elsewhere = dataclasses.replace(ENTRY, call_site=CallSite("b.py", 2, "g"))
    assert differences([ENTRY, elsewhere]) == []
    assert differences([]) == []
    other = dataclasses.replace(ENTRY, op="MEAN", dtypes=("int32",))
    assert differences([ENTRY, elsewhere, other]) == ["op", "dtypes"]
    assert differences([ENTRY, dataclasses.replace(ENTRY, instance_key=101)]) == ["instance_key"]


def test_ledger_keeps_the_last_entries():
    ledger = Ledger(capacity=3)
    for key in range(100, 110):
        ledger.record(dataclasses.replace(ENTRY, instance_key=key))
    assert [entry.instance_key for entry in ledger.entries] == [107, 108, 109]
    assert ledger.count == 10


def test_fingerprints_tell_orders_apart_but_not_call_sites():
    mean = dataclasses.replace(ENTRY, op="MEAN")
    moved = dataclasses.replace(ENTRY, call_site=None)

    def fingerprint(*entries):
        ledger = Ledger(capacity=1)
        for entry in entries:
            ledger.record(entry)
        return ledger.fingerprint

    assert fingerprint(ENTRY, mean) == fingerprint(moved, mean)
    assert fingerprint(ENTRY, mean) != fingerprint(mean, ENTRY)
    assert fingerprint(ENTRY) != fingerprint(ENTRY, ENTRY)


def test_bad_arguments_are_refused():
    with pytest.raises(InvalidArgumentError, match="`capacity=0`"):
        Ledger(capacity=0)
    with pytest.raises(ArgumentTypeError, match="`entry="):
        Ledger().record("all_reduce")
