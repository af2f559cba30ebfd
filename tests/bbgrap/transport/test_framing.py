"""Messages survive any way of cutting their stream; other bytes are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.errors import LocalProtocolError, RemoteProtocolError
from bbgrap.protocol.limits import MAX_TENSOR_BYTES
from bbgrap.transport.framing import GREETING, MAX_DATA_HEADER, SMALL_BYTES, MessageReader, frame_head

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
