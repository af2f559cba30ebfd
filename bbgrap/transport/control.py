"""Control connections: one ROUTER on the coordinator, one DEALER per agent or client.

A message is the frames that `bbgrap.protocol.codec` makes. A client on the coordinator's machine can have a shared-memory channel besides,
which takes what fits (`bbgrap.transport.channel`). Laws: sending never waits; a peer that breaks the framing or the size limit loses its
connection, nothing else; a socket belongs to one thread at a time.

What remains: libzmq bounds a frame (`maxmsgsize`) and the number of whole messages (`rcvhwm`), but not the frames of a message that is not
whole yet. It keeps them out of our sight, so a peer that never ends a message can make it take memory, until its connection breaks. Whole
messages beyond `MAX_PAYLOAD_FRAMES` or `MAX_MESSAGE_BYTES` are forgotten here, frame by frame.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import zmq

from bbgrap.errors import ClusterUnavailableError, RemoteProtocolError, UsageError
from bbgrap.protocol.addresses import split_address
from bbgrap.protocol.limits import MAX_MESSAGE_BYTES, MAX_PAYLOAD_FRAMES, MAX_TENSOR_BYTES
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.channel import Channel, open_channel
from bbgrap.transport.channels import Channels

DEFAULT_PORT = 7070
_QUEUE = 10_000
"""Messages queued per peer. Chosen: far above the window of weight chunks; a full queue means that the peer is gone."""
_LINGER_MS = 500
"""A last `Leave` or answer may still go out; nothing waits longer at exit."""
_KEEPALIVE_S, _KEEPALIVES = 2, 3
"""How often the kernel asks whether the other side of a silent connection is there, in seconds, and how often in vain."""
_ZERO_COPY_BYTES = 64 << 10
"""From here on handing over memory is cheaper than copying it (pyzmq's own threshold)."""


def _limit(socket: zmq.Socket[bytes]) -> None:
    socket.linger = _LINGER_MS
    socket.sndhwm = socket.rcvhwm = _QUEUE
    socket.maxmsgsize = MAX_TENSOR_BYTES
    # The kernel ends connections whose other side is gone without a word. libzmq's own heartbeats would do it, too, but they end the
    # process (`Assertion failed: !_io_error`, 4.3.5) where a peer has come anew under its identity and its old connection then breaks.
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _KEEPALIVE_S
    socket.tcp_keepalive_intvl = _KEEPALIVE_S
    socket.tcp_keepalive_cnt = _KEEPALIVES


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[BytesLike]) -> bool:
    """Send a multipart message; whether there was room for it."""
    try:
        last = len(frames) - 1
        for place, frame in enumerate(frames):
            flags = zmq.DONTWAIT | (zmq.SNDMORE if place < last else 0)
            socket.send(frame, flags, copy=len(frame) < _ZERO_COPY_BYTES)
    except zmq.Again:
        return False
    return True


def receive_frames(socket: zmq.Socket[bytes], route: int = 0) -> list[BytesLike] | None:
    """Take a waiting multipart message without copying it, or None; of one that is too large, only its first `route` frames."""
    try:
        frame = socket.recv(zmq.DONTWAIT, copy=False)
    except zmq.Again:
        return None
    frames, total, count = [frame], len(frame), 1
    while frame.more:  # they are all there: ZeroMQ delivers whole messages only
        frame = socket.recv(copy=False)
        total, count = total + len(frame), count + 1
        if total > MAX_MESSAGE_BYTES or count > route + 1 + MAX_PAYLOAD_FRAMES:
            del frames[route:]
        else:
            frames.append(frame)
    return [frame.buffer for frame in frames]


