"""Control connections: one ROUTER on the coordinator (`control_server`), one DEALER per agent or client (`control_client`).

They are locked by the keys of `bbgrap.transport.locks`. A message is the frames that `bbgrap.protocol.codec` makes, behind one that says
who speaks and how they are cut (`frame_pieces`). A peer is known by its key and a number of its own: nobody can speak or hear under another
one's key, whatever it says of itself. A client on the coordinator's machine can have a shared-memory channel besides, which takes what fits
(`bbgrap.transport.channel`). Laws: sending never waits; a peer that breaks the framing or the size limit loses its connection, nothing
else; a socket belongs to one thread at a time.

Strangers end at the handshake: it has `HANDSHAKE_S`, and ZeroMQ keeps at most one frame of `frame_pieces.MOST_BYTES` of each meanwhile.
What remains: it bounds a frame and the number of whole messages (`rcvhwm`), but not the frames of a message that is not whole yet, so a
peer with a key that never ends a message can make it take memory, until its connection breaks. Whole messages that are too large are
forgotten.
"""

from __future__ import annotations

import ipaddress
import socket
import struct

import zmq

from bbgrap.errors import UsageError
from bbgrap.protocol.addresses import split_address
from bbgrap.transport import frame_pieces

DEFAULT_PORT = 7070
HANDSHAKE_S = 3.0
"""How long a connection may take to show its key. Chosen: it takes four round trips, over a satellite 2.4 s."""
SESSION_BYTES = 16
"""The number that a peer gives itself, by chance, and keeps over its connections."""
_QUEUE = 10_000
"""Messages queued per peer. Chosen: far above the window of weight chunks; a full queue means that the peer is gone."""
_LINGER_MS = 500
"""A last `Leave` or answer may still go out; nothing waits longer at exit."""
_KEEPALIVE_S, _KEEPALIVES = 2, 3
"""How often the kernel asks whether the other side of a silent connection is there, in seconds, and how often in vain."""


def set_limits(connection: zmq.Socket[bytes]) -> None:
    """Bound what a peer may make this end keep, and how long it may be silent."""
    connection.linger = _LINGER_MS
    connection.sndhwm = connection.rcvhwm = _QUEUE
    connection.maxmsgsize = frame_pieces.MOST_BYTES
    connection.handshake_ivl = round(HANDSHAKE_S * 1000)
    # The kernel ends connections whose other side is gone without a word. libzmq's own heartbeats would do it, too, but they end the
    # process (`Assertion failed: !_io_error`, 4.3.5) where a peer has come anew under its identity and its old connection then breaks.
    connection.tcp_keepalive = 1
    connection.tcp_keepalive_idle = _KEEPALIVE_S
    connection.tcp_keepalive_intvl = _KEEPALIVE_S
    connection.tcp_keepalive_cnt = _KEEPALIVES


def read_monitor(monitor: zmq.Socket[bytes]) -> tuple[int, int, str]:
    """Return the next event of a socket's monitor, its value and its address, as zmq_socket_monitor(3) describes them; waits for it.

    `zmq.utils.monitor` would do it, and imports all of asyncio, which none of these processes needs.
    """
    event, address = monitor.recv_multipart()
    number, value = struct.unpack("=Hi", event)
    return number, value, address.decode("utf-8", "replace")


def why_unknown(address: str) -> str:
    """Return why nobody knows the host of an address; empty if it is known."""
    host, port = split_address(address)
    try:
        socket.getaddrinfo(host.strip("[]"), port)
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or "no such name"
    return ""


def is_ipv6(address: str) -> bool:
    """Whether the host of an address is an IPv6 address; ZeroMQ looks up a name as IPv4."""
    return split_address(address)[0].startswith("[")


def check_address(address: str) -> str:
    """Return `tcp://HOST:PORT`; the scheme and the port may be left out, and space around it is none of it.

    Raises:
        UsageError: if the address is none.
    """
    place = address.strip().removeprefix("tcp://")  # a file of variables that Windows has written ends lines with a return
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(DEFAULT_PORT)
    is_bare = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not host or is_bare or not (port.isascii() and port.isdigit()) or int(port) >= 65536:
        examples = f"for example tcp://127.0.0.1:{DEFAULT_PORT} or tcp://[::1]:{DEFAULT_PORT}"
        raise UsageError(f"address '{address}': expected tcp://HOST:PORT, {examples}")
    return f"tcp://{host}:{port}"


def check_host(host: str, option: str) -> None:
    """Check that a text is a host name or an address, without a scheme and a port.

    Raises:
        UsageError: if it is not.
    """
    try:
        is_known = ":" not in host or bool(ipaddress.IPv6Address(host.strip("[]")))
    except ValueError:
        is_known = False
    if not is_known or any(character in "/ #" for character in host):
        raise UsageError(f"{option} '{host}': expected a host name or an address, without tcp:// and port, like 10.0.0.7 or [fd00::7]")
