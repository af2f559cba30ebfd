"""For how long nothing has come over TCP connections of this process, whose library does not tell: grpc keeps its sockets to itself."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path

_LAST_RECEIVED_AT = 52
"""Of `tcpi_last_data_recv`, milliseconds, in Linux's `struct tcp_info`."""


def silences() -> dict[tuple[str, int], float]:
    """Return the seconds since the last byte of connections, by their peers' addresses; none where the system is not Linux.

    One of which bytes are still to be read is not silent: it is this process that is slow.
    """
    found: dict[tuple[str, int], float] = {}
    with suppress(OSError):
        for path in Path("/proc/self/fd").iterdir():
            with suppress(OSError, ValueError):
                if str(path.readlink()).startswith("socket:"):
                    # The family only says how long addresses may be. A copy of the descriptor is closed behind this.
                    with socket.fromfd(int(path.name), socket.AF_INET6, socket.SOCK_STREAM) as connection:
                        host, port, silent_s = _told(connection)
                        found[host, port] = silent_s
    return found


def _told(connection: socket.socket) -> tuple[str, int, float]:
    """Return a connection's peer, and for how long nothing has come.

    Raises:
        OSError, ValueError: if it is no TCP connection.
    """
    host, port = connection.getpeername()[:2]
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    silent_s = struct.unpack_from("I", told, _LAST_RECEIVED_AT)[0] / 1e3
    with suppress(BlockingIOError):
        if connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            silent_s = 0.0
    return host.removeprefix("::ffff:"), port, silent_s