class ControlServer:
    """The coordinator's end.

    Invariants: `address` is where it listens, with the real port; a peer has one identity, whichever way its messages take.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], bind: str) -> None:
        """Listen on `tcp://HOST:PORT`; port 0 or `*` chooses a free one.

        Raises:
            UsageError: if the address is malformed or in use.
        """
        self.socket = context.socket(zmq.ROUTER)
        _limit(self.socket)
        # A peer that reconnects keeps its identity; the newest connection is the living one.
        self.socket.router_handover = True
        try:
            self.socket.bind(bind)
        except zmq.ZMQError as error:
            self.socket.close(0)
            if error.errno == zmq.EADDRINUSE:
                raise UsageError(f"address {bind} is in use; is a coordinator running already? choose another port with --bind") from error
            raise UsageError(f"address {bind}: expected tcp://HOST:PORT of this machine: {error.strerror}") from error
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.channels = Channels()
        self._channels_first = False

    def send(self, identity: bytes, frames: Sequence[BytesLike]) -> None:
        """Send a message to a peer; one to a peer that is gone is lost."""
        if self.channels.send(identity, frames):
            return
        try:
            send_frames(self.socket, [identity, *frames])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise

    def receive(self) -> tuple[bytes, list[BytesLike]] | None:
        """Take a waiting message, or None."""
        # In turns: whoever says much on one way must not keep those on the other from being heard.
        self._channels_first = not self._channels_first
        if self._channels_first:
            return self.channels.receive() or self._receive()
        return self._receive() or self.channels.receive()

    def _receive(self) -> tuple[bytes, list[BytesLike]] | None:
        frames = receive_frames(self.socket, route=1)
        return None if frames is None else (bytes(frames[0]), frames[1:])

    def close(self) -> None:
        """Stop listening."""
        self.channels.close()
        self.socket.close()


class ControlClient:
    """The end of an agent or client; it reconnects for ever by itself.

    Invariants: the identity stays the same over reconnections.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        """Begin to connect to `tcp://HOST:PORT`.

        Raises:
            UsageError: if the address is malformed.
        """
        self._context = context
        self._identity = secrets.token_bytes(15)
        self.address = address
        self.socket = self._open()
        self.channel: Channel | None = None

    @property
    def files(self) -> tuple[zmq.Socket[bytes] | int, ...]:
        """What to poll: a message may wait when one of them is readable."""
        return (self.socket,) if self.channel is None else (self.socket, self.channel.fileno())

    def use_channel(self, name: str) -> None:
        """Open a channel to the coordinator of that name, if it is on this machine."""
        self._leave_channel()
        self.channel = open_channel(name, b"\1" + self._identity)

    def _leave_channel(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def _open(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        _limit(socket)
        socket.routing_id = b"\1" + self._identity
        socket.reconnect_ivl = 100
        socket.reconnect_ivl_max = 2_000
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            socket.close(0)
            raise UsageError(f"address '{self.address}': expected tcp://HOST:PORT: {error.strerror}") from error
        return socket

    def reopen(self) -> None:
        """Replace the connection; what was queued is lost."""
        self._leave_channel()
        self.socket.close(0)
        self.socket = self._open()

    def send(self, frames: Sequence[BytesLike]) -> None:
        """Send a message; with a full queue it is lost, and the protocol says it again."""
        if self.channel is None or not self.channel.send(frames):
            send_frames(self.socket, frames)

    def receive(self) -> list[BytesLike] | None:
        """Take a waiting message, or None."""
        try:
            frames = None if self.channel is None else self.channel.receive()
        except (ConnectionError, RemoteProtocolError):  # the other connection says what is to be said
            self._leave_channel()
            frames = None
        return receive_frames(self.socket) if frames is None else frames

    def close(self) -> None:
        """Close the connection, after what is queued has gone out or half a second has passed."""
        self._leave_channel()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def check_address(address: str) -> str:
    """Return `tcp://HOST:PORT`; the scheme and the port may be left out.

    Raises:
        UsageError: if the address is none.
    """
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not colon:
        host, port = port, str(DEFAULT_PORT)
    if not host or "://" in host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise UsageError(f"address '{address}': expected tcp://HOST:PORT, for example tcp://127.0.0.1:{DEFAULT_PORT}")
    return f"tcp://{host}:{port}"


def unavailable(address: str, within_s: float) -> ClusterUnavailableError:
    """Return the error for a coordinator that does not answer, or whose host has no address."""
    host, port = split_address(address)
    try:
        socket.getaddrinfo(host.strip("[]"), port)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no such name"
        return ClusterUnavailableError(f"no coordinator answers at {address}: host '{host}' cannot be found ({reason}); is its name right?")
    return ClusterUnavailableError(
        f"no coordinator answers at {address} within {within_s:g} s; start one with: bbgrap-coordinator --bind {address}"
    )
