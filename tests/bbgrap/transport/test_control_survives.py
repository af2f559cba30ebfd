"""Whatever peers do with their connections, the coordinator's end lives on (in a process of its own: libzmq ends the whole process)."""

import socket
import struct
import subprocess
import sys
import time

import pytest

SERVER = """
import sys, threading, time, zmq
from bbgrap.transport.control_server import ControlServer
server = ControlServer(zmq.Context(), "tcp://127.0.0.1:0")
print(server.address, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), __import__("os")._exit(0)), daemon=True).start()
while True:
    server.receive()
    time.sleep(0.01)
"""


def connected(port, identity):
    """Return a bare connection that has shaken hands as a peer of this identity."""
    stream = socket.create_connection(("127.0.0.1", port))
    stream.sendall(b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    assert len(stream.recv(64, socket.MSG_WAITALL)) == 64
    facts = ((b"Socket-Type", b"DEALER"), (b"Identity", identity))
    body = b"\x05READY" + b"".join(bytes([len(k)]) + k + struct.pack(">I", len(v)) + v for k, v in facts)
    stream.sendall(b"\x04" + bytes([len(body)]) + body)
    assert stream.recv(1000)
    return stream


@pytest.mark.faults
def test_a_connection_that_breaks_after_its_peer_has_come_anew():
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            port = int(server.stdout.readline().rpartition(b":")[2])
            with connected(port, b"same") as old:
                old.sendall(b"\x00\x02hi")
                time.sleep(0.2)
                with connected(port, b"same"):
                    time.sleep(0.2)
                    old.sendall(b"\x00\x02yo")
                    time.sleep(0.2)
                    old.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no orderly end
                    old.close()
                    time.sleep(3.0)  # libzmq's heartbeat, which ended the process, came every two seconds
                    assert server.poll() is None, server.stderr.read()
        finally:
            server.kill()
