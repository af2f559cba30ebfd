"""Which hosts a listener hears; whether the kernel takes the filter from this process depends on the system."""

import socket

import pytest

from bbgrap.errors import BbgrapError
from bbgrap.transport.listener_filter import hear_all, hear_only
from bbgrap.transport.tcp import listen_at
from bbgrap.transport.tls_accept import MAX_HOSTS

MANY = [f"10.0.{a}.{b}" for a in range(3) for b in range(1, 251)]


def reaches(place, source=None, within_s=0.3):
    """Whether a connection to a place is made, from an address of this machine."""
    try:
        socket.create_connection(place, within_s, source and (source, 0)).close()
    except TimeoutError:
        return False
    return True


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if not hear_only(listener, ()):
            pytest.skip("the system does not let this process filter (some want CAP_NET_ADMIN)")
        hear_all(listener)
        yield listener


@pytest.mark.parametrize(
    "hosts", [("127.0.0.1",), ("127.0.0.2", "127.0.0.1"), (*MANY, "127.0.0.1"), ("::1", "127.0.0.1", "no address", "")]
)
def test_hosts_that_are_named_are_heard_and_no_others(listener, hosts):
    place = listener.getsockname()
    assert hear_only(listener, hosts)
    assert reaches(place, "127.0.0.1")
    assert not reaches(place, "127.0.0.3")
    hear_all(listener)
    assert reaches(place, "127.0.0.3", 3.0)


def test_others_may_be_named_at_any_time(listener):
    place = listener.getsockname()
    assert hear_only(listener, ("127.0.0.2",))
    assert not reaches(place, "127.0.0.3")
    assert hear_only(listener, ("127.0.0.3",))
    assert (reaches(place, "127.0.0.2"), reaches(place, "127.0.0.3")) == (False, True)
    assert hear_only(listener, ())
    assert not reaches(place, "127.0.0.3")


def test_connections_are_not_touched_and_what_they_inherit_can_be_taken_off(listener):
    place = listener.getsockname()
    with socket.create_connection(place, 1) as early:
        there, _ = listener.accept()
        assert hear_only(listener, ("127.0.0.2",))
        with socket.create_connection(place, 1, ("127.0.0.2", 0)) as late, there:
            accepted, _ = listener.accept()
            hear_all(accepted)
            for one, other in ((early, there), (late, accepted)):
                one.sendall(b"x" * 100_000)
                assert other.recv(4)
                other.sendall(b"back")
                assert one.recv(4) == b"back"
            accepted.close()
    hear_all(listener)


def test_addresses_of_ip_6_are_compared_as_a_whole():
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:
        place = listener.getsockname()[:2]
        if not hear_only(listener, ("127.0.0.1", "fe80::1%eth0", "::2")):
            pytest.skip("the system does not let this process filter (some want CAP_NET_ADMIN)")
        assert not reaches(place)
        assert hear_only(listener, ("::2", "::1"))
        assert reaches(place)
        assert hear_only(listener, [f"fd00::{number:x}" for number in range(MAX_HOSTS)])


def test_what_listens_everywhere_takes_both_kinds_of_addresses_and_filters_both():
    try:
        listener = listen_at("tcp://[::]:0")
    except BbgrapError:
        pytest.skip("no IPv6 here")
    with listener:
        port = listener.getsockname()[1]
        assert reaches(("127.0.0.1", port))
        if not hear_only(listener, ("127.0.0.1",)):
            pytest.skip("the system does not let this process filter (some want CAP_NET_ADMIN)")
        assert (reaches(("127.0.0.1", port)), reaches(("127.0.0.1", port), "127.0.0.3"), reaches(("::1", port))) == (True, False, False)
        assert hear_only(listener, ("::1",))
        assert (reaches(("127.0.0.1", port)), reaches(("::1", port))) == (False, True)


def test_too_many_hosts_are_no_filter(listener):
    assert not hear_only(listener, [f"10.{a}.{b}.1" for a in range(20) for b in range(250)])
    assert reaches(listener.getsockname(), "127.0.0.3")
