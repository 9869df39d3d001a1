"""Slurm's host lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax import errors
from replicax.cluster import expand_hostlist


@st.composite
def numbers(draw):
    """One part of a bracket: its text, and what it means."""
    first = draw(st.integers(0, 200))
    text = str(first).zfill(draw(st.integers(0, 4)))
    last = draw(st.none() | st.integers(first, first + 20))
    if last is None:
        return text, [text]
    return f"{text}-{last}", [str(value).zfill(len(text)) for value in range(first, last + 1)]


@st.composite
def items(draw):
    """One host item: its text, and the hosts that it means, computed another way."""
    text, hosts = "", [""]
    for _ in range(draw(st.integers(1, 2))):
        plain = draw(st.from_regex(r"[a-z][a-z.-]{0,4}", fullmatch=True))
        text, hosts = text + plain, [host + plain for host in hosts]
        if draw(st.booleans()):
            parts = draw(st.lists(numbers(), min_size=1, max_size=2))
            text += "[" + ",".join(part for part, _ in parts) + "]"
            hosts = [host + value for host in hosts for _, values in parts for value in values]
    return text, hosts


@given(st.lists(items(), min_size=1, max_size=3))
def test_every_list_means_its_hosts_in_order(parts):
    text = ",".join(part for part, _ in parts)

    assert expand_hostlist(text) == [host for _, hosts in parts for host in hosts]


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a,,b", "a b", "a[", "a]", "a[1", "a[[1]]", "a[]", "a[1-]", "a[x]"),
        *("a[3-1]", "a[1-99999]"),
    ],
    ids=repr,
)
def test_what_is_no_host_list_is_refused(text):
    with pytest.raises(errors.InvalidArgumentError):
        expand_hostlist(text)


@given(st.text("abc[]-,0159 ", max_size=14))
def test_any_text_is_a_list_or_refused(text):
    try:
        hosts = expand_hostlist(text)
    except errors.InvalidArgumentError:
        return
    assert hosts
    assert not any(set(host) & set("[], ") for host in hosts)
