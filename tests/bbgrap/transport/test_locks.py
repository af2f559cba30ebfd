"""Control connections with keys: who has one is known by it, and who has none gets nothing."""

import queue
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
import zmq

from bbgrap.errors import AccessError
from bbgrap.protocol.tokens import Token
from bbgrap.transport.control_client import ControlClient
from bbgrap.transport.control_server import ControlServer, key_of
from bbgrap.transport.control_sockets import HANDSHAKE_S, SESSION_BYTES
from bbgrap.transport.locks import NOBODY, ClientLock, KeyPair, ServerLock
from tests.waiting import until

WAIT_S = 10


class House:
    """A locked server, and the keys it knows."""

    def __init__(self):
        self.context, self.own, self.known = zmq.Context(), KeyPair.make(), set()
        self.server = ControlServer(self.context, "tcp://127.0.0.1:0", ServerLock(self.own, self.known.__contains__))
        self.clients = []

    def client(self, pair=None, server_key=None, *, known=True):
        pair = pair or KeyPair.make()
        if known:
            self.known.add(pair.public)
        return self.connect(lambda: ClientLock(server_key or self.own.public, pair, "a test")), pair

    def connect(self, find_lock):
        self.clients.append(ControlClient(self.context, self.server.address, find_lock))
        return self.clients[-1]

    def close(self):
        for client in self.clients:
            client.close()
        self.server.close()
        self.context.term()


@pytest.fixture
def house():
    house = House()
    yield house
    house.close()


def plain(frames):
    return [bytes(frame) for frame in frames]


def test_a_peer_is_its_key_and_the_number_it_gave_itself(house):
    client, pair = house.client()
    client.send([b"hello", bytes(3_000_000)])
    identity, frames = until(house.server.receive)
    assert plain(frames) == [b"hello", bytes(3_000_000)]
    assert key_of(identity) == pair.public
    assert len(identity) == len(NOBODY) + SESSION_BYTES
    assert house.server.send(identity, [b"answer", bytes(2_500_000)])
    assert plain(until(client.receive)) == [b"answer", bytes(2_500_000)]
    client.reopen()
    client.send([b"again"])
    assert until(house.server.receive)[0] == identity


def test_a_connection_keeps_its_keys_while_none_are_found(house):
    """The token of a coordinator on this machine goes with it."""
    client, pair = house.client()
    there = client._find_lock

    def gone():
        raise AccessError("there is no token")

    client._find_lock = gone
    client.reopen()
    assert not client.has_new_lock()
    client.send([b"I"])
    assert key_of(until(house.server.receive)[0]) == pair.public
    client._find_lock = there
    assert not client.has_new_lock()


def test_nobody_speaks_or_hears_under_the_key_of_another(house):
    victim, _ = house.client()
    victim.send([b"I"])
    identity, _ = until(house.server.receive)
    thief, pair = house.client()
    thief._session = victim._session
    thief.send([b"you"])
    stolen, _ = until(house.server.receive)
    assert stolen != identity
    assert key_of(stolen) == pair.public
    house.server.send(identity, [b"for I"])
    assert plain(until(victim.receive)) == [b"for I"]
    assert thief.receive() is None


def test_a_key_that_is_not_known_is_told_so(house):
    client, _ = house.client(known=False)
    client.send([b"let me in"])
    assert "does not know the key of a test" in until(lambda: client.refused)
    assert house.server.receive() is None


def test_the_key_of_another_coordinator_is_told_so_and_nothing_is_sent(house):
    client, _ = house.client(server_key=KeyPair.make().public)
    client.send([b"secret"])
    assert "is not the one that a test is for" in until(lambda: client.refused)
    assert house.server.receive() is None


def test_without_a_key_one_is_told_to_get_one(house):
    client = house.connect(lambda: None)
    client.send([b"hello"])
    assert "is locked: leave out --insecure" in until(lambda: client.refused)
    assert house.server.receive() is None


def test_with_a_key_an_open_coordinator_gets_nothing(house):
    server = ControlServer(house.context, "tcp://127.0.0.1:0")
    client = ControlClient(house.context, server.address, lambda: ClientLock(house.own.public, KeyPair.make(), "a test"))
    client.send([b"secret"])
    assert "has no lock: it runs with --insecure" in until(lambda: client.refused)
    assert server.receive() is None
    client.close()
    server.close()


