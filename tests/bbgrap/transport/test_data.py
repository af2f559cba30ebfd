"""The real data plane and the fake one keep the same laws."""

import fcntl
import socket
import struct
import sys
import termios
import time
import tracemalloc

import numpy as np
import pytest

from bbgrap.errors import BbgrapError, UsageError
from bbgrap.transport import tcp
from bbgrap.transport.framing import GREETING, frame_head
from bbgrap.transport.tcp import TcpDataPlane
from tests.bbgrap.transport.check_transport import check_transport, receive
from tests.inproc import InprocNetwork
from tests.waiting import until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="what other systems do about SO_RCVLOWAT is not known")


def open_plane():
    return TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1")


def call(plane):
    host, port = plane.address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), 2)


def test_tcp():
    check_transport(open_plane)


def test_tcp_of_who_computes():
    check_transport(lambda: TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1", computes=True))


@LINUX
def test_a_slow_payload_is_looked_at_piece_by_piece_and_others_are_heard_meanwhile(monkeypatch):
    plane = open_plane()
    heard = []
    monkeypatch.setattr(plane, "_hear", lambda caller, hear=plane._hear: (heard.append(caller), hear(caller)))
    content = np.random.default_rng(0).bytes(1 << 20)
    with call(plane) as slow, call(plane) as other:
        slow.sendall(GREETING + frame_head(b"slow", len(content)))
        for start in range(0, len(content) - 1000, 1000):
            slow.sendall(content[start : start + 1000])
            assert plane.receive(0.0) is None
        assert len(heard) < 50, "a thousand times something came"
        other.sendall(GREETING + frame_head(b"quick", 3) + b"abc")
        assert receive(plane).header == b"quick"
        slow.sendall(content[start + 1000 :])
        assert bytes(receive(plane).payload) == content
        slow.sendall(frame_head(b"short", 1) + b"x")
        assert receive(plane).header == b"short"
    plane.close()


def test_who_hangs_up_within_a_payload_is_gone():
    plane = open_plane()
    with call(plane) as slow:
        slow.sendall(GREETING + frame_head(b"slow", 1 << 20) + bytes(200_000))
        while not plane._bring_much:
            assert plane.receive(0.01) is None
    deadline = time.monotonic() + 5
    while plane._callers and time.monotonic() < deadline:
        assert plane.receive(0.01) is None
    assert not plane._callers
    assert not plane._bring_much
    plane.close()


@LINUX
def test_what_comes_for_who_computes_does_not_stay_with_its_sender():
    plane = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1", computes=True)
    content = bytes(3 << 20)
    with call(plane) as sender:
        sender.settimeout(10)
        sender.sendall(GREETING + frame_head(b"first", 100_000) + content[:100_000])
        assert receive(plane).header == b"first"
        sender.sendall(frame_head(b"second", len(content)) + content)  # nobody calls `receive` now
        until(lambda: unacknowledged(sender) == 0, 10)
        assert len(receive(plane).payload) == len(content)
    plane.close()


def unacknowledged(sender):
    """Return the bytes that the system still keeps for the other side."""
    return struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)))[0]


def test_inproc():
    network = InprocNetwork()
    check_transport(network.plane)


@pytest.mark.parametrize(
    "content", [b"", b"\x67", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 300, bytes(1000), GREETING[:-1] + b"\x7f", b"\x67\xbb\xff\xff\0\0\0\0"]
)
def test_garbage_ends_its_connection_and_nothing_else(content, caplog):
    plane = open_plane()
    for _ in range(3):
        with call(plane) as raw:
            raw.sendall(content)
            raw.shutdown(socket.SHUT_WR)
            assert plane.receive(0.05) is None
            assert raw.recv(1) == b""
    with call(plane) as peer:
        peer.sendall(GREETING + frame_head(b"header", 7) + b"payload")
        arrival = receive(plane)
        assert (bytes(arrival.header), bytes(arrival.payload), arrival.sender) == (b"header", b"payload", "127.0.0.1")
    assert len(caplog.records) == (len(content) > 1)
    plane.close()


