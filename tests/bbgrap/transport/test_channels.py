"""Many channels at one coordinator: everyone has its own, and strangers keep nobody out."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import time

import pytest

from bbgrap.transport.channel import MAX_CHANNELS, Channels, open_channel
from bbgrap.transport.shared_memory import TOKEN_BYTES, is_possible

pytestmark = pytest.mark.skipif(not is_possible(), reason="this system has no sealed memory")

ME = bytes(range(TOKEN_BYTES))


@pytest.fixture
def close_later():
    """Something that closes what is given to it when the test is over, and returns it."""
    with contextlib.ExitStack() as stack:

        def keep(what):
            stack.callback(what.close)
            return what

        yield keep


def plain(frames):
    return None if frames is None else [bytes(frame) for frame in frames]


@pytest.fixture
def many(close_later):
    return close_later(Channels())


@pytest.fixture
def client_of(many, close_later):
    return lambda identity: close_later(open_channel(many.invite(identity)))


@pytest.fixture
def stranger_of(many, close_later):
    def connect():
        connection = close_later(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connection.connect(f"\0{many._name}")
        return connection

    return connect


def test_every_client_has_its_own(many, client_of):
    clients = {bytes([n]) * TOKEN_BYTES: client_of(bytes([n]) * TOKEN_BYTES) for n in range(3)}
    assert many.receive() is None
    for identity, client in clients.items():
        assert client.send([identity, identity * 2000])
    came = [many.receive() for _ in clients]
    assert sorted((identity, bytes(frames[0])) for identity, frames in came) == [(identity, identity) for identity in sorted(clients)]
    for identity in clients:
        assert many.send(identity, [identity])
    for identity, client in clients.items():
        assert plain(client.receive()) == [identity]
    assert not many.send(ME, [b"nobody"])


def test_a_new_one_replaces_the_old_one(many, client_of):
    old, _ = client_of(ME), many.receive()
    new, _ = client_of(ME), many.receive()
    assert many.send(ME, [b"hi"])
    assert plain(new.receive()) == [b"hi"]
    with pytest.raises(ConnectionError):
        old.receive()
    old.close()
    assert many.receive() is None
    assert many.send(ME, [b"still"])


def test_strangers_keep_nobody_out(many, client_of, stranger_of):
    strangers = [stranger_of() for _ in range(3 * MAX_CHANNELS)]
    for seed, connection in enumerate(strangers):
        connection.send(random.Random(seed).randbytes(40))
    for _ in range(MAX_CHANNELS):
        stranger_of()
    client = client_of(ME)
    for _ in range(5):
        many.listen_again()  # as some times a second
        assert many.receive() is None
    assert client.send([b"here"])
    identity, frames = many.receive()
    assert (identity, plain(frames)) == (ME, [b"here"])


def test_the_last_place_is_the_last(many, client_of):
    clients = [client_of(bytes([n]) * TOKEN_BYTES) for n in range(MAX_CHANNELS + 1)]
    assert many.receive() is None
    ready = [client for client in clients if client.send([b"here"])]
    assert len(ready) == MAX_CHANNELS
    assert [plain(many.receive()[1]) for _ in ready] == [[b"here"]] * MAX_CHANNELS
    ready[0].close()
    assert many.receive() is None
    late = client_of(ME)
    assert many.receive() is None
    assert late.send([b"here"])


KNOCK = """
import os, socket, sys, time
os.setuid(int(sys.argv[2]))
print("here", flush=True)
while True:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as knocking:
        knocking.setblocking(False)
        knocking.connect_ex("\\0" + sys.argv[1])
"""


@pytest.mark.parametrize("user", [os.geteuid(), pytest.param(65534, marks=pytest.mark.skipif(os.geteuid() != 0, reason="other users"))])
def test_a_crowd_keeps_nobody_out_and_the_caller_not_in(many, client_of, user, caplog):
    command = [sys.executable, "-c", KNOCK, many._name, str(user)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as crowd:
        try:
            assert crowd.stdout.readline() == b"here\n"
            began, calls, came = time.monotonic(), 0, []
            while time.monotonic() < began + 0.5:
                came.append(many.receive())
                calls += 1
                time.sleep(0.001)
                if calls % 50 == 0:
                    many.listen_again()
        finally:
            crowd.kill()
    assert calls > 30, "it was held for seconds in one call"
    assert not any(came)
    assert len(caplog.records) <= 1
    for _ in range(40):  # those that wait still
        many.listen_again()
        many.receive()
    client = client_of(ME)
    many.listen_again()
    assert many.receive() is None
    assert client.send([b"hello"])
    assert plain(many.receive()[1]) == [b"hello"]
