"""Messages through shared memory: what is said arrives, what is not a packet ends the connection, and no memory is lost."""

import fcntl
import gc
import os
import socket
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.errors import RemoteProtocolError
from bbgrap.transport import shared_memory as module
from bbgrap.transport.channel import HALF_BYTES, RING_BYTES, SMALL_BYTES, accept_channel, open_channel
from bbgrap.transport.shared_memory import TOKEN_BYTES, is_possible, listen
from tests.examples import examples

pytestmark = pytest.mark.skipif(not is_possible(), reason="this system has no sealed memory")

ME = bytes(range(TOKEN_BYTES))
INLINE = 2**64 - 1
FRAME = st.one_of(st.integers(0, 300), st.sampled_from([SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, 70_001]))


def pair():
    name, listener = listen()
    with listener:
        client = open_channel(f"{name} {ME.hex()}")
        connection, _ = listener.accept()
    connection.setblocking(False)
    assert not client.send([b"too early"])
    identity, coordinator = accept_channel(connection, ME.__eq__)
    assert identity == ME
    return client, coordinator


@pytest.fixture
def ends():
    client, coordinator = pair()
    yield client, coordinator
    client.close()
    coordinator.close()


def plain(frames):
    return None if frames is None else [bytes(frame) for frame in frames]


@given(st.lists(st.tuples(st.booleans(), st.lists(FRAME, min_size=1, max_size=4), st.integers(0, 255)), max_size=8))
@settings(deadline=None, max_examples=examples(40))
def test_messages_arrive_in_order_unchanged(messages):
    ends = pair()
    for by_client, sizes, seed in messages:
        sender, receiver = ends if by_client else ends[::-1]
        frames = [np.random.default_rng(seed + place).bytes(size) for place, size in enumerate(sizes)]
        assert sender.send(frames)
        assert plain(receiver.receive()) == frames
        assert receiver.receive() is None
    for end in ends:
        end.close()


def test_what_has_come_is_the_receivers_own(ends):
    for sender, receiver in (ends, ends[::-1]):
        assert sender.send([b"head", b"a" * 100_000])
        kept = np.frombuffer(receiver.receive()[1], np.float32)
        for number in range(20):
            assert sender.send([b"head", bytes([number]) * 100_000])
            assert bytes(receiver.receive()[1]) == bytes([number]) * 100_000
        assert kept.tobytes() == b"a" * 100_000
        assert kept.flags.aligned
        kept[0] = 1


def test_what_does_not_fit_is_refused_and_leaves_nothing(ends):
    client, coordinator = ends
    for _ in range(3):
        assert not client.send([b"head", bytes(RING_BYTES + 1)])
        assert not client.send([b"head", bytes(RING_BYTES - 4096), bytes(5000 * 10)])
        assert not client.send([bytes(SMALL_BYTES - 1)] * 5)
        assert not client.send([bytes(RING_BYTES // 2)] + [bytes(SMALL_BYTES - 1)] * 5)
        assert not client.send([b""] * 5000)
    assert client.send([b"head", bytes(RING_BYTES)])
    assert not client.send([bytes(SMALL_BYTES)])
    assert len(coordinator.receive()[1]) == RING_BYTES
    assert client.send([bytes(SMALL_BYTES)])


def test_who_does_not_read_is_not_waited_for(ends):
    client, _ = ends
    sent = 0
    while client.send([b"x" * 5000]):
        sent += 1
        assert sent < 10_000
    assert sent


def test_an_end_is_told(ends):
    client, coordinator = ends
    client.send([b"last"])
    client.close()
    assert plain(coordinator.receive()) == [b"last"]
    for _ in range(2):
        with pytest.raises(ConnectionError):
            coordinator.receive()
    assert not client.send([b"x"])


def packet(frames, small=b""):
    return struct.pack("<H", len(frames)) + b"".join(struct.pack("<QQ", *frame) for frame in frames) + small


@pytest.mark.parametrize(
    "wrong",
    [
        b"\0",
        bytes(65_000),
        packet([(RING_BYTES - 1, 2)]),
        packet([(2 * RING_BYTES, 1)]),
        packet([(64, 64), (0, 64)]),
        packet([(0, 0)]),
        packet([(0, 2**63)]),
        packet([(2**63, 2**63)]),
        packet([(INLINE, 3)], small=b"ab"),
        packet([(INLINE, 3)], small=b"abcd"),
        packet([(INLINE, INLINE)], small=b"abcd"),
        struct.pack("<H", 65535) + bytes(100),
    ],
)
def test_a_packet_that_is_none_is_an_error(ends, wrong):
    client, coordinator = ends
    client._connection.send(wrong)
    with pytest.raises(RemoteProtocolError, match="shared-memory channel"):
        coordinator.receive()


@given(st.binary(min_size=1, max_size=400))
@settings(deadline=None, max_examples=examples(60))
def test_arbitrary_bytes_are_a_message_or_an_error(content):
    client, coordinator = pair()
    client._connection.send(content)
    try:
        coordinator.receive()
    except RemoteProtocolError:
        assert content != bytes(2)
    client.close()
    coordinator.close()


def memory(size=2 * HALF_BYTES, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW):
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_memory_that_can_be_cut_off_is_refused(tmp_path):
    plain_file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(plain_file, 2 * HALF_BYTES)
    cases = [
        (ME, [memory(seals=0)]),
        (ME, [memory(size=4096)]),
        (ME, [plain_file]),
        (ME, []),
        (ME, [memory(), memory()]),
        (ME[1:], [memory()]),
    ]
    for identity, descriptors in cases:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            socket.send_fds(ours, [identity], descriptors)
            with pytest.raises(RemoteProtocolError, match="shared memory: expected"):
                accept_channel(theirs, lambda _: True)
        for descriptor in descriptors:
            os.close(descriptor)


def test_a_client_cannot_take_its_memory_back():
    taken = []

    def remember(name, flags):
        taken.append(os_memfd_create(name, flags))
        return os.dup(taken[0])

    os_memfd_create = os.memfd_create
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.os, "memfd_create", remember)
        client, coordinator = pair()
    with pytest.raises(PermissionError):
        os.ftruncate(taken[0], 0)
    os.close(taken[0])
    assert client.send([b"head", b"x" * 20_000])
    assert plain(coordinator.receive()) == [b"head", b"x" * 20_000]
    client.close()
    coordinator.close()


def test_nobody_there_and_nothing_possible():
    nobody = f"bbgrap-{'0' * 32}"
    for invitation in ("", f"{nobody} {ME.hex()}", f"bbgrap-nobody {ME.hex()}", f"{'x' * 1000} {ME.hex()}", f"{nobody} zz"):
        assert open_channel(invitation) is None


def test_memory_goes_with_both_ends():
    def mapped():
        return Path("/proc/self/maps").read_text().count("memfd:bbgrap-channel")

    gc.collect()
    before = mapped()
    client, coordinator = pair()
    assert client.send([b"head", bytes(20_000)])
    assert coordinator.receive()
    client.close()
    coordinator.close()
    assert mapped() > before
    del client, coordinator
    gc.collect()
    assert mapped() == before
