"""Large payloads between two processes of one machine are laid on shelves, and nobody can misuse one."""

import contextlib
import gc
import os
import secrets
import socket
import struct
import time

import numpy as np
import pytest

from bbgrap.errors import LocalProtocolError
from bbgrap.graph.types import DType, TensorType
from bbgrap.protocol.message_layout import Letter, unpack
from bbgrap.transport import outbox
from bbgrap.transport.arena import ALIGN
from bbgrap.transport.framing import GREETING, SMALL_BYTES, frame_head, framed, shelf_frame
from bbgrap.transport.sealed import TOKEN_BYTES, WELCOME, is_possible, listen_at, offer_memory
from bbgrap.transport.shelf import MAX_SHELVES, SHELF_BYTES, shelf_name
from bbgrap.transport.tcp import TcpDataPlane
from tests.bbgrap.transport.check_transport import check_transport, receive

pytestmark = pytest.mark.skipif(not is_possible(), reason="this system has no sealed memory")

LARGE = SMALL_BYTES + 1


def open_plane(bind="tcp://127.0.0.1:0"):
    return TcpDataPlane(bind, "127.0.0.1", shelves=True)


def port_of(plane):
    return int(plane.address.rpartition(":")[2])


@contextlib.contextmanager
def pair(**options):
    sender, receiver = open_plane(), open_plane(**options)
    sender.connect(receiver.address)
    await_shelf(sender, receiver)
    try:
        yield sender, receiver
    finally:
        sender.close()
        receiver.close()


def shelf_of(sender, receiver):
    return sender._outbox._peers[receiver.address].shelf


def is_on_shelf(sender, receiver, nbytes=LARGE):
    """Send something, and tell whether it went by the shelf."""
    content = secrets.token_bytes(nbytes)
    header = secrets.token_bytes(16)
    sender.send(receiver.address, header, content[:100], content[100:])
    while (arrival := receive(receiver)).header != header:  # of an earlier connection
        pass
    assert bytes(arrival.payload) == content
    return memoryview(arrival.payload).readonly


def await_shelf(sender, receiver):
    """Send things until one goes by the shelf."""
    deadline = time.monotonic() + 5
    while not is_on_shelf(sender, receiver):
        assert time.monotonic() < deadline


def test_the_laws():
    check_transport(open_plane)


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:0", "tcp://*:0", "tcp://0.0.0.0:0"])
def test_large_payloads_go_by_the_shelf_and_small_ones_with_the_frame(bind):
    with pair(bind=bind) as (sender, receiver):
        assert is_on_shelf(sender, receiver)
        assert not is_on_shelf(sender, receiver, SMALL_BYTES)
        assert is_on_shelf(sender, receiver, 3_000_001)


