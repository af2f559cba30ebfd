"""The real data plane and the fake one keep the same laws."""

import socket

import pytest
import zmq

from bbgrap.errors import UsageError
from bbgrap.transport.data import ZmqDataPlane
from bbgrap.transport.inproc import InprocNetwork
from tests.bbgrap.transport.check_transport import check_transport, receive


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


def test_zeromq(context):
    check_transport(lambda: ZmqDataPlane(context, "tcp://127.0.0.1:0", "127.0.0.1"))


def test_inproc():
    network = InprocNetwork()
    check_transport(network.plane)


def test_garbage_does_no_harm(context):
    plane = ZmqDataPlane(context, "tcp://127.0.0.1:0", "127.0.0.1")
    host, port = plane.address.removeprefix("tcp://").split(":")
    for content in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 300, bytes(1000)):
        with socket.create_connection((host, int(port)), 2) as raw:
            raw.sendall(content)
    with context.socket(zmq.PUSH) as peer:
        peer.connect(plane.address)
        peer.send_multipart([b"a", b"b", b"c", b"d"])
        peer.send_multipart([b"header", b"payload"])
        assert bytes(receive(plane).header) == b"\0"
        arrival = receive(plane)
        assert (bytes(arrival.header), bytes(arrival.payload)) == (b"header", b"payload")
        assert arrival.sender == "127.0.0.1"
    plane.close()


def test_a_taken_port_is_a_readable_error(context):
    plane = ZmqDataPlane(context, "tcp://127.0.0.1:0", "127.0.0.1")
    with pytest.raises(UsageError, match="choose another port with --data-port"):
        ZmqDataPlane(context, plane.address, "127.0.0.1")
    plane.close()
