"""Payloads in memory arrive as they were laid there, whatever the order of laying and reading; strange numbers do no harm."""

import contextlib
import itertools
import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.errors import RemoteProtocolError
from bbgrap.transport import payload_memory
from bbgrap.transport.framing import MessageReader, frame_head
from bbgrap.transport.payload_memory import PayloadReader, PayloadWriter

RING = 1 << 14
SIZES = st.one_of(st.integers(1, 200), st.integers(1, RING + 100))


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(payload_memory, "RING_BYTES", RING)
    monkeypatch.setattr(payload_memory, "MEMORY_BYTES", 4096 + RING)


def both_ends():
    memory = mmap.mmap(-1, payload_memory.MEMORY_BYTES)
    return PayloadWriter(memory), PayloadReader(memory)


def content(number, size):
    return np.random.default_rng(number).integers(0, 256, size, np.uint8).tobytes()


@settings(max_examples=300)
@given(st.lists(st.tuples(SIZES, st.integers(0, 4), st.integers(1, 3)), max_size=40))
def test_what_is_read_is_what_was_laid(steps):
    """After each payload that is laid, up to four of those that wait are read, and the sender is told."""
    writer, reader = both_ends()
    waiting, laid_bytes = [], 0
    for number, (size, reads, pieces) in enumerate(steps):
        payload = content(number, size)
        cuts = [size * piece // pieces for piece in range(pieces + 1)]
        place = writer.put([payload[begin:end] for begin, end in itertools.pairwise(cuts)], size)
        if place is None:
            assert waiting or size > RING, "an empty memory has room for all that fits at all"
        else:
            waiting.append((place, payload))
            laid_bytes += size
        for place, expected in waiting[:reads]:
            reader.check(place, len(expected))
            room = memoryview(bytearray(len(expected)))
            reader.copy(place, room)
            assert bytes(room) == expected
            reader.release(place, len(expected))
        reader.tell()
        del waiting[:reads]
        assert sum(len(payload) for _, payload in waiting) <= RING


def test_nothing_is_laid_before_the_other_side_has_the_memory():
    memory = mmap.mmap(-1, payload_memory.MEMORY_BYTES)
    writer = PayloadWriter(memory)
    assert writer.put([b"x" * 100], 100) is None
    reader = PayloadReader(memory)
    assert writer.put([b"x" * 100], 100) == 0
    assert writer.put([b"y" * 100], 100) == 128
    reader.check(128, 100)


def test_small_payloads_read_at_once_take_the_same_bytes_again():
    """Memory that was never written takes no room in the machine."""
    writer, reader = both_ends()
    for number in range(1000):
        place = writer.put([content(number, 100)], 100)
        assert place % RING == 0
        reader.release(place, 100)
        reader.tell()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_receiver_that_lies_changes_only_what_it_reads(ready, read):
    memory = mmap.mmap(-1, payload_memory.MEMORY_BYTES)
    writer = PayloadWriter(memory)
    numbers = np.frombuffer(memory, np.uint64, 16)
    for number in range(5):
        numbers[0], numbers[8] = ready, read
        place = writer.put([content(number, 5000)], 5000)
        assert place is None or place % RING + 5000 <= RING


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1) | st.integers(0, 4 * RING), st.integers(0, 2**31) | st.integers(0, RING)), max_size=300)
)
def test_a_sender_that_lies_names_no_more_than_there_is(frames):
    _, memory = both_ends()
    reader = MessageReader()
    reader.memory = memory
    stream = b"".join(frame_head(b"header", size % payload_memory.MEMORY_BYTES, place) for place, size in frames)
    came = []
    with contextlib.suppress(RemoteProtocolError):
        came = reader.feed(memoryview(stream), lambda header, size, peer: True)
    assert sum(len(payload) for _, payload in came) <= 2 * RING


def test_many_small_messages_name_no_more_than_there_is():
    _, memory = both_ends()
    reader = MessageReader()
    reader.memory = memory
    with pytest.raises(RemoteProtocolError, match="in one piece"):
        reader.feed(memoryview(b"".join(frame_head(b"header", RING, k * RING) for k in range(3))), lambda header, size, peer: True)


def test_who_has_no_memory_is_named_no_places():
    with pytest.raises(RemoteProtocolError, match="not shared"):
        MessageReader().feed(memoryview(frame_head(b"header", 10, 0)), lambda header, size, peer: True)


def test_what_is_not_wanted_makes_room():
    writer, memory = both_ends()
    reader = MessageReader()
    reader.memory = memory
    big = payload_memory.RING_BYTES - 64
    for _ in range(5):
        place = writer.put([bytes(big)], big)
        assert place is not None
        assert reader.feed(memoryview(frame_head(b"header", big, place)), lambda header, size, peer: False) == [] or big <= 1 << 16
