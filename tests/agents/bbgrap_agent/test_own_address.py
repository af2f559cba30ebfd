"""That a machine has another address than before; `tests/network/test_two_hosts.py` shows what an agent does then."""

import errno
import socket
import threading
import time

import pytest
from bbgrap_agent.own_address import LOOK_S, AddressWatch, own_address, own_host

from bbgrap.errors import ClusterUnavailableError

COORDINATOR = "tcp://127.0.0.1:7070"
ELSEWHERE = "192.0.2.1"
"""An address of documentation (RFC 5737), which no machine has."""


def looked(watch, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not watch.look(time.monotonic()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return watch.found


def test_a_machine_that_has_its_address_keeps_it():
    for host in ("127.0.0.1", "[::1]", "a-name"):
        assert looked(AddressWatch(COORDINATOR, host), 0.1) == ""


def test_what_a_machine_has_instead_is_found():
    assert looked(AddressWatch(COORDINATOR, ELSEWHERE)) == "127.0.0.1"


def test_an_address_that_is_lost_for_a_while_is_no_change(monkeypatch):
    monkeypatch.setattr("bbgrap_agent.own_address.own_address", lambda _: ELSEWHERE)
    assert looked(AddressWatch(COORDINATOR, ELSEWHERE), 0.1) == ""


def test_without_a_way_to_the_coordinator_it_waits_and_keeps_nobody(monkeypatch):
    watch, may_end = AddressWatch("tcp://nobody.invalid:7070", ELSEWHERE), threading.Event()

    def slow(coordinator):
        assert may_end.wait(60), "it was waited for"
        return own_address(coordinator)

    monkeypatch.setattr("bbgrap_agent.own_address.own_address", slow)
    now = time.monotonic()
    assert not any(watch.look(now + number * 2 * LOOK_S) for number in range(5))
    may_end.set()
    assert looked(watch, 0.1) == ""


def test_it_listens_at_its_own_address_only_if_it_has_it(caplog):
    caplog.set_level("INFO")
    assert own_host("127.0.0.1") == "127.0.0.1"
    assert own_host(ELSEWHERE) == own_host("a-name") == "*"
    assert caplog.text.count("is no address of this machine") == 2


def test_a_host_that_cannot_be_found_may_be_there_later():
    """Exit status 3: units start it again. With 2, a wrong option, an agent that began before its network never came back."""
    with pytest.raises(ClusterUnavailableError, match=r"'tcp://nobody\.invalid:7070': its host cannot be found") as raised:
        own_address("tcp://nobody.invalid:7070")
    assert raised.value.exit_code == 3


@pytest.mark.skipif(not socket.has_ipv6, reason="this system has no IPv6")
def test_a_name_that_has_no_address_of_ipv4_leads_to_one_of_ipv6(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", 7070, 0, 0))])
    assert own_address("tcp://six:7070") == "[::1]"


def test_a_machine_without_a_network_is_not_told_that_a_host_cannot_be_found(monkeypatch):
    """As before a network is up, or without the loopback device: the host was given by its address."""

    def connect(self, place):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket, "socket", type("Unconnected", (socket.socket,), {"connect": connect}))
    with pytest.raises(ClusterUnavailableError, match=r"no way to it from here; is the network up\?: Network is unreachable"):
        own_address("tcp://127.0.0.1:7070")
