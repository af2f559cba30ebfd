"""Messages survive any way of cutting their stream; other bytes are refused."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.errors import LocalProtocolError, RemoteProtocolError
from bbgrap.protocol.limits import MAX_TENSOR_BYTES
from bbgrap.transport.framing import (
    GREETING,
    MAX_DATA_HEADER,
    PIECE_BYTES,
    SMALL_BYTES,
    WHOLE_BYTES,
    MessageReader,
    frame_head,
    frame_parts,
)

_PIECE = struct.Struct("<HHI")
SIZES = st.one_of(st.integers(0, 300), st.sampled_from([SMALL_BYTES, SMALL_BYTES + 1]))
MESSAGES = st.lists(st.tuples(st.binary(min_size=1, max_size=40), SIZES, st.booleans()), max_size=6)


@given(MESSAGES, st.lists(st.integers(1, 70_000), min_size=1, max_size=40), st.booleans())
def test_round_trip_however_the_stream_is_cut(messages, cuts, into_room):
    stream, expected, answers = GREETING, [], []
    for number, (header, size, admitted) in enumerate(messages):
        payload = bytes([number]) * size
        stream += frame_head(header, size) + payload
        if size > SMALL_BYTES:
            answers.append(admitted)
        if size <= SMALL_BYTES or admitted:
            expected.append((header, payload))
    reader, came, position, turn = MessageReader(), [], 0, 0
    left = iter(answers)
    while position < len(stream):
        chunk = memoryview(stream)[position : position + cuts[turn % len(cuts)]]
        room = reader.room
        if into_room and room is not None:
            chunk = chunk[: len(room)]
            room[: len(chunk)] = chunk
            message = reader.filled(len(chunk))
            came += [] if message is None else [message]
        else:
            came += reader.feed(chunk, lambda header, size, peer: next(left))
        position += len(chunk)
        turn += 1
    assert [(header, bytes(payload)) for header, payload in came] == expected


@given(
    st.lists(st.integers(1, PIECE_BYTES), min_size=3, max_size=3),
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.integers(20_000, 300_000), min_size=1, max_size=9),
    st.booleans(),
)
def test_messages_go_between_the_parts_of_a_large_one(sizes, between, cuts, admitted):
    """The parts of three messages, none of which stops at the end of a piece of the payload it is made from, and small ones between."""
    pieces = [np.full(size, number, np.uint8).data for number, size in enumerate([*sizes, WHOLE_BYTES])]
    parts = frame_parts(b"large", pieces, sum(map(len, pieces)))
    stream, small = GREETING, 0
    for part, count in zip(parts, [*between, *[0] * len(parts)], strict=False):
        stream += b"".join(part) + b"".join(frame_head(b"%d" % (small + k), 1) + b"x" for k in range(count))
        small += count
    reader, came, position, turn = MessageReader(), [], 0, 0
    while position < len(stream):
        chunk = memoryview(stream)[position : position + cuts[turn % len(cuts)]]
        came += reader.feed(chunk, lambda header, size, peer: admitted)
        position, turn = position + len(chunk), turn + 1
    assert [header for header, _ in came if header != b"large"] == [b"%d" % number for number in range(small)]
    assert [bytes(payload) for header, payload in came if header == b"large"] == [b"".join(pieces)] * admitted
    assert reader.room is None


@pytest.mark.parametrize(
    "stream",
    [
        _PIECE.pack(0xBB6A, 0, 1) + b"x",
        frame_head(b"h", 9, cut=True) + frame_head(b"h", 9, cut=True),
        frame_head(b"h", 9, cut=True) + _PIECE.pack(0xBB6A, 0, 10),
        frame_head(b"h", 9, cut=True) + _PIECE.pack(0xBB6A, 0, 0),
        frame_head(b"h", 9, cut=True) + _PIECE.pack(0xBB6A, 1, 9) + b"h",
        frame_head(b"h", 0, cut=True),
    ],
)
@pytest.mark.parametrize("admitted", [True, False])
def test_pieces_of_nothing_are_refused(stream, admitted):
    with pytest.raises(RemoteProtocolError, match="piece"):
        MessageReader().feed(memoryview(stream), lambda header, size, peer: admitted)


@given(st.binary(max_size=2000), st.integers(1, 100))
def test_arbitrary_bytes_are_messages_or_an_error(stream, step):
    reader = MessageReader()
    try:
        for position in range(0, len(stream), step):
            reader.feed(memoryview(stream[position : position + step]), lambda header, size, peer: False)
            assert len(reader._begun) < 8 + MAX_DATA_HEADER
    except RemoteProtocolError:
        assert not stream.startswith(GREETING[:2]) or len(stream) >= 8


def test_messages_beyond_the_limits_are_not_made():
    with pytest.raises(LocalProtocolError, match="exceed the limit"):
        frame_head(b"h", MAX_TENSOR_BYTES + 1)
    for header in (b"", bytes(MAX_DATA_HEADER + 1)):
        with pytest.raises(LocalProtocolError, match="expected a header"):
            frame_head(header, 1)
    with pytest.raises(LocalProtocolError, match="no payload"):
        MessageReader().filled(1)
