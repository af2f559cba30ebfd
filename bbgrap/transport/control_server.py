"""The coordinator's end of all control connections; its laws are those of `bbgrap.transport.control_sockets`.

What a peer has not read of what it was sent ZeroMQ keeps, by messages and not by bytes. Law: what is kept for one connection is at most
`MAX_UNREAD_BYTES`, what was sent between two looks, and one message.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import zmq
from zmq.utils import z85

from bbgrap.errors import UsageError
from bbgrap.protocol.addresses import split_address
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport import frame_pieces
from bbgrap.transport.admission import KeyCheck, ThrottledListener
from bbgrap.transport.channel import Channels
from bbgrap.transport.control_sockets import SESSION_BYTES, is_ipv6, read_monitor, set_limits, why_unknown
from bbgrap.transport.dead_peers import facts_by
from bbgrap.transport.locks import NOBODY, ServerLock

MAX_SESSIONS = 16_384
"""Whose connections are known; of more, those that have spoken least lately must speak first to be answered."""
_WAITING_CONNECTIONS = 1024
"""That the system may hold until they are looked at."""
MAX_UNREAD_BYTES = 1 << 30
"""Beyond it, messages to a connection are lost. Chosen: one of the largest tensors."""
LOOK_BYTES = 64 << 20
"""The system is asked anew when so much has been sent: a call of a microsecond."""


def key_of(identity: bytes) -> bytes:
    """Return the public key of a peer; `NOBODY` where connections have no lock."""
    return identity[: len(NOBODY)]


@dataclass(slots=True)
class Unread:
    """What was sent over one connection of ZeroMQ and has not been acknowledged, by the descriptor below it."""

    descriptor: int
    bytes: int = 0
    """As of the last look, and all that was sent since."""
    _acknowledged: int = 0
    _looked_bytes: int = 0

    def sent(self, size: int) -> None:
        """Note that so many bytes go their way."""
        self.bytes += size

    def is_full(self) -> bool:
        """Find out whether nothing more is to be sent; what encryption adds is acknowledged, too, and makes it a little less than it is."""
        if self.bytes - self._looked_bytes >= LOOK_BYTES or self._looked_bytes > MAX_UNREAD_BYTES:
            now = facts_by(self.descriptor).acknowledged
            # Where the system does not tell, everything counts as read.
            self.bytes = 0 if now is None else max(0, self.bytes - (now - self._acknowledged))
            self._acknowledged, self._looked_bytes = now or 0, self.bytes
        return self._looked_bytes > MAX_UNREAD_BYTES


class _Way(NamedTuple):
    """How to answer a peer: ZeroMQ's number of its connection, and what it has not read of it."""

    route: bytes
    unread: Unread


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
        set_limits(self.socket)
        self.socket.backlog = _WAITING_CONNECTIONS
        # A message to a connection that is gone shall be known as lost.
        self.socket.router_mandatory = True
        try:
            if lock is not None:
                lock.set_on(self.socket)
                self._guard = KeyCheck(context, lock.admits)
            self.listener = self._listen(bind)
            self.channels = Channels()
        except BaseException:  # a context waits for all its sockets
            self._stop()
            raise
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._ways: OrderedDict[bytes, _Way] = OrderedDict()
        self._ending: list[tuple[_Way, Sequence[BytesLike]]] = []
        self._channels_first = False

    def _listen(self, bind: str) -> ThrottledListener:
        self.socket.ipv6 = is_ipv6(bind)
        with self.socket.get_monitor_socket(zmq.EVENT_LISTENING) as monitor:
            try:
                self.socket.bind(bind)
                listener = ThrottledListener(read_monitor(monitor)[1])
            except zmq.ZMQError as error:
                if error.errno == zmq.EADDRINUSE:
                    raise UsageError(
                        f"address {bind} is in use; is a coordinator running already? choose another port with --bind"
                    ) from error
                raise UsageError(f"address {bind}: expected tcp://HOST:PORT of this machine: {_why_not(bind, error)}") from error
            self.socket.disable_monitor()
        return listener

    def send(self, identity: bytes, frames: Sequence[BytesLike]) -> bool:
        """Send a message to a peer; one to a peer that is gone, or does not read, is lost. Return whether it can be reached."""
        if self.channels.send(identity, frames):
            return True
        way = self._ways.get(identity)
        return way is not None and not way.unread.is_full() and self._send(way, frames)

    def _send(self, way: _Way, frames: Sequence[BytesLike]) -> bool:
        try:
            if frame_pieces.send(self.socket, [way.route, *frame_pieces.cut(b"", frames)]):
                way.unread.sent(sum(memoryview(frame).nbytes for frame in frames))
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
                _end(way.unread.descriptor)
        self._ending = []

    def throttle(self) -> None:
        """Keep strangers from taking all descriptors; to be called some times a second."""
        self.listener.throttle(self._guard.refused if self._guard is not None else 0)

    def _receive(self) -> tuple[bytes, list[BytesLike]] | None:
        received = frame_pieces.receive(self.socket, route=1)
        if received is None:
            return None
        first, frames = received
        begin = memoryview(frames[1]) if len(frames) > 1 else memoryview(b"")
        # One that is too short for a session is no message either: it is handed on, so that whoever sends such ones is named.
        identity = self._known(first, bytes(begin[:SESSION_BYTES]).ljust(SESSION_BYTES, b"\0"))
        return identity, frame_pieces.join(begin[SESSION_BYTES:], frames[2:])

    def _known(self, first: zmq.Frame, session: bytes) -> bytes:
        """Return who has sent a message, and remember by which connection."""
        text = _user(first) if self._guard is not None else ""  # without a lock the peer itself says who it is
        identity, route = (_decoded(text) if text else NOBODY) + session, first.bytes
        way = self._ways.get(identity)
        if way is None or way.route != route:
            self._ways[identity] = _Way(route, Unread(int(first.get(zmq.SRCFD))))
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
    if why_unknown(bind):
        return f"host '{split_address(bind)[0]}' cannot be found; is its name right?"
    if error.errno == errno.ENODEV:  # as ZeroMQ calls a name that it does not find
        return "a name is looked up as IPv4; give an IPv6 address as tcp://[ADDRESS]:PORT"
    return str(error.strerror)


_decoded = lru_cache(MAX_SESSIONS)(z85.decode)
"""Returns the key in a text: every message says whose it is."""


def _user(frame: zmq.Frame) -> str:
    """Return the key that ZeroMQ has found a message's sender to have; empty if it has found none."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


def _end(descriptor: int) -> None:
    """End a connection of ZeroMQ, which has no call for that."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RD)