def test_both_planes_must_want_it():
    for sender_wants, receiver_wants in ((False, True), (True, False)):
        sender, receiver = (TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1", shelves=wants) for wants in (sender_wants, receiver_wants))
        sender.connect(receiver.address)
        for _ in range(3):
            assert not is_on_shelf(sender, receiver)
            time.sleep(0.02)
        sender.close()
        receiver.close()


VIEWS = {
    "payload": lambda payload: payload,
    "a part": lambda payload: payload[5:],
    "frombuffer": lambda payload: np.frombuffer(payload, np.uint8)[5:7],
    "an array": lambda payload: np.ndarray((100, 50), np.float32, payload, 8),
    "of a part": lambda payload: np.ndarray((100, 50), np.float32, payload[8:100_000]),
    "a view of an array": lambda payload: np.ndarray((100, 50), np.float32, payload, 8)[3:].reshape(-1).view(np.int32),
    "what unpacks it": lambda payload: unpack(LETTER, payload)[1],
}
LETTER = Letter(0, (TensorType(DType.FLOAT, (100, 50)), TensorType(DType.FLOAT, (1000, 240))))


@pytest.mark.parametrize("view", VIEWS)
def test_what_is_still_read_stays_as_it_is_and_places_are_used_again(view):
    with pair() as (sender, receiver):
        contents = [np.random.default_rng(seed).random(LETTER.nbytes // 4, np.float32).tobytes() for seed in range(3)]
        for content in contents:
            sender.send(receiver.address, b"h", content)
        kept = [VIEWS[view](receive(receiver).payload) for _ in contents]
        for _ in range(100):  # more than the shelf holds
            assert is_on_shelf(sender, receiver, 1_000_000)
        for content, part in zip(contents, kept, strict=True):
            assert bytes(part) == bytes(VIEWS[view](memoryview(content)))
        assert len(list(shelf_of(sender, receiver)._arena)) == len(kept) + 1
        del kept, part
        assert is_on_shelf(sender, receiver)
        assert len(list(shelf_of(sender, receiver)._arena)) == 1


@pytest.mark.parametrize("shelves_first", [False, True])
def test_what_was_laid_down_before_the_end_arrives(monkeypatch, shelves_first):
    with pair() as (_, receiver):
        last = open_plane()
        last.connect(receiver.address)
        await_shelf(last, receiver)
        for part in range(5):
            last.send(receiver.address, b"%d" % part, bytes([part]) * LARGE)
        last.close()
        select = receiver._selector.select
        order = -1 if shelves_first else 1
        monkeypatch.setattr(receiver._selector, "select", lambda wait: sorted(select(wait), key=lambda r: order * (r[0].data is None)))
        receiver._last = None
        arrivals = [receive(receiver) for _ in range(5)]
        assert [(bytes(a.header), bytes(a.payload)) for a in arrivals] == [(b"%d" % n, bytes([n]) * LARGE) for n in range(5)]


def test_what_may_leave_later_wakes_nobody_before_the_next_message():
    with pair() as (sender, receiver):
        for after in (lambda: sender.send(receiver.address, b"2", b"small"), lambda: sender.send(receiver.address, b"2", bytes(LARGE))):
            contents = [secrets.token_bytes(LARGE) for _ in range(2)]
            for number, content in enumerate(contents):
                sender.send(receiver.address, b"%d" % number, content, later=True)
            assert receiver.receive(0.1) is None
            after()
            arrivals = [receive(receiver) for _ in range(3)]
            assert [bytes(arrival.header) for arrival in arrivals] == [b"0", b"1", b"2"]
            assert [bytes(arrival.payload) for arrival in arrivals[:2]] == contents
            assert all(memoryview(arrival.payload).readonly for arrival in arrivals[:2])


@pytest.mark.parametrize("sent", [0, 1, 1.5])
def test_what_was_not_told_of_when_a_connection_breaks_comes_over_the_next_one(monkeypatch, sent):
    """The first message may be known to the receiver already; then it stays where it is."""
    with pair() as (sender, receiver):
        write = outbox._write

        def breaks(peer, pieces):
            monkeypatch.setattr(outbox, "_write", write)
            part = int(sent * len(pieces[0]) / 3)
            peer.socket.send(pieces[0][:part])
            peer.broken, peer.ready = True, False
            return part

        contents = [secrets.token_bytes(LARGE) for _ in range(3)]
        for number, content in enumerate(contents[:2]):
            sender.send(receiver.address, b"%d" % number, content, later=True)
        monkeypatch.setattr(outbox, "_write", breaks)
        sender.send(receiver.address, b"2", contents[2])
        arrivals = [receive(receiver) for _ in range(3)]
        assert [bytes(arrival.header) for arrival in arrivals] == [b"0", b"1", b"2"]
        assert [bytes(arrival.payload) for arrival in arrivals] == contents
        assert [memoryview(arrival.payload).readonly for arrival in arrivals] == [sent >= 1, False, False]


@pytest.mark.parametrize("posted", [False, True])
def test_what_follows_a_break_stays_behind_what_was_not_told_of(posted):
    with pair() as (sender, receiver):
        content = secrets.token_bytes(LARGE)
        sender.send(receiver.address, b"0", content, later=True)
        peer = sender._outbox._peers[receiver.address]
        with sender._outbox._lock:  # as who sees the break does; the postman sleeps, and shuts the connection after the next message
            peer.broken, peer.ready = True, False
        if posted:
            sender.post(receiver.address, framed(b"1", 10))
        else:
            sender.send(receiver.address, b"1", bytes(10))
        arrivals = [receive(receiver) for _ in range(2)]
        assert [(bytes(arrival.header), bytes(arrival.payload)) for arrival in arrivals] == [(b"0", content), (b"1", bytes(10))]


def test_what_does_not_fit_goes_the_other_way_in_order():
    with pair() as (sender, receiver):
        content = bytes(range(250)) * 100_000  # 25 MB: two of them fit
        for number in range(5):
            sender.send(receiver.address, b"%d" % number, content)
        arrivals = [receive(receiver) for _ in range(5)]
        assert [bytes(arrival.header) for arrival in arrivals] == [b"%d" % number for number in range(5)]
        assert all(arrival.payload == content for arrival in arrivals)
        assert [memoryview(arrival.payload).readonly for arrival in arrivals[:3]] == [True, True, False]


def test_admission_counts_for_shelves_too():
    with pair() as (sender, receiver):
        mine = memoryview(bytearray(LARGE))
        receiver.admit = lambda header, size: mine if bytes(header) == b"mine" else bytes(header) == b"welcome"
        for header in (b"refused", b"mine", b"welcome"):
            sender.send(receiver.address, header, bytes(LARGE))
            sender.send(receiver.address, b"after " + header)
        sender.send(receiver.address, b"mine", bytes([9]) * LARGE)
        arrivals = [receive(receiver) for _ in range(6)]
        expected = [b"after refused", b"mine", b"after mine", b"welcome", b"after welcome", b"mine"]
        assert [bytes(arrival.header) for arrival in arrivals] == expected
        assert bytes(mine) == bytes([9]) * LARGE


def test_a_receiver_that_starts_anew_gets_a_new_shelf():
    with pair() as (sender, receiver):
        sender.send(receiver.address, b"h", b"x" * LARGE)
        held = receive(receiver).payload
        shelf, bind = shelf_of(sender, receiver), f"tcp://127.0.0.1:{port_of(receiver)}"
    sender, receiver = open_plane(), open_plane(bind)
    sender.connect(receiver.address)
    deadline = time.monotonic() + 10
    for reborn in (False, True):
        if reborn:
            receiver.close()
            receiver = open_plane(bind)
        while shelf_of(sender, receiver) in {None, shelf} and time.monotonic() < deadline:
            sender.send(receiver.address, b"h", bytes(LARGE))
            receiver.receive(0.05)
        await_shelf(sender, receiver)
        shelf = shelf_of(sender, receiver)
    assert bytes(held) == b"x" * LARGE
    sender.close()
    receiver.close()


def test_the_shelves_of_who_is_gone_are_forgotten():
    receiver = open_plane()
    for _ in range(MAX_SHELVES + 3):
        sender = open_plane()
        sender.connect(receiver.address)
        await_shelf(sender, receiver)
        sender.close()
    receiver.receive(0.1)
    gc.collect()
    assert len(receiver._shelves._open) <= 1
    receiver.close()


@pytest.mark.parametrize("place", [0, ALIGN, SHELF_BYTES, SHELF_BYTES - ALIGN, SHELF_BYTES - 2 * LARGE + 1, 2**64 - ALIGN])
def test_a_place_that_is_on_no_shelf_ends_the_connection(place):
    with pair() as (sender, receiver):
        token = shelf_of(sender, receiver).token
        for frame in (shelf_frame(b"h", LARGE, token, place), shelf_frame(b"h", LARGE, bytes(TOKEN_BYTES), 1 << 20)):
            with socket.create_connection(("127.0.0.1", port_of(receiver)), 5) as stranger:
                stranger.sendall(GREETING + frame)
                assert receiver.receive(0.1) is None
                assert stranger.recv(1) == b""
        assert is_on_shelf(sender, receiver)


def test_a_plane_without_shelves_takes_no_such_frames():
    receiver = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1")
    with socket.create_connection(("127.0.0.1", port_of(receiver)), 5) as stranger:
        stranger.sendall(GREETING + shelf_frame(b"h", LARGE, bytes(TOKEN_BYTES), 1 << 20))
        assert receiver.receive(0.1) is None
        assert stranger.recv(1) == b""
    receiver.close()


def test_frames_of_a_shelf_have_the_limits_of_others():
    assert len(shelf_frame(b"h", LARGE, bytes(TOKEN_BYTES), 0)) == len(frame_head(b"h", LARGE)) + TOKEN_BYTES + struct.calcsize("<Q")
    with pytest.raises(LocalProtocolError, match="header"):
        shelf_frame(b"", LARGE, bytes(TOKEN_BYTES), 0)


def test_strangers_who_offer_nonsense_are_turned_away():
    receiver = open_plane()
    name = shelf_name("127.0.0.1", port_of(receiver))
    offered = [offer_memory(name, token, size, "test") for token, size in ((b"short", SHELF_BYTES), (bytes(TOKEN_BYTES), 4096))]
    for _ in range(5):
        receiver.receive(0.02)
    for connection, _memory in offered:
        connection.setblocking(True)
        assert connection.recv(100) == b""
    once = offer_memory(name, bytes(TOKEN_BYTES), SHELF_BYTES, "test")
    receiver.receive(0.02)
    receiver.receive(0.02)
    assert once[0].recv(100) == WELCOME
    twice = offer_memory(name, bytes(TOKEN_BYTES), SHELF_BYTES, "test")
    receiver.receive(0.02)
    receiver.receive(0.02)
    assert twice[0].recv(100) in {b"", WELCOME}
    assert len(receiver._shelves._open) == 1
    for connection, _ in (*offered, once, twice):
        connection.close()
    receiver.close()


def test_without_a_place_to_listen_everything_goes_over_tcp():
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    taken = listen_at(shelf_name("127.0.0.1", port))
    sender, receiver = open_plane(), open_plane(f"tcp://127.0.0.1:{port}")
    sender.connect(receiver.address)
    for _ in range(3):
        assert not is_on_shelf(sender, receiver)
        time.sleep(0.02)
    for plane in (sender, receiver):
        plane.close()
    taken.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_other_users_get_nothing():
    receiver = open_plane()
    name = shelf_name("127.0.0.1", port_of(receiver))
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(12345)
        os.write(theirs, b"n" if offer_memory(name, bytes(TOKEN_BYTES), SHELF_BYTES, "test") is None else b"y")
        os._exit(0)
    assert os.read(ours, 1) == b"n"
    os.waitpid(child, 0)
    receiver.receive(0.05)
    assert not receiver._shelves._open
    receiver.close()
