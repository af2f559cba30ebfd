"""Control connections: one ROUTER on the coordinator, one DEALER per agent or client, locked by the keys of `bbgrap.transport.locks`.

A message is the frames that `bbgrap.protocol.codec` makes, behind one that says who speaks and how they are cut (`pieces` here). A peer is
known by its key and a number of its own: nobody can speak or hear under another one's key, whatever it says of itself. A client on the
coordinator's machine can have a shared-memory channel besides, which takes what fits (`bbgrap.transport.channel`). Laws: sending never
waits; a peer that breaks the framing or the size limit loses its connection, nothing else; a socket belongs to one thread at a time.

Strangers end at the handshake: it has `HANDSHAKE_S`, and ZeroMQ keeps at most one frame of `pieces.MOST_BYTES` of each meanwhile. What
remains: it bounds a frame and the number of whole messages (`rcvhwm`), but not the frames of a message that is not whole yet, so a peer
with a key that never ends a message can make it take memory, until its connection breaks. Whole messages that are too large are forgotten.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from bbgrap.errors import ClusterUnavailableError, RemoteProtocolError, UsageError
from bbgrap.protocol.addresses import split_address
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport import frame_pieces
from bbgrap.transport.admission import KeyCheck, ThrottledListener
from bbgrap.transport.channel import Channel, open_channel
from bbgrap.transport.channels import Channels
from bbgrap.transport.locks import CLOSED, FAILED, NOBODY, ClientLock, FindLock, ServerLock, no_lock, refusal, was_closed

DEFAULT_PORT = 7070
HANDSHAKE_S = 2.0
"""How long a connection may take to show its key. Chosen: 20 round trips around the world."""
SESSION_BYTES = 16
"""The number that a peer gives itself, by chance, and keeps over its connections."""
MAX_SESSIONS = 16_384
"""Whose connections are known; of more, those that have spoken least lately must speak first to be answered."""
_QUEUE = 10_000
"""Messages queued per peer. Chosen: far above the window of weight chunks; a full queue means that the peer is gone."""
_LINGER_MS = 500
"""A last `Leave` or answer may still go out; nothing waits longer at exit."""
_KEEPALIVE_S, _KEEPALIVES = 2, 3
"""How often the kernel asks whether the other side of a silent connection is there, in seconds, and how often in vain."""
_WAITING_CONNECTIONS = 1024
"""That the system may hold until they are looked at."""


def key_of(identity: bytes) -> bytes:
    """Return the public key of a peer; `NOBODY` where connections have no lock."""
    return identity[: len(NOBODY)]


def _limit(socket: zmq.Socket[bytes]) -> None:
    socket.linger = _LINGER_MS
    socket.sndhwm = socket.rcvhwm = _QUEUE
    socket.maxmsgsize = frame_pieces.MOST_BYTES
    socket.handshake_ivl = round(HANDSHAKE_S * 1000)
    # The kernel ends connections whose other side is gone without a word. libzmq's own heartbeats would do it, too, but they end the
    # process (`Assertion failed: !_io_error`, 4.3.5) where a peer has come anew under its identity and its old connection then breaks.
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _KEEPALIVE_S
    socket.tcp_keepalive_intvl = _KEEPALIVE_S
    socket.tcp_keepalive_cnt = _KEEPALIVES


class _Way(NamedTuple):
    """How to answer a peer: ZeroMQ's number of its connection, and the file descriptor below it."""

    route: bytes
    descriptor: int