def test_what_is_not_admitted_takes_no_memory_and_the_next_message_comes():
    plane = open_plane()
    asked = []

    def admit(header, size, peer):
        asked.append((bytes(header), size))
        return False

    plane.admit = admit
    with call(plane) as peer:
        peer.sendall(frame_head(b"large", 1_000_000))
        for _ in range(10):
            peer.sendall(bytes(100_000))
            assert plane.receive(0.001) is None
        peer.sendall(frame_head(b"small", 2) + b"ok")
        assert bytes(receive(plane).header) == b"small"
    assert asked == [(b"large", 1_000_000)]
    plane.close()


def test_strangers_make_room_for_peers(monkeypatch, caplog):
    monkeypatch.setattr(tcp, "MAX_CONNECTIONS", 3)
    plane = open_plane()
    strangers = [call(plane) for _ in range(5)]
    peers = [call(plane) for _ in range(3)]
    for number, peer in enumerate(peers):
        assert plane.receive(0.01) is None
        peer.sendall(GREETING + frame_head(b"%d" % number, 0))
        assert receive(plane).header == b"%d" % number
    with call(plane) as late:
        assert plane.receive(0.01) is None
        assert late.recv(1) == b""
    peers[0].sendall(frame_head(b"again", 0))
    assert receive(plane).header == b"again"
    assert len(caplog.records) == 1
    for connection in (*strangers, *peers):
        connection.close()
    plane.close()


def test_a_payload_that_waits_is_kept_and_not_copied():
    sender, target = open_plane(), open_plane()
    sender.connect(target.address)
    size = 30_000_000
    content = np.arange(size, dtype=np.uint8)
    tracemalloc.start()
    sender.send(target.address, b"h", content[: size // 2].data, content[size // 2 :].data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del content
    assert np.array_equal(np.frombuffer(receive(target).payload, np.uint8), np.arange(size, dtype=np.uint8))
    assert peak < size // 10
    sender.close()
    target.close()


def test_an_address_where_nobody_listens_yet_is_tried_again():
    sender = open_plane()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    sender.connect(address)
    sender.connect("tcp://nobody.invalid:1")
    sender.send(address, b"kept")
    time.sleep(0.02)
    target = TcpDataPlane(address, "127.0.0.1")
    assert receive(target).header == b"kept"
    sender.close()
    target.close()


def test_strangers_that_only_greet_make_room_for_peers(monkeypatch):
    monkeypatch.setattr(tcp, "MAX_CONNECTIONS", 3)
    plane = open_plane()
    strangers = [call(plane) for _ in range(3)]
    for stranger in strangers:
        stranger.sendall(GREETING)
        assert plane.receive(0.05) is None
    sender = open_plane()
    sender.connect(plane.address)
    sender.send(plane.address, b"hello")
    assert receive(plane).header == b"hello"
    strangers[1].sendall(frame_head(b"useful", 0))
    assert receive(plane).header == b"useful"
    strangers[2].sendall(frame_head(b"large", 100_000))
    assert plane.receive(0.05) is None
    with call(plane) as late:
        assert plane.receive(0.05) is None
        assert late.recv(1) == b"", "all three are of use"
    for connection in strangers:
        connection.close()
    sender.close()
    plane.close()


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:x", "tcp://127.0.0.1:70000"])
def test_a_bad_address_is_a_readable_error(bind):
    with pytest.raises(UsageError, match="choose another port with --data-port"):
        TcpDataPlane(bind, "127.0.0.1")


def test_a_taken_port_is_a_readable_error_that_may_pass():
    plane = open_plane()
    for bind in (plane.address, "tcp://256.1.1.1:5"):
        with pytest.raises(BbgrapError, match="choose another port with --data-port") as raised:
            TcpDataPlane(bind, "127.0.0.1")
        assert raised.value.exit_code == 1  # units start it again
    plane.close()


def test_what_is_small_does_not_wait_for_a_large_message():
    """A few bytes of one request, while the large input of another is on a slow way: nobody reads before both are sent."""
    sender, receiver = open_plane(), open_plane()
    sender.connect(receiver.address)
    sender.send(receiver.address, b"large", bytes(48 << 20))
    sender.send(receiver.address, b"small", b"row")
    assert [bytes(receive(receiver).header) for _ in range(2)] == [b"small", b"large"]
    sender.close()
    receiver.close()
