"""What comes to the coordinator's port, before and in the handshake: a control server in a process of its own, watched.

    stream      bytes, as they are
    handshake   a client that knows the key shakes hands; what it says is changed on its way, by the input:
                which of its parts 1 | from which byte 2 | how many bytes go 2 | what comes in their place

`python -m tests.fuzzing.readers.coordinator_port` is that process.
"""

from __future__ import annotations

import atexit
import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import overload

import psutil
import zmq

from bbgrap.errors import RemoteProtocolError
from bbgrap.transport.control_client import ControlClient
from bbgrap.transport.control_server import ControlServer
from bbgrap.transport.locks import ClientLock, KeyPair, ServerLock
from tests.fuzzing.readers.reader import Reader

OWN, KNOWN = KeyPair.of(bytes(range(32))), KeyPair.of(bytes(range(1, 33)))
LOCK = ClientLock(OWN.public, KNOWN, "test")
LOOKED_EVERY = 100
"""Inputs between two looks at the server: is it alive, does it answer a known client, has it grown?"""
GROWTH = 64 << 20
_WAIT_S = 0.02
_QUIET_S = 0.1
_SUCCESS_MS = 20
"""How long a client may take to see that it was let in."""
_PARTS = 5
_HEAD = struct.Struct("<BHH")


class _Server:
    """The server's process, and a known client."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.fuzzing.readers.coordinator_port"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        atexit.register(self._process.kill)
        assert self._process.stdout is not None
        self.address = json.loads(self._process.stdout.readline())
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        self.place = (host, int(port))
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._client = ControlClient(self.context, self.address, lambda: LOCK)
        self._inputs = 0
        self._memory = 0
        self.look()

    def look(self) -> None:
        """Ask for an echo; see that the process has not grown."""
        self._inputs += 1
        if self._inputs % LOOKED_EVERY != 1:
            return
        word = str(self._inputs).encode()
        self._client.send([word])
        until = time.monotonic() + 5
        heard: list[bytes] = []
        while heard != [word]:
            assert time.monotonic() < until, f"the server does not answer a known client; status {self._process.poll()}"
            self._client.socket.poll(100)
            heard = [bytes(frame) for frame in self._client.receive() or ()]
        memory = psutil.Process(self._process.pid).memory_info().rss
        self._memory = self._memory or memory
        assert memory - self._memory < GROWTH, "the server has grown"


@cache
def _server() -> _Server:
    return _Server()


def _stream(data: bytes) -> None:
    with socket.create_connection(_server().place) as connection, suppress(ConnectionError, TimeoutError):
        connection.settimeout(_WAIT_S)
        connection.sendall(data)
        while len(data) % 4 == 0 and connection.recv(4096):  # others are gone before they are answered
            pass
    _server().look()


def _handshake(data: bytes) -> None:
    """Raises RemoteProtocolError if the client was not let in."""
    _, let_in = _exchange(data)
    _server().look()
    if not let_in:
        raise RemoteProtocolError("not let in")


def _exchange(data: bytes | None) -> tuple[list[bytes], bool]:
    """Let a client shake hands with the server, and change one of its parts; return what it has said, and whether it was let in."""
    part, start, gone = _HEAD.unpack_from(data.ljust(_HEAD.size, b"\0")) if data is not None else (_PARTS, 0, 0)
    server, said = _server(), list[bytes]()
    with (
        socket.create_server(("127.0.0.1", 0)) as between,
        server.context.socket(zmq.DEALER) as client,
        socket.create_connection(server.place) as there,
    ):
        client.linger, client.reconnect_ivl = 0, -1
        LOCK.set_on(client)
        succeeded = client.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        client.connect(f"tcp://127.0.0.1:{between.getsockname()[1]}")
        client.send_multipart([bytes(16), b"hello"])
        between.settimeout(1)
        here, _ = between.accept()
        with here, suppress(OSError):
            while not succeeded.poll(0):  # how much comes at once is the system's choice
                ready, _, _ = select.select([here, there], [], [], _QUIET_S)
                if not ready:
                    break
                if there in ready:
                    answer = there.recv(1 << 16)
                    if not answer:
                        break
                    here.sendall(answer)
                if here in ready:
                    words = here.recv(1 << 16)
                    if len(said) == part % _PARTS and data is not None:
                        at = start % (len(words) + 1)
                        words = words[:at] + data[_HEAD.size :] + words[at + gone :]
                    said.append(words)
                    there.sendall(words)
        let_in = bool(succeeded.poll(_SUCCESS_MS))
        client.disable_monitor()
        succeeded.close(0)
    return said, let_in


class _Recorded(Sequence[bytes]):
    """What a client says in a right handshake, recorded when it is needed first: no process is started before."""

    @cache  # noqa: B019 - there is one
    def _all(self) -> list[bytes]:
        said, _ = _exchange(None)
        return [b"".join(said[:count]) for count in range(1, len(said) + 1)]

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes]:
        return self._all()[place]

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._all())


PORT = [
    Reader("coordinator's port", _stream, _Recorded(), (), slower=4),
    Reader(
        "coordinator's handshake",
        _handshake,
        [_HEAD.pack(part, 0, 0) for part in range(_PARTS)],
        (RemoteProtocolError,),
        slower=20,
    ),
]


def main() -> None:
    """Echo what known clients say, until standard input ends."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = ControlServer(context, "tcp://127.0.0.1:0", ServerLock(OWN, lambda key: key == KNOWN.public))
    sys.stdout.write(json.dumps(server.address) + "\n")
    sys.stdout.flush()
    poller = zmq.Poller()
    poller.register(server.socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    while sys.stdin.fileno() not in dict(poller.poll(100)):
        server.throttle()
        while (received := server.receive()) is not None:
            server.send(*received)
    server.close()
    context.term()


if __name__ == "__main__":
    main()
