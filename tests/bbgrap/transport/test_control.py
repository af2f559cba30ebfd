import gc
import os
import select
import socket
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import zmq

from bbgrap.errors import RemoteProtocolError, UsageError
from bbgrap.protocol.addresses import split_address
from bbgrap.protocol.directions import TO_COORDINATOR
from bbgrap.protocol.limits import MAX_PAYLOAD_FRAMES
from bbgrap.transport import control_client, control_server, frame_pieces
from bbgrap.transport.control_client import ControlClient, unavailable
from bbgrap.transport.control_server import ControlServer, key_of
from bbgrap.transport.control_sockets import check_address, check_host
from bbgrap.transport.locks import NOBODY
from bbgrap.transport.wakeup_queue import WakeupQueue
from tests.waiting import until


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


def test_messages_go_both_ways_and_the_identity_survives_a_new_connection(context):
    server = ControlServer(context, "tcp://127.0.0.1:0")
    with ControlClient(context, server.address) as client:
        client.send([b"hello", bytes(100_000)])
        identity, frames = until(server.receive)
        assert [bytes(frame) for frame in frames] == [b"hello", bytes(100_000)]
        server.send(identity, [b"answer"])
        assert [bytes(frame) for frame in until(client.receive)] == [b"answer"]
        client.reopen()
        client.send([b"again"])
        assert until(server.receive)[0] == identity
        server.send(b"nobody", [b"lost"])
    server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell")
def test_a_client_knows_that_a_message_is_coming_before_it_is_there(context):
    with on_a_way(context) as (server, client, carry):
        identity, _ = until(lambda: carry(1 << 20) and server.receive())
        until(lambda: carry(1 << 20) and not client.has_received())
        server.send(identity, [bytes(8 << 20)])
        for _ in range(20):
            until(lambda: carry(64 << 10) and client.has_received())
            assert client.receive() is None
        assert 0 < client.far_s < 1


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell")
def test_a_client_knows_that_a_message_is_still_on_its_way_there(context):
    """Over 5 Mbit/s the connection was opened anew while an input of 5 MB was nearly there, and it came twice."""
    with on_a_way(context) as (server, client, carry):
        until(lambda: carry(1 << 20) and server.receive())
        until(lambda: carry(1 << 20) and not client.has_delivered())
        client.send([bytes(32 << 20)])
        for _ in range(5):
            until(lambda: carry(2 << 20) and client.has_delivered())
            assert server.receive() is None
        client.send([b"a question"])
        until(lambda: not client.has_delivered())


@contextmanager
def on_a_way(context):
    """Yield a server, a client that has sent it a message, and what carries bytes between them."""
    server = ControlServer(context, "tcp://127.0.0.1:0")
    with socket.create_server(("127.0.0.1", 0)) as way, ControlClient(context, f"tcp://127.0.0.1:{way.getsockname()[1]}") as client:
        client.send([b"hello"])
        ours, theirs = way.accept()[0], socket.create_connection(server_at(server))
        with ours, theirs:
            yield server, client, partial(carried, ours, theirs)
    server.close()


def server_at(server):
    host, port = split_address(server.address)
    return host, int(port)


def carried(ours, theirs, most):
    """Carry what there is of so many bytes each way."""
    for one, other in ((ours, theirs), (theirs, ours)):
        if select.select([one], [], [], 0)[0]:
            other.sendall(one.recv(most))
    return True


def test_a_connection_for_which_a_host_is_looked_up_is_not_begun_anew(context, monkeypatch):
    """Else a name server that takes longer than silence is borne keeps a node away for ever: see tests/network/test_slow_names.py."""
    with monkeypatch.context() as patched:
        patched.setattr(control_client, "_TRIES", 0)  # it is told of nothing, as in a look-up
        looking = ControlClient(context, "tcp://127.0.0.1:1")
    with looking:
        before = looking.socket
        looking.reopen()
        assert looking.socket is before
    with ControlClient(context, "tcp://127.0.0.1:1") as client:
        until(lambda: not client.looks_up(0.1))
        before = client.socket
        client.reopen()
        assert client.socket is not before


