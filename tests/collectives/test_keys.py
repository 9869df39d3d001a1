from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from replicax.collectives import CollectiveKeys
from replicax.errors import ArgumentTypeError, InvalidArgumentError


def test_group_key_is_a_memo_on_the_ordered_devices():
    keys = CollectiveKeys()
    assert keys.group_key(["a", "b"]) == 1
    assert keys.group_key(["b", "a"]) == 2
    assert keys.group_key(("a", "b")) == 1


def test_instance_keys_count_from_100_for_each_group_and_device():
    keys = CollectiveKeys()
    one, two = keys.group_key(["a", "b"]), keys.group_key(["a"])
    assert [keys.instance_key(one) for _ in range(3)] == [100, 101, 102]
    assert keys.instance_key(two) == 100
    assert keys.instance_key(one, "a") == 100
    assert keys.instance_key(one, "b") == 100
    assert keys.instance_key(one, "a") == 101


def test_unknown_group_and_device_are_named():
    keys = CollectiveKeys()
    with pytest.raises(InvalidArgumentError, match=r"`group_key=1` is not known"):
        keys.instance_key(1)
    group = keys.group_key(["a", "b"])
    with pytest.raises(InvalidArgumentError, match=r"`device='c'` is not in the group 1") as caught:
        keys.instance_key(group, "c")
    assert "['a', 'b']" in str(caught.value)


@pytest.mark.parametrize(
    ("devices", "error"),
    [
        ([], InvalidArgumentError),
        (["a", "a"], InvalidArgumentError),
        ("ab", ArgumentTypeError),
        ([0], ArgumentTypeError),
        (None, ArgumentTypeError),
    ],
)
def test_what_is_no_group_is_refused(devices, error):
    with pytest.raises(error, match="`devices"):
        CollectiveKeys().group_key(devices)


def test_threads_never_get_the_same_instance_key():
    keys = CollectiveKeys()

    def ask(_):
        group = keys.group_key(["a", "b"])
        return [keys.instance_key(group) for _ in range(200)]

    with ThreadPoolExecutor(4) as pool:
        found = [key for part in pool.map(ask, range(4)) for key in part]
    assert sorted(found) == list(range(100, 900))
