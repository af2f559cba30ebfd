"""Hosts that have several addresses: whoever listens at one of them is found, and nobody waits for a name server."""

import socket
import sys
import threading

import pytest
import zmq

from bbgrap.transport.control_client import ControlClient
from bbgrap.transport.control_server import ControlServer
from bbgrap.transport.host_names import HostAddresses
from tests.waiting import until


@pytest.fixture
def hosts(monkeypatch):
    """What `localhost`, or `six.invalid`, is said to be, for everybody but ZeroMQ."""
    found = ["127.0.0.1", "127.0.0.1", "127.0.0.5"]

    def look_up(host, port, *_, **__):
        assert host in ("localhost", "six.invalid")
        if not found:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in found]
        return [(family, socket.SOCK_STREAM, 6, "", (each, port)) for family, each in zip(families, found, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


def failing(addresses, times):
    """Where it goes when nobody takes connections anywhere."""
    gone = []
    while len(gone) < times:
        addresses.failed(addresses.current)
        until(addresses.move_on, 5)
        gone.append(addresses.current)
    return gone


def test_all_addresses_of_a_name_take_turns_and_the_name_is_looked_up_anew(hosts):
    addresses = HostAddresses("tcp://localhost:7")
    assert addresses.current == "tcp://localhost:7"
    assert failing(addresses, 3) == ["tcp://127.0.0.1:7", "tcp://127.0.0.5:7", "tcp://localhost:7"]
    hosts[:] = ["127.0.0.6", "127.0.0.7"]
    assert failing(addresses, 1) == ["tcp://127.0.0.6:7"]
    addresses.failed(addresses.current)
    addresses.succeeded()
    assert not addresses.move_on()


def test_one_that_was_left_fails_late_and_the_next_one_stays(hosts):
    """Its last attempt ended when the next one was connected already, which was left, too: of 40 clients of such a host 13 found nobody."""
    addresses = HostAddresses("tcp://localhost:7")
    assert failing(addresses, 2) == ["tcp://127.0.0.1:7", "tcp://127.0.0.5:7"]
    for late in ("tcp://127.0.0.1:7", "tcp://localhost:7"):
        addresses.failed(late)
    assert not addresses.move_on()
    assert failing(addresses, 1) == ["tcp://localhost:7"]


def test_addresses_of_ipv6_come_last(hosts):
    hosts[:] = ["fd00::7", "127.0.0.1"]
    assert failing(HostAddresses("tcp://localhost:7"), 3) == ["tcp://127.0.0.1:7", "tcp://[fd00::7]:7", "tcp://localhost:7"]


@pytest.mark.parametrize("found", [[], ["127.0.0.1"]])
def test_a_name_with_one_address_or_none_stays(hosts, found):
    hosts[:] = found
    addresses = HostAddresses("tcp://localhost:7")
    addresses.failed(addresses.current)
    until(lambda: not addresses._found.empty())
    assert not addresses.move_on()
    hosts[:] = ["127.0.0.1", "127.0.0.5"]  # until it has more
    assert failing(addresses, 1) == ["tcp://127.0.0.1:7"]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:7", "tcp://[::1]:7", "tcp://[fe80::1%lo]:7"])
def test_numeric_addresses_are_not_looked_up(hosts, address):
    addresses = HostAddresses(address)
    addresses.failed(addresses.current)
    assert (addresses.is_name, addresses.move_on(), addresses.current) == (False, False, address)


def test_without_a_thread_it_stays(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    addresses = HostAddresses("tcp://localhost:7")
    addresses.failed(addresses.current)
    assert not addresses.move_on()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
@pytest.mark.usefixtures("hosts")
def test_a_coordinator_at_the_second_address_of_a_name_is_found():
    answers("127.0.0.5", "localhost")


@pytest.mark.skipif(not socket.has_ipv6, reason="this system has no IPv6")
def test_a_coordinator_whose_name_has_an_address_of_ipv6_only_is_found(hosts):
    hosts[:] = ["::1"]
    answers("[::1]", "six.invalid")


def answers(at, name):
    """Have a coordinator at an address answer a client that knows its name."""
    with zmq.Context() as context:
        server = ControlServer(context, f"tcp://{at}:0")
        with ControlClient(context, server.address.replace(at, name)) as client:

            def comes():
                client.send([b"hello"])
                return client.refused or server.receive()

            identity, _ = until(comes, 10)
            server.send(identity, [b"answer"])
            assert [bytes(frame) for frame in until(client.receive)] == [b"answer"]
        server.close()
