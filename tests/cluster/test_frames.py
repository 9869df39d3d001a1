"""Messages on the wire: lengths, halves, nonsense."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax.cluster._frames import MAX_BODY, BadFrameError, Decoder, pack, packed
from replicax.errors import InvalidArgumentError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def frame(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


@given(messages=st.lists(json_values, max_size=4), cuts=st.lists(st.integers(1, 9), min_size=1))
def test_messages_come_out_as_they_went_in_however_they_are_cut(messages, cuts):
    stream = b"".join(pack("note", value=value) for value in messages)
    decoder, found, at, turn = Decoder(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += decoder.feed(stream[at : at + size])
        at, turn = at + size, turn + 1

    assert found == [{"kind": "note", "value": value} for value in messages]


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_bad_frame(data):
    decoder = Decoder(limit=100)
    try:
        messages = decoder.feed(data)
    except BadFrameError:
        return
    assert all(isinstance(message["kind"], str) for message in messages)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[1]", id="a list"),
        pytest.param(b"{}", id="no kind"),
        pytest.param(b'{"kind": 3}', id="a number for a kind"),
        pytest.param(b"[" * 100_000, id="too deep"),
        pytest.param(b'{"kind": ' + b"9" * 5000 + b"}", id="a huge number"),
        pytest.param(b"cos\nsystem\n(S'true'\ntR.", id="a pickle"),
    ],
)
def test_a_body_that_is_no_message_is_refused(body):
    with pytest.raises(BadFrameError):
        Decoder().feed(frame(body))


def test_a_length_over_the_limit_is_refused_before_the_body_comes():
    with pytest.raises(BadFrameError, match=str(MAX_BODY + 1)):
        Decoder().feed(struct.pack("!I", MAX_BODY + 1))


def test_what_is_too_long_is_not_sent():
    with pytest.raises(InvalidArgumentError, match=str(MAX_BODY)):
        pack("note", value="x" * MAX_BODY)

    assert packed(b"x" * 10, limit=10)


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), b"bytes"], ids=["set", "nan", "bytes"])
def test_what_is_no_json_is_not_sent(value):
    with pytest.raises(InvalidArgumentError, match="not JSON"):
        pack("note", value=value)


def test_a_frame_is_its_length_and_json():
    sent = pack("note", value=1)

    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    assert json.loads(sent[4:]) == {"kind": "note", "value": 1}
