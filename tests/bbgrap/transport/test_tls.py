"""The locked data plane: nobody else is heard, and it says why."""

import contextlib
import select
import socket
import ssl
import threading
import time

import numpy as np
import pytest

from bbgrap.transport import framing, outbox, outgoing_connection
from bbgrap.transport.framing import GREETING, frame_head
from bbgrap.transport.tls import client_context
from tests.bbgrap.transport.check_transport import receive
from tests.bbgrap.transport.locked import LockedCluster, pair, port_of, share_memory, told_until
from tests.waiting import until


@pytest.fixture(autouse=True)
def _quickly_told(monkeypatch):
    monkeypatch.setattr(outbox, "_CONNECT_S", 0.3)


def secured(plane, identity):
    """Connect to a plane by hand; also after its refusal, which TLS 1.3 says late."""
    raw = socket.create_connection(("127.0.0.1", port_of(plane)), 5)
    return client_context(identity).wrap_socket(raw)


def is_cut_off(connection):
    try:
        return connection.recv(8) == b""
    except (OSError, ssl.SSLError):
        return True


def test_a_closed_plane_may_be_told_of_peers():
    cluster = LockedCluster()
    with contextlib.closing(cluster.open()) as sender:
        target = cluster.open()
        sender.connect(target.address)
        sender.send(target.address, b"head", b"x")
        assert receive(target).peer == sender.fingerprint
        target.close()
        target.allow([])


def test_what_arrives_says_whom_it_is_from():
    with pair() as (sender, target):
        asked = []
        target.admit = lambda header, size, peer: asked.append(peer) or True
        sender.send(target.address, b"small", b"x")
        sender.send(target.address, b"large", bytes(100_000))
        assert [receive(target).peer for _ in range(2)] == [sender.fingerprint] * 2
        assert asked == [sender.fingerprint]


def test_nobody_is_let_in_who_is_not_allowed_and_it_says_why():
    cluster = LockedCluster()
    sender, target = cluster.open(), cluster.open()
    target.allow([])
    sender.connect(target.address)
    sender.send(target.address, b"hello", b"secret")
    assert "does not let this node in" in sender.told.get(timeout=5)[1]
    assert target.receive(0.1) is None
    target.allow([sender.fingerprint])
    sender._outbox._outgoing[target.address].due += 60
    sender.connect(target.address)  # as by the next trial: it does not wait for the next try
    sender.send(target.address, b"again")
    assert receive(target).header == b"again"
    sender.close()
    target.close()


def test_a_certificate_of_another_cluster_is_refused_by_both():
    ours, theirs = LockedCluster(), LockedCluster()
    target, stranger = ours.open(), theirs.open()
    target.allow([stranger.fingerprint])
    stranger.connect(target.address, target.fingerprint)
    stranger.send(target.address, b"hello")
    assert "its certificate is not of this cluster" in stranger.told.get(timeout=5)[1]
    # And one that trusts everybody, as an attacker would.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for certificate in (None, stranger.identity):
        if certificate is not None:
            context = client_context(certificate)
            context.verify_mode = ssl.CERT_NONE
        raw = socket.create_connection(("127.0.0.1", port_of(target)), 5)
        with context.wrap_socket(raw) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(frame_head(b"hello", 0))
            assert is_cut_off(connection)
    assert target.receive(0.1) is None
    stranger.close()
    target.close()


def test_who_is_not_the_one_at_this_address_gets_nothing():
    cluster = LockedCluster()
    sender, target = cluster.open(), cluster.open()
    sender.connect(target.address, "ab" * 32)
    sender.send(target.address, b"hello")
    reason = sender.told.get(timeout=5)[1]
    assert f"expected the node with certificate {'ab' * 8}, got {target.fingerprint[:16]}" in reason
    assert target.receive(0.05) is None
    sender.close()
    target.close()


def test_an_agent_that_was_started_again_at_the_same_address_is_found():
    cluster = LockedCluster()
    sender, first = cluster.open(), cluster.open()
    sender.connect(first.address)
    sender.send(first.address, b"first")
    assert receive(first).header == b"first"
    address = first.address
    first.close()
    second = cluster.open(bind=address)
    assert sender.told.get(timeout=5)[0] == address
    sender.send(address, b"lost")
    sender.connect(address, second.fingerprint)
    assert "another node is at this address now" in told_until(sender, "another node")
    sender.send(address, b"second")
    assert receive(second).header == b"second"
    sender.close()
    second.close()


def test_a_revoked_peer_is_cut_off_at_once_also_what_has_come_and_was_not_taken():
    with pair() as (sender, target):
        sender.send(target.address, b"first")
        assert receive(target).header == b"first"
        with secured(target, sender.identity) as connection:
            assert connection.recv(8) == GREETING
            connection.sendall(3 * frame_head(b"more", 0))  # in one record, so it is here as soon as the first is
            assert receive(target).header == b"more"
            target.allow([])
            assert target.receive(0.05) is None
        assert not target._callers
        assert sender.told.get(timeout=5)[1]
        sender.send(target.address, b"and more")
        assert target.receive(0.2) is None


def test_a_connection_that_ends_within_a_message_leaves_nothing():
    with pair() as (_, target):
        cluster_member = secured(target, _.identity)
        assert cluster_member.recv(8) == GREETING
        cluster_member.sendall(frame_head(b"half", 1 << 20) + bytes(300_000))
        deadline = time.monotonic() + 5
        while not target._bring_much and time.monotonic() < deadline:
            assert target.receive(0.01) is None
        assert target._bring_much
        cluster_member.close()
        while target._bring_much and time.monotonic() < deadline:
            assert target.receive(0.01) is None
        assert not target._bring_much


