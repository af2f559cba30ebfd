"""Names of hosts: one that nobody answers for holds up no other, and one with addresses of both versions stands for that of IPv4."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from bbgrap.transport import host_names
from bbgrap.transport.host_names import NameResolver
from tests.waiting import until

WAIT_S = 5.0


@pytest.fixture
def resolver():
    return NameResolver(lambda: None)


def found(resolver, host):
    return until(lambda: resolver.look_up(host, 1), WAIT_S, lambda: f"'{host}' is held up")


def place(family, host):
    return family, socket.SOCK_STREAM, 0, "", (host, 1)


IPV4, IPV6 = place(socket.AF_INET, "10.0.0.1"), place(socket.AF_INET6, "fd00::1")


def served(monkeypatch, answer):
    """Play the name server; numbers are no names."""

    def look_up(host, port, flags=0, **_):
        if flags:
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        return answer(host)

    monkeypatch.setattr(host_names.socket, "getaddrinfo", look_up)


@pytest.mark.parametrize(
    ("answers", "taken"), [([IPV6, IPV4], IPV4), ([IPV4, IPV6], IPV4), ([IPV6], IPV6)], ids=["IPv6 first", "IPv4 first", "IPv6 only"]
)
def test_a_name_stands_for_its_ipv4_address_if_it_has_one(resolver, monkeypatch, answers, taken):
    served(monkeypatch, lambda host: answers)
    assert found(resolver, "dual.example") == (taken[0], taken[4])


def test_names_that_are_not_answered_for_hold_up_no_other(resolver, monkeypatch):
    asked, answering = [], threading.Event()

    def answer(host):
        asked.append(host)
        if host.startswith("slow"):
            answering.wait(WAIT_S)
        return [IPV4]

    served(monkeypatch, answer)
    slow = [f"slow{number}.example" for number in range(20)]
    for host in 2 * slow:
        assert resolver.look_up(host, 1) is None
    for host in ("quick.example", "other.example"):
        found(resolver, host)
    answering.set()
    for host in slow:
        found(resolver, host)
    assert sorted(asked) == sorted([*slow, "quick.example", "other.example"]), "each once: no answer gets lost"


def test_without_another_thread_it_is_said_until_there_is_one(resolver, monkeypatch):
    served(monkeypatch, lambda host: [IPV4])

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        for _ in range(2):
            with pytest.raises(OSError, match="names cannot be looked up: can't start new thread"):
                resolver.look_up("first.example", 1)
    assert found(resolver, "first.example") == (IPV4[0], IPV4[4])


def test_a_host_that_has_moved_is_looked_for_where_it_was_for_two_seconds_at_most(resolver, monkeypatch):
    """A coordinator whose pod was placed anew was joined at once, and its data plane looked for at the old address for ten seconds."""
    now, answers = time.monotonic(), [IPV4]
    monkeypatch.setattr(host_names, "time", SimpleNamespace(monotonic=lambda: now))
    served(monkeypatch, lambda host: answers)
    assert found(resolver, "head.example") == (IPV4[0], IPV4[4])
    answers = [place(socket.AF_INET, "10.0.0.2")]
    assert found(resolver, "head.example") == (IPV4[0], IPV4[4])
    now += 2.1
    assert found(resolver, "head.example") == (socket.AF_INET, ("10.0.0.2", 1))