def test_a_key_that_is_taken_back_loses_its_connections_and_finds_out_why(house):
    client, pair = house.client()
    other, _ = house.client()
    for each in (client, other):
        each.send([b"hello"])
        until(house.server.receive)
    assert house.server.connections(pair.public) == 1
    house.known.remove(pair.public)
    house.server.disconnect(pair.public, [b"farewell"])
    assert plain(until(client.receive)) == [b"farewell"]
    house.server.end_connections()
    assert "was revoked" in until(lambda: client.refused)
    assert house.server.connections(pair.public) == 0
    client.send([b"still here"])
    other.send([b"me, too"])
    assert plain(until(house.server.receive)[1]) == [b"me, too"]


def test_a_token_that_was_replaced_is_taken_at_the_next_connection(house):
    first, second = KeyPair.make(), KeyPair.make()
    house.known.add(second.public)
    keys = [first]
    client = house.connect(lambda: ClientLock(house.own.public, keys[0], "a test"))
    until(lambda: client.refused)
    assert not client.has_new_lock()
    keys[0] = second
    assert client.has_new_lock()
    client.reopen()
    client.send([b"hello"])
    assert key_of(until(house.server.receive)[0]) == second.public


@pytest.mark.faults
def test_strangers_who_say_nothing_or_much_do_not_stay(house):
    port = int(house.server.address.rpartition(":")[2])
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    for number, stranger in enumerate(strangers):
        stranger.settimeout(WAIT_S)
        stranger.sendall(b"\xff" + bytes(8) + b"\x7f" if number % 2 else b"")
    client, _ = house.client()
    client.send([b"hello"])
    assert plain(until(house.server.receive)[1]) == [b"hello"]
    began = time.monotonic()
    for stranger in strangers:
        while stranger.recv(100):
            pass
        stranger.close()
    assert time.monotonic() - began < HANDSHAKE_S + WAIT_S


@pytest.mark.faults
def test_a_handshake_ends_over_a_satellite(house):
    """It takes four round trips, of 0.6 s each, and had 2 s: no node came from there, though all packets arrived."""
    pair = KeyPair.make()
    house.known.add(pair.public)
    with far_away(int(house.server.address.rpartition(":")[2]), 0.29) as port:
        house.clients.append(ControlClient(house.context, f"tcp://127.0.0.1:{port}", lambda: ClientLock(house.own.public, pair, "a test")))
        house.clients[0].send([b"hello"])
        assert plain(until(house.server.receive, 10)[1]) == [b"hello"]


@contextmanager
def far_away(port, one_way_s):
    """A port whose connections go to another one, and take so long each way."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_carry_all, args=(listener, port, one_way_s), daemon=True).start()
        yield listener.getsockname()[1]


def _carry_all(listener, port, one_way_s):
    with suppress(OSError):
        while True:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for source, target in ((near, far), (far, near)):
                way = queue.SimpleQueue()
                threading.Thread(target=_take, args=(source, way, one_way_s), daemon=True).start()
                threading.Thread(target=_bring, args=(way, target), daemon=True).start()


def _take(source, way, one_way_s):
    content = b"?"
    while content:
        try:
            content = source.recv(1 << 16)
        except OSError:
            content = b""
        way.put((time.monotonic() + one_way_s, content))


def _bring(way, target):
    with target, suppress(OSError):
        while True:
            due, content = way.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not content:
                return
            target.sendall(content)


def test_a_token_s_keys_are_those_of_its_text(house):
    token = Token.parse(Token(role=_role(), server=house.own.public, secret=(pair := KeyPair.make()).secret).text, "a test")
    house.known.add(pair.public)
    client = house.connect(lambda: ClientLock.of(token, "a test"))
    client.send([b"hello"])
    assert key_of(until(house.server.receive)[0]) == pair.public
    assert pair.secret.hex() not in repr(ClientLock.of(token, "a test"))
    assert str(pair.secret) not in repr(token)


def _role():
    from bbgrap.protocol.tokens import Role

    return Role.CLIENT