class ControlServer:
    """The coordinator's end.

    Invariants: `address` is where it listens, with the real port; a peer has one identity, whichever way its messages take: its key, and
    the number it gave itself.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], bind: str, lock: ServerLock | None = None) -> None:
        """Listen on `tcp://HOST:PORT`; port 0 or `*` chooses a free one. Without a lock, anybody may speak.

        Raises:
            UsageError: if the address is malformed or in use.
        """
        self._guard: KeyCheck | None = None
        self.socket = context.socket(zmq.ROUTER)
        _limit(self.socket)
        self.socket.backlog = _WAITING_CONNECTIONS
        # A message to a connection that is gone shall be known as lost.
        self.socket.router_mandatory = True
        if lock is not None:
            lock.set_on(self.socket)
            self._guard = KeyCheck(context, lock.admits)
        self.socket.ipv6 = _is_ipv6(bind)
        with self.socket.get_monitor_socket(zmq.EVENT_LISTENING) as monitor:
            try:
                self.socket.bind(bind)
                self._listener = ThrottledListener(int(recv_monitor_message(monitor)["value"]))
            except zmq.ZMQError as error:
                self._stop()
                if error.errno == zmq.EADDRINUSE:
                    raise UsageError(
                        f"address {bind} is in use; is a coordinator running already? choose another port with --bind"
                    ) from error
                raise UsageError(f"address {bind}: expected tcp://HOST:PORT of this machine: {_why_not(bind, error)}") from error
            self.socket.disable_monitor()
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.channels = Channels()
        self._ways: OrderedDict[bytes, _Way] = OrderedDict()
        self._ending: list[tuple[_Way, Sequence[BytesLike]]] = []
        self._keys: dict[str, bytes] = {"": NOBODY}
        self._channels_first = False

    def send(self, identity: bytes, frames: Sequence[BytesLike]) -> bool:
        """Send a message to a peer; one to a peer that is gone is lost. Return whether there is a connection to it."""
        if self.channels.send(identity, frames):
            return True
        way = self._ways.get(identity)
        return way is not None and self._send(way, frames)

    def _send(self, way: _Way, frames: Sequence[BytesLike]) -> bool:
        try:
            frame_pieces.send(self.socket, [way.route, *frame_pieces.cut(b"", frames)])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def receive(self) -> tuple[bytes, list[BytesLike]] | None:
        """Take a waiting message, or None."""
        # In turns: whoever says much on one way must not keep those on the other from being heard.
        self._channels_first = not self._channels_first
        if self._channels_first:
            return self.channels.receive() or self._receive()
        return self._receive() or self.channels.receive()

    def invite(self, identity: bytes) -> str:
        """Return where a peer on this machine may open a channel that is its own; empty if there are none."""
        return self.channels.invite(identity)

    def identities(self, key: bytes) -> list[bytes]:
        """Return the peers that have spoken with a key, as far as is known: some may be gone."""
        return [identity for identity in self._ways if key_of(identity) == key]

    def connections(self, key: bytes) -> int:
        """Return how many peers have spoken with a key, and have not gone since."""
        return sum(self._send(self._ways[identity], ()) for identity in self.identities(key))

    def disconnect(self, key: bytes, farewell: Sequence[BytesLike]) -> None:
        """End the connections of a key at the next `end_connections`, after a last message.

        A lock that admits the key no more keeps it from coming again.
        """
        self.channels.end(key)
        for identity in self.identities(key):
            way = self._ways.pop(identity)
            if self._send(way, farewell):
                self._ending.append((way, farewell))

    def end_connections(self) -> None:
        """End what `disconnect` has said farewell to."""
        for way, farewell in self._ending:
            if self._send(way, farewell):  # else it is gone, and its descriptor may be another's
                _end(way.descriptor)
        self._ending = []

    def throttle(self) -> None:
        """Keep strangers from taking all descriptors; to be called some times a second."""
        self._listener.throttle(self._guard.refused if self._guard is not None else 0)

    def _receive(self) -> tuple[bytes, list[BytesLike]] | None:
        while True:
            received = frame_pieces.receive(self.socket, route=1)
            if received is None:
                return None
            first, frames = received
            session = bytes(frames[1]) if len(frames) > 1 else b""
            if len(session) >= SESSION_BYTES:
                identity = self._known(first, session[:SESSION_BYTES])
                return identity, frame_pieces.join(frames[1][SESSION_BYTES:], frames[2:])

    def _known(self, first: zmq.Frame, session: bytes) -> bytes:
        """Return who has sent a message, and remember by which connection."""
        text = _user(first)
        key = self._keys.get(text)
        if key is None:
            if len(self._keys) >= MAX_SESSIONS:
                self._keys = {"": NOBODY}
            key = self._keys[text] = z85.decode(text)
        identity, route = key + session, first.bytes
        way = self._ways.get(identity)
        if way is None or way.route != route:
            self._ways[identity] = _Way(route, int(first.get(zmq.SRCFD)))
            if len(self._ways) > MAX_SESSIONS:
                self._ways.popitem(last=False)
        self._ways.move_to_end(identity)
        return identity

    def close(self) -> None:
        """Stop listening."""
        self.channels.close()
        self._stop()

    def _stop(self) -> None:
        self.socket.close()
        if self._guard is not None:
            self._guard.stop()


def _why_not(bind: str, error: zmq.ZMQError) -> str:
    """Return why nothing can listen at an address: ZeroMQ calls a name that nobody knows a missing device."""
    host, port = split_address(bind)
    try:
        socket.getaddrinfo(host.strip("[]"), port)
    except (OSError, UnicodeError):
        return f"host '{host}' cannot be found; is its name right?"
    return str(error.strerror)


def _is_ipv6(address: str) -> bool:
    """Whether the host of an address is an IPv6 address; a name is looked up as IPv4."""
    return split_address(address)[0].startswith("[")


def _user(frame: zmq.Frame) -> str:
    """Return the key that ZeroMQ has found a message's sender to have; empty without a lock."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