def test_who_connects_again_and_again_leaves_its_oldest_connection():
    with pair() as (sender, target):
        mine = [secured(target, sender.identity) for _ in range(6)]
        for connection in mine:
            assert connection.recv(8) == GREETING
        assert target.receive(0.1) is None
        assert len(target._callers) == 4
        assert is_cut_off(mine[0])
        mine[-1].sendall(frame_head(b"hello", 0))
        assert receive(target).header == b"hello"
        for connection in mine:
            connection.close()


def test_much_in_both_directions_at_once_does_not_lock_up():
    cluster = LockedCluster()
    a, b = cluster.open(computes=True), cluster.open(computes=True)
    a.connect(b.address)
    b.connect(a.address)
    content = np.random.default_rng(0).bytes(20 << 20)

    def exchange(here, there, came):
        for number in range(4):
            here.send(there.address, b"%d" % number, content[: 10 << 20], content[10 << 20 :])
        for _ in range(4):
            came.append(receive(here, timeout_s=30))

    came = [], []
    threads = [threading.Thread(target=exchange, args=each) for each in ((a, b, came[0]), (b, a, came[1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for arrivals in came:
        assert [arrival.header for arrival in arrivals] == [b"0", b"1", b"2", b"3"]
        assert all(arrival.payload == content for arrival in arrivals)
    a.close()
    b.close()


def test_a_slow_network_that_cuts_records_anywhere_changes_nothing():
    """Through a relay that passes on a few bytes at a time; the system tells late of large payloads, which must not wait for ever."""
    with pair(computes=True) as (sender, target), relay(port_of(target), cut=997) as (address, _):
        sender.connect(address, target.fingerprint)
        for size in (0, 1, 16_000, 70_000, 300_000):
            content = np.random.default_rng(size).bytes(size)
            sender.send(address, b"%d" % size, content)
            assert bytes(receive(target).payload) == content


def test_nothing_can_be_read_on_the_way():
    with pair() as (sender, target), relay(port_of(target)) as (address, seen):
        sender.connect(address, target.fingerprint)
        content = np.arange(50_000, dtype=np.float32).tobytes()
        sender.send(address, b"header-in-clear?", content)
        assert bytes(receive(target).payload) == content
        captured = bytes(seen)
    assert len(captured) > len(content)
    assert b"header-in-clear?" not in captured
    assert not any(content[start : start + 16] in captured for start in range(0, len(content) - 16, 16))
    assert GREETING not in captured


@contextlib.contextmanager
def relay(port, cut=1 << 16):
    """Pass on what comes, in pieces; also give all that has passed."""
    seen, ends = bytearray(), []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pass_on(source, sink):
            with contextlib.suppress(OSError):
                while content := source.recv(cut):
                    seen.extend(content)
                    sink.sendall(content)
                sink.shutdown(socket.SHUT_WR)

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    inner, _ = server.accept()
                    ends.append(inner)
                    outer = socket.create_connection(("127.0.0.1", port))
                    ends.append(outer)
                    for way in ((inner, outer), (outer, inner)):
                        threads.append(threading.Thread(target=pass_on, args=way))
                        threads[-1].start()

        threads = [threading.Thread(target=serve)]
        threads[0].start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}", seen
        finally:
            server.shutdown(socket.SHUT_RDWR)
            threads[0].join()
            for end in ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            for end in ends:
                end.close()


def test_after_very_much_a_connection_is_made_anew_and_nothing_is_missing(monkeypatch):
    monkeypatch.setattr(outgoing_connection, "MAX_SECURE_BYTES", 1 << 20)
    with pair() as (sender, target):
        connections = set()
        for number in range(100):
            sender.send(target.address, b"%03d" % number, bytes(50_000))
            if number % 7 == 0:
                time.sleep(0.005)
        for number in range(100):
            assert receive(target).header == b"%03d" % number
            connections |= {caller.socket.getpeername() for caller in target._callers}
        assert sender.told.empty()
        assert len(connections) >= 4


def test_what_waits_in_memory_of_a_connection_goes_over_that_one(monkeypatch):
    monkeypatch.setattr(outgoing_connection, "MAX_SECURE_BYTES", 55 << 20)
    cluster = LockedCluster(shares_memory=True)
    sender, target = cluster.open(), cluster.open()
    try:
        sender.connect(target.address)
        sender.send(target.address, b"first")
        assert receive(target).header == b"first"
        share_memory(sender, target)
        large, laid = 56 << 20, 100_000
        sizes = [large, large, *([laid] * 10)]
        for number, size in enumerate(sizes):
            sender.send(target.address, b"%02d" % number, np.full(size, number + 1, np.uint8).data)
        for number, size in enumerate(sizes):
            arrival = receive(target)
            sender.receive(0)
            assert arrival.header == b"%02d" % number
            assert (len(arrival.payload), int(arrival.payload[0]), int(arrival.payload[-1])) == (size, number + 1, number + 1)
        assert sender.told.empty()
    finally:
        sender.close()
        target.close()


def test_who_has_no_memory_for_a_message_hangs_up_and_goes_on(monkeypatch):
    with pair() as (sender, target):
        sender.send(target.address, b"first")
        assert receive(target).header == b"first"

        def no_memory(size, kind):
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(framing.np, "empty", no_memory)
            sender.send(target.address, b"large", bytes(1 << 20))
            until(lambda: target.receive(0) or not sender.told.empty())
        until(lambda: sender.send(target.address, b"next") or target.receive(0.01))


def test_an_idle_plane_sleeps():
    with pair() as (sender, target):
        sender.send(target.address, b"hello")
        assert receive(target).header == b"hello"
        before = time.thread_time(), time.process_time()
        select.select([], [], [], 0.5)
        assert time.process_time() - before[1] < 0.1
