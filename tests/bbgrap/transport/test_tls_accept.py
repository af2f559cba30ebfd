"""Who knocks at a locked data plane without being a peer: bounded in time, number, bytes and descriptors, and no peer notices."""

import contextlib
import json
import os
import random
import selectors
import socket
import ssl
import subprocess
import sys
import time

import psutil
import pytest

from bbgrap.transport import tls_accept
from bbgrap.transport.certificates import Authority
from bbgrap.transport.listener_filter import hear_only
from bbgrap.transport.tls import client_context
from tests.bbgrap.transport.check_transport import receive
from tests.bbgrap.transport.locked import LockedCluster
from tests.waiting import until

UNKNOWN = "127.0.0.66"
"""Another host, as far as the plane can tell."""


@contextlib.contextmanager
def knocked_at():
    """Open a plane with a peer that sends to it."""
    cluster = LockedCluster()
    sender, target = cluster.open(), cluster.open()
    sender.connect(target.address)
    sender.send(target.address, b"first")
    assert receive(target).header == b"first"
    try:
        yield sender, target
    finally:
        sender.close()
        target.close()


def knock(plane, host=UNKNOWN):
    return socket.create_connection(("127.0.0.1", int(plane.address.rpartition(":")[2])), 5, (host, 0))


def still_heard(sender, target):
    for number in range(20):
        sender.send(target.address, b"%d" % number, b"x" * 14_000)
        assert receive(target).header == b"%d" % number


def is_closed(connection, within_s=5.0):
    connection.settimeout(within_s)
    try:
        return connection.recv(1 << 16) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def client_hello():
    """Return the first bytes of a handshake."""
    sent = ssl.MemoryBIO()
    connection = client_context(Authority.make().identity("x")).wrap_bio(ssl.MemoryBIO(), sent)
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return sent.read()


def descriptors():
    return psutil.Process().num_fds()


def memory():
    return psutil.Process().memory_info().rss


@pytest.mark.parametrize("says", [b"", b"\x16", client_hello()[:100], client_hello()], ids=["nothing", "a byte", "half", "hello"])
def test_a_slow_handshake_ends(monkeypatch, says):
    monkeypatch.setattr(tls_accept, "HANDSHAKE_S", 0.2)
    with knocked_at() as (sender, target), knock(target) as stranger:
        stranger.sendall(says)
        began = time.monotonic()
        while not is_closed(stranger, 2.0):
            assert time.monotonic() - began < 4
        assert not target._acceptor._unfinished
        still_heard(sender, target)


def test_the_oldest_handshakes_make_room_and_those_of_hosts_of_peers_go_last(monkeypatch):
    monkeypatch.setattr(tls_accept, "MAX_UNFINISHED", 4)
    monkeypatch.setattr(tls_accept, "STRANGERS_PER_S", 100.0)
    with knocked_at() as (sender, target):
        known = [knock(target, "127.0.0.1") for _ in range(2)]
        time.sleep(0.05)
        strangers = [knock(target) for _ in range(6)]
        time.sleep(0.05)
        assert [is_closed(stranger, 0.1) for stranger in strangers] == [True] * 4 + [False] * 2
        more = [knock(target, "127.0.0.1") for _ in range(2)]
        time.sleep(0.05)
        assert [is_closed(stranger, 0.1) for stranger in (*known, *strangers[4:], *more)] == [False] * 2 + [True] * 2 + [False] * 2
        with knock(target) as late:
            assert is_closed(late)
        still_heard(sender, target)
        late_peer = client_context(sender.identity).wrap_socket(knock(target, "127.0.0.1"))
        assert len(late_peer.recv(8)) == 8, "a peer's handshake comes before the oldest of its host"
        for connection in (*known, *strangers, *more, late_peer):
            connection.close()