def _end(descriptor: int) -> None:
    """End a connection of ZeroMQ, which has no call for that."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RD)


class ControlClient:
    """The end of an agent or client; it reconnects for ever by itself.

    Invariants: the identity stays the same over reconnections.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        find_lock: FindLock = no_lock,
        *,
        closed_before_sure: float = CLOSED,
    ) -> None:
        """Begin to connect to `tcp://HOST:PORT`, with the keys that `find_lock` returns.

        After `closed_before_sure` handshakes that the other side has ended without a reason, the keys are taken for wrong.

        Raises:
            UsageError: if the address is malformed.
            AccessError: if `find_lock` does.
        """
        self._context = context
        self._session = secrets.token_bytes(SESSION_BYTES)
        self._find_lock = find_lock
        self._closed_before_sure = closed_before_sure
        self.lock: ClientLock | None = None
        self.address = address
        self.channel: Channel | None = None
        self._broken = False
        self.socket = self._open()

    @property
    def files(self) -> tuple[zmq.Socket[bytes] | int, ...]:
        """What to poll: a message may wait when one of them is readable."""
        return (self.socket,) if self.channel is None else (self.socket, self.channel.fileno())

    def use_channel(self, invitation: str) -> None:
        """Open the channel that the coordinator invites to, if it is on this machine."""
        self._leave_channel()
        self.channel = open_channel(invitation)

    def _leave_channel(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def _open(self) -> zmq.Socket[bytes]:
        self.lock = self._find_lock()
        socket = self._context.socket(zmq.DEALER)
        _limit(socket)
        if self.lock is not None:
            self.lock.set_on(socket)
        socket.ipv6 = _is_ipv6(self.address)
        socket.reconnect_ivl = 100
        socket.reconnect_ivl_max = 2_000
        self._failures, self._refused = 0, ""
        self._monitor = socket.get_monitor_socket(FAILED | zmq.EVENT_DISCONNECTED)
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            self._close(socket, 0)
            raise UsageError(f"address '{self.address}': expected tcp://HOST:PORT: {error.strerror}") from error
        return socket

    def _close(self, socket: zmq.Socket[bytes], linger_ms: int | None = None) -> None:
        socket.disable_monitor()
        self._monitor.close(0)
        socket.close(linger_ms)

    @property
    def refused(self) -> str:
        """Why the coordinator does not take this side's connections, if it has said so; then there will be none before `reopen`."""
        self._look()
        return self._refused

    def was_broken(self) -> bool:
        """Whether a connection has ended since this was asked last: what was on its way may be lost."""
        self._look()
        broken, self._broken = self._broken, False
        return broken

    def _look(self) -> None:
        """Note what ZeroMQ tells of the connection."""
        while self._monitor.poll(0):
            message = recv_monitor_message(self._monitor)
            event, value = int(message["event"]), int(message["value"])
            self._broken = self._broken or event == zmq.EVENT_DISCONNECTED
            self._failures += was_closed(event, value)
            why = refusal(self.lock, self.address, event, value, closed=self._failures >= self._closed_before_sure)
            self._refused = self._refused or why

    def has_new_lock(self) -> bool:
        """Whether the keys are others than those of this connection: a token was replaced."""
        return self._find_lock() != self.lock

    def reopen(self) -> None:
        """Replace the connection; what was queued is lost."""
        self._leave_channel()
        self._close(self.socket, 0)
        self.socket = self._open()

    def send(self, frames: Sequence[BytesLike]) -> None:
        """Send a message; with a full queue it is lost, and the protocol says it again."""
        if self.channel is None or not self.channel.send(frames):
            frame_pieces.send(self.socket, frame_pieces.cut(self._session, frames))

    def receive(self) -> list[BytesLike] | None:
        """Take a waiting message, or None."""
        try:
            frames = None if self.channel is None else self.channel.receive()
        except (ConnectionError, RemoteProtocolError):  # the other connection says what is to be said
            self._leave_channel()
            self._broken = True
            frames = None
        if frames is not None:
            return frames
        while (received := frame_pieces.receive(self.socket, route=0)) is not None:
            self._failures = 0
            if frames := frame_pieces.join(
                received[1][0], received[1][1:]
            ):  # else it was too large, or only asked whether this side is there
                return frames
        return None

    def close(self) -> None:
        """Close the connection, after what is queued has gone out or half a second has passed."""
        self._leave_channel()
        self._close(self.socket)

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


def is_listening(address: str, within_s: float) -> bool:
    """Whether anything takes connections at an address."""
    host, port = split_address(address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), within_s).close()
    except (OSError, UnicodeError, OverflowError):
        return False
    return True


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
