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
from bbgrap.transport.channel import HALF_BYTES, KEPT_BYTES, SMALL_BYTES, accept_channel, open_channel
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
    identity, coordinator = accept_channel(connection, ME.__eq__)
    assert identity == ME
    assert not client.send([b"too early"])
    assert client.receive() is None
    return client, coordinator


@pytest.fixture
def ends():
    client, coordinator = pair()
    yield client, coordinator
    client.close()
    coordinator.close()


def plain(frames):
    return None if frames is None else [bytes(frame) for frame in frames]


def lent(end):
    return sum(end._lent.values())


@given(st.lists(st.tuples(st.booleans(), st.lists(FRAME, min_size=1, max_size=4), st.integers(0, 255)), max_size=8))
@settings(deadline=None, max_examples=examples(40))
def test_messages_arrive_in_order_unchanged_and_all_memory_comes_back(messages):
    ends = pair()
    for by_client, sizes, seed in messages:
        sender, receiver = ends if by_client else ends[::-1]
        frames = [np.random.default_rng(seed + place).bytes(size) for place, size in enumerate(sizes)]
        assert sender.send(frames)
        assert plain(receiver.receive()) == frames
        assert receiver.receive() is None
    for sender, receiver in (ends, ends[::-1]):
        receiver.give_back()
        assert sender.receive() is None
        assert lent(sender) == 0
        assert list(sender._blocks) == []
    for end in ends:
        end.close()


def test_memory_of_a_message_is_not_written_again_while_it_is_in_use(ends):
    client, coordinator = ends
    assert client.send([b"head", b"a" * 100_000])
    view = coordinator.receive()[1]
    array = np.frombuffer(view, np.uint8)[5:]
    del view
    for number in range(20):
        assert client.send([b"head", bytes([number]) * 100_000])
        assert bytes(coordinator.receive()[1][:1]) == bytes([number])
        coordinator.give_back()
        assert client.receive() is None
    assert (array == ord("a")).all()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    del array
    gc.collect()
    coordinator.give_back()
    assert client.receive() is None
    assert lent(client) == 0


def test_what_is_put_into_its_memory_is_sent_from_there(ends):
    client, coordinator = ends
    room = coordinator.memory(100_000)
    outputs = np.frombuffer(room, np.float32).reshape(25, 1000)
    outputs[:] = np.arange(1000)
    (start, _), *others = coordinator._blocks
    assert not others
    parts = [outputs[:20].reshape(-1).view(np.uint8).data, outputs[20:].reshape(-1).view(np.uint8).data]
    assert coordinator.send([b"head", *parts])
    assert [block[0] for block in coordinator._blocks] == [start]
    del room, outputs, parts
    gc.collect()
    came = client.receive()
    assert (np.frombuffer(came[1], np.float32).reshape(20, 1000) == np.arange(1000)).all()
    assert (np.frombuffer(came[2], np.float32).reshape(5, 1000) == np.arange(1000)).all()
    assert [block[0] for block in coordinator._blocks] == [start]
    del came
    gc.collect()
    client.give_back()
    assert coordinator.receive() is None
    assert coordinator.memory(HALF_BYTES) is not None


def exchange(ends, content):
    """Have the client receive a large frame, and the coordinator what the client has given back."""
    client, coordinator = ends
    assert coordinator.send([b"head", content])
    received = client.receive()[1]
    client.give_back()
    assert coordinator.receive() is None
    return received


def test_what_the_client_got_is_its_own_for_as_long_as_it_likes(ends):
    first = exchange(ends, b"a" * 100_000)
    part = np.frombuffer(first, np.uint8)[50_000:]
    first[0] = 1
    del first
    for number in range(20):
        assert bytes(exchange(ends, bytes([number]) * 100_000)[:1]) == bytes([number])
    assert (part == ord("a")).all()
    del part
    gc.collect()
    exchange(ends, b"x")
    assert lent(ends[1]) == 0


def test_a_client_that_keeps_much_gets_copies(ends):
    kept = [exchange(ends, bytes([number]) * (KEPT_BYTES // 4)) for number in range(10)]
    assert lent(ends[1]) == 4
    assert all(bytes(content[-1:]) == bytes([number]) for number, content in enumerate(kept))
    del kept[:2]
    exchange(ends, b"x")
    kept.append(exchange(ends, b"z" * KEPT_BYTES))
    assert lent(ends[1]) == 2, "what is larger than all that may be kept is a copy"
    kept.append(exchange(ends, b"z" * (KEPT_BYTES // 4)))
    assert lent(ends[1]) == 3


def test_what_a_child_process_has_is_not_written_again(ends):
    kept = exchange(ends, b"a" * 100_000)
    hear, tell = os.pipe()
    child = os.fork()
    if not child:  # it looks at what it got when its parent has dropped it and received something else
        os.read(hear, 1)
        os._exit(0 if bytes(kept) == b"a" * 100_000 else 1)
    del kept
    gc.collect()
    for _ in range(3):
        exchange(ends, b"b" * 100_000)
    assert lent(ends[1]) == 1, "after a fork there are copies"
    os.write(tell, b"x")
    assert os.waitpid(child, 0)[1] == 0


def test_what_does_not_fit_is_refused_and_leaves_nothing(ends):
    client, coordinator = ends
    assert not client.send([b"head", bytes(HALF_BYTES + 1)])
    assert not client.send([b"head", bytes(HALF_BYTES - 4096), bytes(5000 * 10)])
    assert not client.send([bytes(SMALL_BYTES - 1)] * 5)
    assert not client.send([b""] * 5000)
    assert list(client._blocks) == []
    assert client.send([b"head", bytes(HALF_BYTES)])
    assert len(coordinator.receive()[1]) == HALF_BYTES


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


def packet(frames, back=(), small=b""):
    places = b"".join(struct.pack("<QQ", *frame) for frame in frames)
    return struct.pack("<HH", len(frames), len(back)) + places + struct.pack(f"<{len(back)}Q", *back) + small


@pytest.mark.parametrize(
    "wrong",
    [
        b"\0",
        bytes(65_000),
        packet([(HALF_BYTES, 1)]),
        packet([(HALF_BYTES - 1, 2)]),
        packet([(0, 2**63)]),
        packet([(2**63, 2**63)]),
        packet([(INLINE, 3)], small=b"ab"),
        packet([(INLINE, 3)], small=b"abcd"),
        packet([(INLINE, INLINE)], small=b"abcd"),
        packet([], back=[HALF_BYTES]),
        packet([], back=[0]),
        struct.pack("<HH", 65535, 65535) + bytes(100),
    ],
)
def test_a_packet_that_is_none_is_an_error(ends, wrong):
    client, coordinator = ends
    coordinator.memory(10)
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
        assert content[:4] != bytes(4) or len(content) > 4
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
    view = coordinator.receive()[1]
    client.close()
    coordinator.close()
    del client, coordinator
    gc.collect()
    assert mapped() > before
    assert bytes(view) == bytes(20_000)
    del view
    gc.collect()
    assert mapped() == before
