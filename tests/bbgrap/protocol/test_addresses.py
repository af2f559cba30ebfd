import pytest

from bbgrap.protocol.addresses import host_of, split_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("tcp://head:7070", "head", "7070"),
        ("head:1", "head", "1"),
        ("tcp://*:0", "*", "0"),
        ("tcp://[::1]:5", "[::1]", "5"),
        ("7", "", "7"),
    ],
)
def test_host_and_port(address, host, port):
    assert split_address(address) == (host, port)
    assert host_of(address) == host
