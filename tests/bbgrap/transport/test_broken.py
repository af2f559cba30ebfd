"""What happens when connections of the data plane break: nothing is missing that was not told of."""

import contextlib
import queue
import socket
import struct
import threading
import time

import pytest

from bbgrap.transport import host_names, outbox
from bbgrap.transport.framing import GREETING, frame_head
from bbgrap.transport.tcp import TcpDataPlane
from tests.bbgrap.transport.check_transport import receive
from tests.waiting import until


@contextlib.contextmanager
def sending(address):
    """Open a data plane that is connected to an address; also give the queue of what it says is broken."""
    plane, told = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1"), queue.SimpleQueue()
    plane.on_broken = lambda *broken: told.put(broken)
    plane.connect(address)
    try:
        yield plane, told
    finally:
        plane.close()


def address_of(server):
    return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def reset(connection):
    """Break a connection as a machine does that knows nothing of it any more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def messages(stream, count):
    """Read the headers of small messages without payload."""
    assert stream.read(8) == GREETING
    return [stream.read(8 + 4)[8:] for _ in range(count)]


def test_messages_that_a_broken_connection_has_swallowed_are_told_of_before_later_ones_come():
    with socket.create_server(("127.0.0.1", 0)) as server, sending(address_of(server)) as (plane, told):
        first, _ = server.accept()
        assert first.recv(8) == GREETING
        for number in (1, 2, 3):
            plane.send(address_of(server), b"%04d" % number)
        assert first.recv(12, socket.MSG_WAITALL) == frame_head(b"0001", 0)
        reset(first)  # 2 and 3 are here, and nobody will read them
        address, reason = told.get(timeout=5)
        assert (address, reason) == (address_of(server), "Connection reset by peer")
        plane.send(address, b"0004")
        second, _ = server.accept()
        with second, second.makefile("rb") as stream:
            assert messages(stream, 1) == [b"0004"]
        assert told.get(timeout=5)[1] == "the other side closed the connection"


def test_without_being_told_of_a_break_everything_comes():
    """Whatever is sent while connections break: a gap in what arrives is never found before it was told."""
    with socket.create_server(("127.0.0.1", 0)) as server, sending(address_of(server)) as (plane, told):
        gaps = number = breaks = 0
        for _ in range(20):
            connection, _ = server.accept()
            with connection.makefile("rb") as stream:
                for _ in range(30):
                    number += 1
                    plane.send(address_of(server), b"%04d" % number)
                came = [int(header) for header in messages(stream, 10)]
                assert came == list(range(came[0], came[0] + 10))
                gaps += came[0] > number - 29
            reset(connection)
            told.get(timeout=5)
            breaks += 1
        assert gaps <= breaks


def test_what_waits_for_a_broken_connection_is_forgotten():
    with socket.create_server(("127.0.0.1", 0)) as server, sending(address_of(server)) as (plane, told):
        first, _ = server.accept()
        assert first.recv(8) == GREETING
        plane.send(address_of(server), b"big", bytes(30 << 20))
        assert first.recv(8 + 3, socket.MSG_WAITALL) == frame_head(b"big", 30 << 20, cut=True)
        plane.send(address_of(server), b"next", b"!")
        first.close()
        assert told.get(timeout=5)[0] == address_of(server)
        plane.send(address_of(server), b"late")
        second, _ = server.accept()
        with second, second.makefile("rb") as stream:
            assert messages(stream, 1) == [b"late"]


def test_a_connection_that_has_carried_nothing_breaks_in_silence():
    with socket.create_server(("127.0.0.1", 0)) as server, sending(address_of(server)) as (plane, told):
        for _ in range(3):
            connection, _ = server.accept()
            assert connection.recv(8) == GREETING
            reset(connection)
        connection, _ = server.accept()
        plane.send(address_of(server), b"0001")
        with connection, connection.makefile("rb") as stream:
            assert messages(stream, 1) == [b"0001"]
            assert told.empty()


def test_an_address_where_nobody_listens_is_told_of_after_a_second_and_not_all_the_time():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = address_of(server)
    began = time.monotonic()
    with sending(address) as (plane, told):
        plane.send(address, b"lost")
        assert told.get(timeout=5) == (address, "no connection can be made: Connection refused")
        assert time.monotonic() - began > 0.9
        plane.send(address, b"kept")
        with pytest.raises(queue.Empty):
            told.get(timeout=1.5)
        target = TcpDataPlane(address, "127.0.0.1")
        assert receive(target).header == b"kept"
        target.close()


def test_who_was_there_for_a_moment_only_is_told_of_anew():
    with socket.create_server(("127.0.0.1", 0)) as server, sending(address_of(server)) as (plane, told):
        connection, _ = server.accept()
        plane.send(address_of(server), b"0001")
        assert len(connection.recv(20, socket.MSG_WAITALL)) == 20
        connection.close()
        server.close()
        assert told.get(timeout=5)[1] == "the other side closed the connection"
        assert "no connection can be made" in told.get(timeout=5)[1]


def test_who_takes_nothing_does_not_take_all_memory():
    block = bytes(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as server, sending(address_of(server)) as (plane, told):
        connection, _ = server.accept()
        for _ in range(200):
            plane.send(address_of(server), b"block", block)
        address, reason = told.get(timeout=5)
        assert address == address_of(server)
        assert "64 MiB wait" in reason
        assert sum(receiver.waiting for receiver in plane._outbox._outgoing.values()) <= 140 << 20
        connection.close()


def test_who_is_not_there_does_not_take_all_memory_either(monkeypatch):
    monkeypatch.setattr(outbox, "_CONNECT_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = address_of(server)
    block = bytes(1 << 20)
    with sending(address) as (plane, told):
        for _ in range(100):
            plane.send(address, b"block", block)
        assert "64 MiB wait" in told.get(timeout=5)[1]


def test_a_few_messages_may_be_as_large_as_they_like():
    block = bytes(40 << 20)
    target = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1")
    with sending(target.address) as (plane, told):
        for _ in range(4):
            plane.send(target.address, b"huge", block)
        for _ in range(4):
            assert len(receive(target, timeout_s=20).payload) == len(block)
        assert told.empty()
    target.close()


def test_a_slow_name_server_holds_up_nobody_else(monkeypatch):
    real, ends = host_names._find, threading.Event()

    def slow(host, port, flags):
        if host == "slow.invalid" and not flags:
            ends.wait(10)
            raise socket.gaierror("no such host")
        return real(host, port, flags)

    monkeypatch.setattr(host_names, "_find", slow)
    target = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1")
    with sending("tcp://slow.invalid:1") as (plane, told):
        time.sleep(0.1)
        began = time.monotonic()
        plane.connect(target.address)
        plane.send(target.address, b"quick")
        assert receive(target).header == b"quick"
        assert time.monotonic() - began < 2
        address, reason = told.get(timeout=3)
        assert address == "tcp://slow.invalid:1"
        assert "its name 'slow.invalid' is still being looked up" in reason
    target.close()
    ends.set()
    for thread in [thread for thread in threading.enumerate() if thread.name == "names"]:
        thread.join(10)  # else it looks names up in the tests after this one


def test_names_are_found_and_what_has_none_is_told_of():
    target = TcpDataPlane("tcp://127.0.0.1:0", "localhost")
    with sending(target.address) as (plane, told):
        plane.send(target.address, b"hello")
        assert receive(target).header == b"hello"
        for bad in (
            "tcp://nobody.invalid:1",
            "tcp://" + "x" * 300 + ":1",
            "tcp://127.0.0.1:99999999999999999999",
            "tcp://here:there",
            "junk",
        ):
            plane.connect(bad)
        assert {told.get(timeout=10)[0] for _ in range(5)} == set(plane._outbox._outgoing) - {target.address}
    target.close()


def test_a_name_that_is_found_while_it_is_asked_for_is_used_at_once(monkeypatch):
    real = host_names.NameResolver.look_up

    def interrupted(self, host, port):
        place = real(self, host, port)
        time.sleep(0.3)  # the answer comes meanwhile
        return place

    monkeypatch.setattr(host_names.NameResolver, "look_up", interrupted)
    target = TcpDataPlane("tcp://127.0.0.1:0", "localhost")
    with sending(target.address) as (plane, told):
        plane.send(target.address, b"hello")
        assert receive(target).header == b"hello"
        assert told.empty()
    target.close()


@pytest.mark.faults
def test_who_computes_and_does_not_read_is_not_called_broken():
    """Small messages and large ones, more than the system takes for it: for 3 s it acknowledges nothing new, and all is well."""
    for size, computes in ((100, False), (200_000, False), (200_000, True)):
        target = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1", computes=computes)
        with sending(target.address) as (plane, told):
            began, sent = time.monotonic(), 0
            while time.monotonic() < began + 3:
                if sum(receiver.waiting for receiver in plane._outbox._outgoing.values()) < 10 << 20:
                    plane.send(target.address, b"%06d" % sent, bytes(size))
                    sent += 1
                time.sleep(0.0001)
            assert told.empty()
            for number in range(sent):
                assert receive(target).header == b"%06d" % number
            assert told.empty()
        target.close()


def test_an_idle_data_plane_sleeps():
    target = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1")
    with sending(target.address) as (plane, _):
        plane.send(target.address, b"hello")
        assert receive(target).header == b"hello"
        until(lambda: not plane._outbox._looking, 20)
        assert plane._outbox._due(time.monotonic()) == [], "nothing wakes the writer thread"
    target.close()
