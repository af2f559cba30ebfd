"""Who comes in by a control port: the check of keys, and the listener that is shut while too many wait."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from bbgrap.errors import UsageError
from bbgrap.transport import admission
from bbgrap.transport.admission import REFUSED_AT_ONCE, REFUSED_PER_S, KeyCheck, ThrottledListener, answer
from bbgrap.transport.control_client import ControlClient
from bbgrap.transport.control_server import ControlServer
from bbgrap.transport.locks import ClientLock, KeyPair, ServerLock

OWN, KNOWN = KeyPair.of(bytes(range(32))), KeyPair.of(bytes(range(1, 33)))
LOCK = ClientLock(OWN.public, KNOWN, "test")


def is_known(key):
    return key == KNOWN.public


def question(key=KNOWN.public, mechanism=b"CURVE"):
    return [b"1.0", b"7", b"", b"127.0.0.1", b"", mechanism, key]


def test_a_known_key_becomes_the_user():
    assert answer(question(), is_known) == [b"1.0", b"7", b"200", b"OK", z85.encode(KNOWN.public), b""]


@pytest.mark.parametrize("asked", [question(OWN.public), question(mechanism=b"NULL"), question(b""), question()[:6], [], [b"x"] * 40])
def test_everything_else_is_refused(asked):
    status = answer(asked, is_known)
    assert len(status) == 6
    assert status[2] == b"400"


def test_what_was_started_ends_with_the_server(capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken, zmq.Context() as context:
        for _ in range(3):
            check = KeyCheck(context, is_known)
            check.stop()
            assert not check._thread.is_alive()
            with pytest.raises(UsageError, match="in use"):
                ControlServer(context, f"tcp://127.0.0.1:{taken.getsockname()[1]}", ServerLock(OWN, is_known))
    assert capfd.readouterr().err == ""


def test_a_listener_that_is_shut_lets_nobody_new_in(monkeypatch):
    count = 0
    monkeypatch.setattr(admission, "_open_now", lambda: count)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        throttled = ThrottledListener(listener.fileno())
        place = listener.getsockname()
        with socket.create_connection(place, 1) as before:
            there, _ = listener.accept()
            count = 1 << 30
            throttled.throttle()
            before.send(b"still")
            assert there.recv(10) == b"still"
            with pytest.raises(TimeoutError):
                socket.create_connection(place, 0.3)
            count = 0
            throttled.throttle()
            socket.create_connection(place, 3).close()
            there.close()


def test_a_listener_is_shut_while_too_many_keys_are_wrong():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        throttled = ThrottledListener(listener.fileno())
        place = listener.getsockname()
        throttled.throttle(REFUSED_AT_ONCE - 1)
        socket.create_connection(place, 1).close()
        throttled.throttle(REFUSED_AT_ONCE + 0.4 * REFUSED_PER_S)
        with pytest.raises(TimeoutError):
            socket.create_connection(place, 0.2)
        until = time.monotonic() + 5
        while True:
            throttled.throttle(REFUSED_AT_ONCE + 0.4 * REFUSED_PER_S)
            try:
                socket.create_connection(place, 0.1).close()
                break
            except TimeoutError:
                assert time.monotonic() < until


def test_that_the_system_grants_few_descriptors_is_not_laid_to_strangers(monkeypatch, caplog):
    """With `ulimit -n 64` the second node of a cluster was not let in, `until strangers have gone`."""
    few, many = "bbgrap.transport.admission.granted_descriptors", "bbgrap.transport.admission._open_now"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for granted, said in (
            (64, "33 descriptors are open, files and connections: new connections wait until there are 32 at most"),
            (1 << 20, ""),
        ):
            monkeypatch.setattr(few, lambda granted=granted: granted)
            monkeypatch.setattr(many, lambda granted=granted: 33 if granted == 64 else 8193)
            caplog.clear()
            throttled = ThrottledListener(listener.fileno())
            throttled.throttle()
            assert said in caplog.messages[-1]
            assert "strangers" not in caplog.messages[-1]
            assert ("(ulimit -Hn)" in caplog.messages[-1]) == (granted == 64)


SERVER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import zmq
from bbgrap.transport.control_server import ControlServer
from bbgrap.transport.locks import KeyPair, ServerLock
known = KeyPair.of(bytes(range(1, 33))).public
with zmq.Context() as context:
    server = ControlServer(context, "tcp://127.0.0.1:0", ServerLock(KeyPair.of(bytes(range(32))), lambda key: key == known))
    print(server.address, flush=True)
    while True:
        server.socket.poll(20)
        server.throttle()
        while (received := server.receive()) is not None:
            open("/dev/null").close()
            server.send(*received)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="shutting a listener needs Linux")
def test_with_few_descriptors_strangers_leave_some():
    """A server that may have 256 of them goes on with its files and its known client, while 400 strangers hold on to theirs."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        strangers = []
        try:
            address = process.stdout.readline().decode().strip()
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            with zmq.Context() as context, ControlClient(context, address, lambda: LOCK) as client:
                for number in range(400):
                    stranger = socket.socket()
                    stranger.setblocking(False)
                    stranger.connect_ex((host, int(port)))
                    strangers.append(stranger)
                    time.sleep(0.002)
                    if number % 50 == 0:
                        client.send([b"hello"])
                        assert client.socket.poll(5000)
                        assert client.receive() is not None
                assert process.poll() is None
                assert 64 < len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 240
        finally:
            for stranger in strangers:
                stranger.close()
            process.kill()