def test_what_a_peer_does_not_read_is_bounded_in_bytes(context, monkeypatch):
    """ZeroMQ keeps ten thousand messages for a connection, of whatever size."""
    monkeypatch.setattr(control_server, "MAX_UNREAD_BYTES", 30 << 20)
    monkeypatch.setattr(control_server, "LOOK_BYTES", 1 << 20)
    server = ControlServer(context, "tcp://127.0.0.1:0")
    with connection_to(server) as peer:
        identity, _ = until(server.receive)
        sent = sum(server.send(identity, [bytes(1 << 20)]) for _ in range(100))
        assert 30 <= sent < 60
        assert not server.send(identity, [b"lost"])
        with reading(peer):
            for _ in range(200):  # whatever has passed over a connection, only what is unread counts
                until(lambda: server.send(identity, [bytes(1 << 20)]))
    server.close()


def test_what_found_no_room_does_not_count_as_unread(context, monkeypatch):
    monkeypatch.setattr(control_server, "MAX_UNREAD_BYTES", 40 << 20)
    monkeypatch.setattr(control_server, "LOOK_BYTES", 1 << 20)
    server = ControlServer(context, "tcp://127.0.0.1:0")
    with connection_to(server) as peer:
        identity, _ = until(server.receive)
        for _ in range(40_000):  # far more than ZeroMQ keeps for a connection
            assert server.send(identity, [bytes(2000)])
        with reading(peer):
            until(lambda: server.send(identity, [bytes(1 << 20)]))
    server.close()


@contextmanager
def reading(peer):
    """Read all that comes meanwhile; the connection ends with that."""

    def read():
        with suppress(OSError):
            while peer.recv(1 << 20):
                pass

    reader = threading.Thread(target=read)
    reader.start()
    yield
    peer.shutdown(socket.SHUT_RDWR)
    reader.join()


def test_who_sends_what_is_no_message_is_named_and_keeps_nobody_waiting(context):
    server = ControlServer(context, "tcp://127.0.0.1:0")
    with ControlClient(context, server.address) as client:
        client.send([b"hello"])
        identity, _ = until(server.receive)
        client.socket.send_multipart([b"short"])
        stranger, frames = until(server.receive)
        assert frames == []
        assert len(stranger) == len(identity)
        assert stranger != identity
    server.close()


def test_without_a_lock_nobody_says_whose_key_they_have(context):
    server = ControlServer(context, "tcp://127.0.0.1:0")
    with connection_to(server):
        identity, _ = until(server.receive)
    assert key_of(identity) == NOBODY
    server.close()


@contextmanager
def connection_to(server):
    """A connection of a peer that says who it is, and one message."""
    with socket.create_connection(("127.0.0.1", split_address(server.address)[1])) as peer:
        peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))  # ZMTP 3.0's greeting
        peer.recv(64, socket.MSG_WAITALL)
        ready = b"\x05READY" + known_as("Socket-Type", b"DEALER") + known_as("User-Id", b"abc")
        peer.sendall(bytes([4, len(ready)]) + ready + bytes([0, 20]) + bytes(20))
        yield peer


def known_as(name, value):
    """A property of a connection, as ZMTP has them."""
    return bytes([len(name)]) + name.encode() + len(value).to_bytes(4) + value


def test_a_client_learns_that_its_connection_broke(context):
    server = ControlServer(context, "tcp://127.0.0.1:0")
    with ControlClient(context, server.address) as client:
        client.send([b"hello"])
        until(server.receive)
        assert not client.was_broken()
        server.close()
        until(client.was_broken)
        assert not client.was_broken()


def test_messages_of_too_many_frames_or_bytes_are_forgotten_and_the_next_one_comes(context, monkeypatch):
    monkeypatch.setattr(frame_pieces, "MAX_MESSAGE_BYTES", 1000)
    monkeypatch.setattr(frame_pieces, "PIECE_BYTES", 100_000)
    server = ControlServer(context, "tcp://127.0.0.1:0")
    most = 1 + MAX_PAYLOAD_FRAMES
    with ControlClient(context, server.address) as client:
        client.send([b"first"])
        identity, _ = until(server.receive)
        for frames in ([b""] * (most + 1), [b"", bytes(1001)], [bytes(400)] * 3):
            client.send(frames)
            assert until(server.receive) == (identity, [])
            with pytest.raises(RemoteProtocolError, match="at most 1025 frames"):
                TO_COORDINATOR.decode([])
            server.send(identity, frames)
            server.send(identity, [b"next"])
            assert [bytes(frame) for frame in until(client.receive)] == [b"next"]
        client.send([b"1"] * 900)
        assert [bytes(frame) for frame in until(server.receive)[1]] == [b"1"] * 900
        client.send([b""] * most)
        assert len(until(server.receive)[1]) == most
    server.close()


