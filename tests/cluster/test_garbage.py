"""Random bytes, and valid frames with garbage, on every port: nobody dies, nobody hangs."""

import random
import re
import socket

import numpy as np
import pytest
import zmq

import bbgrap
from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.directions import TO_COORDINATOR
from bbgrap.protocol.messages import Deployed, Heartbeat, RequestFailed
from tests.cluster import tiny

pytestmark = pytest.mark.cluster


def garbage(seed):
    draw = random.Random(seed)
    return [[draw.randbytes(draw.choice([0, 1, 31, 32, 33, 500])) for _ in range(draw.randint(1, 4))] for _ in range(60)]


def ports(cluster):
    (data,) = re.findall(r"data plane at (tcp://[\d.:]+)", cluster.log("coordinator", 1000))
    return {cluster.address, data, *(node.address for node in cluster.connection.nodes())}


def headed_garbage(seed):
    for frames in garbage(seed):
        yield [Frame(Kind.DATA, 1, 3, 4, 5).to_bytes(), *frames]
        yield [b"\x93\x01\xa5Hello\x93", *frames]


def send(peer, address, frames):
    """Send a message; ZeroMQ has no connection before the first, and none again when a handshake has failed: a send would wait for ever."""
    try:
        peer.send_multipart(frames, zmq.DONTWAIT)
    except zmq.Again:
        peer.connect(address)
        peer.send_multipart(frames, zmq.DONTWAIT)


def test_garbage_on_every_port(shared):
    x = np.ones((8, 4), np.float32)
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    session.run(None, {"x": x})
    addresses = ports(shared)
    assert len(addresses) == 4
    with zmq.Context() as context:
        for address in addresses:
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            for frames in garbage(1)[:10]:
                with socket.create_connection((host, int(port)), 2) as raw:
                    raw.sendall(b"".join(frames))
            kind = zmq.DEALER if address == shared.address else zmq.PUSH
            with context.socket(kind) as peer:
                peer.linger = 200
                for frames in [
                    *garbage(2),
                    *headed_garbage(3),
                    *map(TO_COORDINATOR.encode, (Heartbeat(), Deployed(3), RequestFailed(1, 2, "no"))),
                ]:
                    send(peer, address, frames)
    for _ in range(20):
        (y,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, tiny.expected(x))
    assert all(process.poll() is None for process in shared.processes.values())
    assert {node.name for node in shared.connection.nodes()} == {"agent0", "agent1"}
