"""Handshakes of the locked data plane: who is slow, ends or does not speak TLS is told of as what it is."""

import contextlib
import queue
import socket
import sys
import threading
import time

import pytest

from bbgrap.transport import outbox, outgoing_connection
from bbgrap.transport.framing import GREETING
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap.transport.tls import server_context
from tests.bbgrap.transport.check_transport import receive
from tests.bbgrap.transport.locked import LockedCluster, pair, port_of, told_until
from tests.waiting import until


@pytest.fixture(autouse=True)
def _quickly_told(monkeypatch):
    monkeypatch.setattr(outbox, "_CONNECT_S", 0.3)


def test_a_plain_plane_and_a_locked_one_say_what_is_wrong(caplog):
    locked = LockedCluster().open()
    plain = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1")
    locked.connect(plain.address, "ab" * 32)
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [plain.receive(0.02) for _ in iter(stop.is_set, True)])
    thread.start()
    assert "--insecure" in told_until(locked, "--insecure")
    stop.set()
    thread.join()
    told = queue.SimpleQueue()
    plain.on_broken = lambda *broken: told.put(broken)
    plain.connect(locked.address)
    plain.send(locked.address, b"hello", b"secret")
    deadline = time.monotonic() + 5
    while not any("it does not speak TLS 1.3" in record.message for record in caplog.records) and time.monotonic() < deadline:
        assert locked.receive(0.02) is None
    assert told.get(timeout=5)[0] == locked.address
    assert any("it does not speak TLS 1.3" in record.message for record in caplog.records)
    plain.close()
    locked.close()


def test_a_peer_that_ends_in_the_handshake_is_not_taken_for_one_without_tls(caplog):
    """Of every worker that died while it connected, others guessed that it did not speak TLS 1.3."""
    with contextlib.closing(LockedCluster().open()) as target:
        with socket.create_connection(("127.0.0.1", port_of(target)), 5) as connection:
            connection.sendall(bytes([22, 3, 1]))  # a ClientHello begins
        until(lambda: caplog.records)
    (record,) = caplog.records
    assert "data plane: the other side ended the connection in the handshake" in record.message
    assert "it does not speak" not in record.message


def test_of_a_host_that_has_spoken_tls_nobody_is_warned_that_it_ended_in_the_handshake(caplog):
    """Whenever an agent was stopped, its peers asked in their logs whether it had been started with --insecure."""
    with pair() as (sender, target):
        sender.send(target.address, b"hello")
        receive(target)
        for begun in (bytes([22, 3, 1]), b"no TLS at all"):
            with socket.create_connection(("127.0.0.1", port_of(target)), 5) as connection:
                connection.sendall(begun)
        until(lambda: caplog.records)
    assert ["does not speak TLS" in record.message for record in caplog.records] == [True]


def test_a_peer_that_is_busy_in_the_handshake_is_not_told_to_be_away_and_nothing_for_it_is_lost(monkeypatch):
    """Twenty agents that started at once on two cores took a second for it, and their links were said to be broken."""
    monkeypatch.setattr(outbox, "_CONNECT_S", 1.0)
    cluster = LockedCluster()
    sender, busy = cluster.open(), cluster.authority.identity("busy")
    with contextlib.closing(sender), socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        sender.connect(address, busy.fingerprint)
        sender.send(address, b"hello", b"first")
        raw, _ = listener.accept()
        time.sleep(1.5 * outbox._CONNECT_S)
        with server_context(busy).wrap_socket(raw, server_side=True) as connection:
            connection.sendall(GREETING)
            connection.settimeout(5)
            heard = b""
            while b"first" not in heard:
                heard += connection.recv(4096)
            assert sender.told.empty()  # while the connection stands: that it is closed is told, too


def test_a_peer_that_never_ends_the_handshake_is_told_of(monkeypatch):
    monkeypatch.setattr(outbox, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(outgoing_connection, "HANDSHAKE_S", 0.5)
    sender = LockedCluster().open()
    with contextlib.closing(sender), socket.create_server(("127.0.0.1", 0)) as listener:
        sender.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}", "ab" * 32)
        assert "the handshake was not over within 0.5 s" in sender.told.get(timeout=5)[1]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_how_far_it_is_to_a_peer_is_known_as_soon_as_it_takes_a_connection_though_the_handshake_goes_on():
    sender = LockedCluster().open()
    with contextlib.closing(sender), socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert sender.round_trip_s(address) == 0.0
        sender.connect(address, "ab" * 32)
        until(lambda: sender.round_trip_s(address) > 0)
        assert sender.round_trip_s(address) < 1