def test_a_taken_port_is_a_readable_error(context):
    server = ControlServer(context, "tcp://127.0.0.1:0")
    with pytest.raises(UsageError, match="is in use; is a coordinator running already"):
        ControlServer(context, server.address)
    server.close()
    with pytest.raises(UsageError, match="expected tcp://HOST:PORT of this machine"):
        ControlServer(context, "tcp://256.1.1.1:5")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("head", "tcp://head:7070"),
        ("head:1", "tcp://head:1"),
        ("tcp://head:1", "tcp://head:1"),
        ("tcp://[::1]:5", "tcp://[::1]:5"),
        ("[::1]", "tcp://[::1]:7070"),
        ("tcp://head:1\r", "tcp://head:1"),
    ],
)
def test_addresses(given, meant):
    assert check_address(given) == meant


@pytest.mark.parametrize("given", ["", "tcp://:5", "head:x", "http://head:1", "head:70000", "head:\N{SUPERSCRIPT TWO}", "fe80::1"])
def test_bad_addresses(given):
    with pytest.raises(UsageError, match="expected tcp://HOST:PORT"):
        check_address(given)


def test_hosts_have_neither_scheme_nor_port():
    for host in ("", "left.lan", "10.0.0.7", "[fd00::7]", "fd00::7", "fe80::1%eth0"):  # as environments give them
        check_host(host, "--advertise")
    for host in ("tcp://left", "left:7070", "tcp://10.0.0.7:70", "[fd00::7]:70", "a b", "left/x"):
        with pytest.raises(UsageError, match="expected a host name"):
            check_host(host, "--advertise")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("tcp://127.0.0.1:5", "within 3 s; start one with: bbgrap-coordinator --bind tcp://127.0.0.1:5"),
        ("tcp://[::1]:5", "within 3 s; start one with: bbgrap-coordinator"),
        ("tcp://256.1.1.1:5", "host '256.1.1.1' cannot be found"),
        ("tcp://no..name:5", "host 'no..name' cannot be found"),
    ],
)
def test_why_no_coordinator_answers(address, said):
    assert said in str(unavailable(address, 3))


@pytest.mark.skipif(not socket.has_ipv6, reason="this system has no IPv6")
def test_to_listen_at_a_name_that_has_no_address_of_ipv4_is_refused_with_what_to_give(monkeypatch):
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 5, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    with (
        zmq.Context() as context,
        pytest.raises(UsageError, match=r"a name is looked up as IPv4; give an IPv6 address as tcp://\[ADDRESS\]:PORT"),
    ):
        ControlServer(context, "tcp://six.invalid:0")
    assert "start one with" in str(unavailable("tcp://[fd00::7]:5", 3))


def test_a_wakeup_queue_keeps_the_order_and_wakes():
    wakeups = WakeupQueue[int]()
    poller = zmq.Poller()
    poller.register(wakeups.fileno(), zmq.POLLIN)
    assert not poller.poll(0)
    for number in range(100_000):
        wakeups.put(number)
    assert poller.poll(1000)
    assert wakeups.take() == list(range(100_000))
    wakeups.put(7)
    assert wakeups.take() == [7]
    wakeups.close()
    with tempfile.TemporaryFile() as one, tempfile.TemporaryFile() as other:  # one of them may have the number of what was closed
        wakeups.put(8)
        assert not any(os.fstat(file.fileno()).st_size for file in (one, other))


def test_a_wakeup_queue_that_was_forgotten_keeps_no_descriptors():
    """As with a program that makes a connection for each of its requests, and closes none: it had no descriptors left."""
    wakeups = WakeupQueue[int]()
    watched = os.dup(wakeups.fileno())  # its other end is gone when nothing is left to read
    os.set_blocking(watched, False)
    with pytest.raises(BlockingIOError):
        os.read(watched, 1)
    del wakeups
    gc.collect()
    assert os.read(watched, 1) == b""
    os.close(watched)
