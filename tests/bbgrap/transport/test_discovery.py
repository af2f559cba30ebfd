"""Coordinators are found on the loopback interface, by real multicast; each test has a service of its own."""

import secrets
import sys
import threading
from contextlib import ExitStack

import pytest
import zmq

from bbgrap.errors import AccessError, ClusterUnavailableError, UsageError
from bbgrap.protocol.tokens import Role, Token
from bbgrap.transport import discovery
from bbgrap.transport.control_server import ControlServer
from bbgrap.transport.discovery import announce, discover
from bbgrap.transport.locks import ClientLock, KeyPair, ServerLock, no_lock

SHORT_S = 1.0


@pytest.fixture(autouse=True)
def service(monkeypatch):
    monkeypatch.setattr(discovery, "SERVICE", f"_bb{secrets.token_hex(4)}._tcp.local.")


@pytest.fixture
def listening():
    """Starts coordinators' control ports that announce themselves; returns address and what was asked of each."""
    with ExitStack() as stack:

        def start(pair=None):
            context = zmq.Context()
            stack.callback(context.term)
            asked = []
            server = ControlServer(context, "tcp://127.0.0.1:0", pair and ServerLock(pair, lambda key: asked.append(key) or True))
            stack.callback(server.close)
            stack.enter_context(announce(server.address))
            return server, asked

        yield start


def lock_for(pair):
    return ClientLock.of(Token(Role.AGENT, pair.public, KeyPair.make().secret), "the token")


def test_of_all_who_announce_themselves_the_one_with_the_key_is_taken(listening):
    true, stranger = KeyPair.make(), KeyPair.make()
    _, asked = listening(stranger)
    server, _ = listening(true)
    assert discover(lambda _: lock_for(true)) == server.address
    assert asked == [], "the stranger was shown a key"
    assert not [thread for thread in threading.enumerate() if "ServiceBrowser" in thread.name], "it still looks for coordinators"


@pytest.mark.broad
def test_a_stranger_is_never_taken(listening):
    server, asked = listening(KeyPair.make())
    with pytest.raises(AccessError, match=f"what announces itself at {server.address} is not the coordinator that the token"):
        discover(lambda _: lock_for(KeyPair.make()), SHORT_S)
    assert asked == []
    assert server.receive() is None


@pytest.mark.broad
def test_a_coordinator_without_a_lock_is_not_taken_by_who_has_keys(listening):
    listening()
    with pytest.raises(AccessError, match="is not the coordinator"):
        discover(lambda _: lock_for(KeyPair.make()), SHORT_S)


@pytest.mark.broad
def test_without_locks_there_must_be_one_only(listening):
    server, _ = listening()
    assert discover(lambda _: no_lock(), SHORT_S) == server.address
    listening()
    with pytest.raises(UsageError, match="there are several"):
        discover(lambda _: no_lock(), SHORT_S)


@pytest.mark.broad
def test_nobody_announces_itself():
    with pytest.raises(ClusterUnavailableError, match="no coordinator announces itself"):
        discover(lambda _: no_lock(), 0.3)


@pytest.mark.broad
def test_without_a_token_the_want_of_one_is_said(listening):
    listening(KeyPair.make())

    def nothing(address):
        raise AccessError(f"{address} wants a token")

    with pytest.raises(AccessError, match="wants a token"):
        discover(nothing, SHORT_S)


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    with pytest.raises(UsageError, match=r"pip install 'bbgrap\[mdns\]'"):
        discover(lambda _: no_lock())