def test_many_strangers_cost_little_and_leave_nothing(caplog):
    with knocked_at() as (sender, target):
        before, used = descriptors(), time.process_time()
        for _ in range(5):
            strangers = []
            for _ in range(100):
                strangers.append(knock(target))
                with contextlib.suppress(OSError):
                    strangers[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
            still_heard(sender, target)
            for stranger in strangers:
                stranger.close()
        assert time.process_time() - used < 3, "this thread's knocking is in it"
        until(lambda: descriptors() <= before, 5)
        assert len(caplog.records) <= 2
        assert len(target._callers) == 1


class Exhausted:
    """A listener when no descriptor is left."""

    def __init__(self, listener):
        self.fileno = listener.fileno
        self.tries = 0

    def accept(self):
        self.tries += 1
        raise OSError(24, "Too many open files")


def test_without_descriptors_it_waits_and_goes_on():
    with knocked_at() as (sender, target):
        acceptor = target._acceptor
        listener, exhausted = acceptor._listener, Exhausted(acceptor._listener)

        def listen_with(now, then):
            acceptor._listener = then
            acceptor._selector.unregister(now)
            acceptor._selector.register(then, selectors.EVENT_READ)

        listen_with(listener, exhausted)
        with knock(target) as stranger:
            time.sleep(0.3)
            assert 2 < exhausted.tries < 50, "it would burn a core"
            listen_with(exhausted, listener)
            stranger.sendall(client_hello())
            assert stranger.recv(1) == b"\x16"
        still_heard(sender, target)


def test_unknown_hosts_get_few_handshakes_and_those_of_peers_do_not_wait_for_them():
    hello, answered = client_hello(), 0
    with knocked_at() as (_, target), selectors.DefaultSelector() as waiting, contextlib.ExitStack() as strangers:
        began = time.monotonic()
        for _ in range(100):
            stranger = strangers.enter_context(socket.socket())
            stranger.bind((UNKNOWN, 0))
            stranger.setblocking(False)
            stranger.connect_ex(("127.0.0.1", int(target.address.rpartition(":")[2])))
            waiting.register(stranger, selectors.EVENT_WRITE)
        while answered < 5 or time.monotonic() < began + 0.5:
            assert time.monotonic() < began + 10
            for key, events in waiting.select(0.1):
                with contextlib.suppress(OSError):
                    if events & selectors.EVENT_WRITE:
                        waiting.modify(key.fileobj, selectors.EVENT_READ)
                        key.fileobj.sendall(hello)
                        continue
                    answered += bool(key.fileobj.recv(1))
                waiting.unregister(key.fileobj)
        assert answered <= tls_accept.STRANGERS_PER_S * (1 + time.monotonic() - began)
        with knock(target, "127.0.0.1") as neighbour:
            neighbour.sendall(hello)
            assert neighbour.recv(1) == b"\x16"


@contextlib.contextmanager
def crowd(plane):
    """Knock from many hosts, in a process of its own."""
    at = plane.address.removeprefix("tcp://")
    command = [sys.executable, "-m", "benchmarks.connection_flood", "--manner", "hostile", "--connections", "512", "--at", at]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as knocking:
        try:
            while os.sched_getscheduler(knocking.pid) != os.SCHED_IDLE and knocking.poll() is None:
                time.sleep(0.01)  # until it begins; so humble it would hardly knock on a machine with other work
            os.sched_setscheduler(knocking.pid, os.SCHED_OTHER, os.sched_param(0))
            time.sleep(1.5)
            yield
        finally:
            said, _ = knocking.communicate()
    assert json.loads(said)["turned away"] > 20


@pytest.mark.faults
def test_a_crowd_does_not_keep_new_connections_of_known_hosts_out():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if not hear_only(listener, ()):
            pytest.skip("the system does not let this process filter (some want CAP_NET_ADMIN)")
    cluster = LockedCluster()
    target, *peers = (cluster.open() for _ in range(5))
    peers[0].connect(target.address)
    peers[0].send(target.address, b"before")
    assert receive(target).header == b"before"
    with crowd(target):
        for peer in peers[1:]:
            peer.connect(target.address)
            peer.send(target.address, b"meanwhile")
            assert receive(target, timeout_s=tls_accept._SHUT_OUT_S + 2).header == b"meanwhile"
    with knock(target) as stranger:
        time.sleep(tls_accept._SHUT_OUT_S)  # what is left of the crowd goes
        stranger.sendall(client_hello())
        assert stranger.recv(1) == b"\x16", "strangers are heard again"
    for plane in (target, *peers):
        plane.close()


def test_any_bytes_before_and_in_a_handshake_end_the_connection_and_take_no_memory(monkeypatch):
    monkeypatch.setattr(tls_accept, "STRANGERS_PER_S", 1e6)
    monkeypatch.setattr(tls_accept, "HANDSHAKE_S", 0.5)
    chance, hello = random.Random(0), client_hello()
    endless = b"\x16\x03\x01\x40\x00\x01\x02\x00\x00" + bytes(16_380)  # a ClientHello that says it has 128 KiB
    with knocked_at() as (sender, target):
        before = memory()
        for number in range(150):
            with knock(target) as stranger:
                match number % 5:
                    case 0:
                        content = chance.randbytes(chance.randrange(1, 2000))
                    case 1:
                        content = hello[: chance.randrange(len(hello))] + chance.randbytes(50)
                    case 2:
                        place = chance.randrange(len(hello))
                        content = hello[:place] + bytes([chance.randrange(256)]) + hello[place + 1 :]
                    case 3:
                        content = hello + chance.randbytes(3000)
                    case _:
                        content = endless * 20
                with contextlib.suppress(OSError):
                    stranger.sendall(content)
        still_heard(sender, target)
        until(lambda: not target._acceptor._unfinished, 5)
        assert len(target._callers) == 1
        assert memory() - before < 32 << 20


def test_more_than_a_handshake_needs_is_not_read():
    with knocked_at() as (sender, target), knock(target) as stranger:
        # Records of a handshake message that never ends: OpenSSL alone would keep 128 KiB of it.
        begun = b"\x16\x03\x01\x40\x00" + b"\x01\x01\xff\xff" + bytes(16_380)
        record = b"\x16\x03\x01\x40\x00" + bytes(16_384)
        with contextlib.suppress(OSError):
            stranger.sendall(begun)
            for _ in range(20):
                stranger.sendall(record)
                time.sleep(0.01)
        assert is_closed(stranger)
        still_heard(sender, target)


def test_hosts_at_which_peers_were_make_room_for_those_of_others():
    with knocked_at() as (sender, target):
        target._acceptor._hosts.update(f"10.0.{number >> 8}.{number & 255}" for number in range(2 * tls_accept.MAX_HOSTS))
        target._acceptor._hosts.discard("127.0.0.1")
        with client_context(sender.identity).wrap_socket(knock(target)) as late_peer:
            assert len(late_peer.recv(8)) == 8
            until(lambda: target._acceptor._hosts == {UNKNOWN}, 5)
        still_heard(sender, target)
