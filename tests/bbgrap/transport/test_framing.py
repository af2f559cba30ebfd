"""Messages survive any way of cutting their stream; other bytes are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.errors import LocalProtocolError, RemoteProtocolError
from bbgrap.protocol.limits import MAX_TENSOR_BYTES
from bbgrap.transport.framing import GREETING, MAX_DATA_HEADER, SMALL_BYTES, Reader, frame_head, framed, unframed

SIZES = st.one_of(st.integers(0, 300), st.sampled_from([SMALL_BYTES, SMALL_BYTES + 1]))
MESSAGES = st.lists(st.tuples(st.binary(min_size=1, max_size=40), SIZES, st.booleans()), max_size=6)


@given(MESSAGES, st.lists(st.integers(1, 70_000), min_size=1, max_size=40), st.booleans(), st.booleans())
def test_round_trip_however_the_stream_is_cut(messages, cuts, into_room, look_for_whole):
    stream, expected, answers = GREETING, [], []
    for number, (header, size, admitted) in enumerate(messages):
        payload = bytes([number]) * size
        stream += frame_head(header, size) + payload
        if size > SMALL_BYTES:
            answers.append(admitted)
        if size <= SMALL_BYTES or admitted:
            expected.append((header, payload))
    reader, came, position, turn = Reader(), [], 0, 0
    left = iter(answers)
    while position < len(stream):
        chunk = memoryview(stream)[position : position + cuts[turn % len(cuts)]]
        room = reader.room
        if into_room and room is not None:
            chunk = chunk[: len(room)]
            room[: len(chunk)] = chunk
            message = reader.filled(len(chunk))
            came += [] if message is None else [message]
        elif look_for_whole and (message := reader.whole(chunk)) is not None:
            came.append(message)
        else:
            came += reader.feed(chunk, lambda header, size: next(left))
        position += len(chunk)
        turn += 1
    assert [(header, bytes(payload)) for header, payload in came] == expected
    assert reader.spoke


@given(st.binary(min_size=1, max_size=40), st.integers(0, SMALL_BYTES), st.integers(0, 3))
def test_a_small_message_that_comes_whole_is_seen_as_such(header, size, more):
    reader, payload = Reader(), bytes(range(256)) * (size // 256) + bytes(size % 256)
    message = framed(header, size)
    message[len(message) - size :] = payload
    assert unframed(message) == (header, payload)
    came = reader.whole(memoryview(bytes(message) + bytes(more)))
    assert (came is None) == bool(more)
    if came is not None:
        assert (came[0], bytes(came[1])) == (header, payload)
    assert reader.spoke == (not more)


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(GREETING, id="greeting"),
        pytest.param(b"", id="nothing"),
        pytest.param(bytes(frame_head(b"h", SMALL_BYTES + 1)) + bytes(SMALL_BYTES + 1), id="large"),
        pytest.param(bytes(2) + frame_head(b"h", 1)[2:] + b"x", id="other bytes"),
        pytest.param(frame_head(b"h", 2) + b"x", id="incomplete"),
    ],
)
def test_all_else_is_left_to_feed(chunk):
    reader = Reader()
    assert reader.whole(memoryview(chunk)) is None
    assert not reader.spoke


@given(st.binary(max_size=2000), st.integers(1, 100))
def test_arbitrary_bytes_are_messages_or_an_error(stream, step):
    reader = Reader()
    try:
        for position in range(0, len(stream), step):
            reader.feed(memoryview(stream[position : position + step]), lambda header, size: False)
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
        Reader().filled(1)
