"""A shared-memory channel: control messages between a client and the coordinator on its machine.

    client ── packet: small frames, places of large ones ──► coordinator        the same the other way
       └── lays ──► first half │ second half ◄── lays ──┘                     of one piece of memory

The memory comes from the client (`bbgrap.transport.shared_memory`); packets travel over the local socket that it was passed over. Each half
is a `bbgrap.transport.payload_memory`, whose laws hold here. A wrong place ends the connection; what does not fit is for the connection
over ZeroMQ.

    packet: number of frames 2 | per frame: place 8, length 8 | small frames
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import selectors
import socket
import struct
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import numpy as np

from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.payload_memory import PAGE_BYTES, PayloadReader, PayloadWriter
from bbgrap.transport.shared_memory import TOKEN_BYTES, is_invitation, is_same_user, listen, map_sealed, offer_memory, receive_memory
from bbgrap.transport.strangers import PeerWarnings

RING_BYTES = 128 << 20
"""What one side may have on its way. Chosen: a reader of text answers 58 MB for six lines, and two threads may ask.

Memory is taken only as it is used.
"""
HALF_BYTES = PAGE_BYTES + RING_BYTES
SMALL_BYTES = 16 << 10
"""Frames below this travel in the packet. Chosen: two copies of so little cost no more than to name a place."""
_PACKET_BYTES = 60 << 10
_MOST_FRAMES = 1100
_INLINE = 2**64 - 1
_COUNT = struct.Struct("<H")
_FRAME = struct.Struct("<QQ")


class Channel:
    """One end of a channel; one thread uses it."""

    def __init__(self, connection: socket.socket, memory: mmap.mmap, *, client: bool) -> None:
        """Take over a connection and the memory that belongs to it; the first half is the client's."""
        self._connection = connection
        halves = memoryview(memory)[:HALF_BYTES], memoryview(memory)[HALF_BYTES:]
        self._own, self._other = PayloadWriter(halves[not client]), PayloadReader(halves[client])
        self._packet = memoryview(bytearray(_PACKET_BYTES))

    def fileno(self) -> int:
        """The file descriptor to poll."""
        return self._connection.fileno()

    def send(self, frames: Sequence[BytesLike]) -> bool:
        """Send a message; False if it must go another way: there is no room, or the other side is not there, yet or any more."""
        if not self._own.is_read or len(frames) > _MOST_FRAMES:
            return False
        mark = self._own.mark()
        places = [self._own.put([frame], len(frame)) if len(frame) >= SMALL_BYTES else _INLINE for frame in frames]
        known = [place for place in places if place is not None]
        if len(known) == len(frames) and self._say(known, frames):
            return True
        self._own.go_back(mark)
        return False

    def _say(self, places: Sequence[int], frames: Sequence[BytesLike]) -> bool:
        if sys.platform == "win32":
            return False
        head = [_FRAME.pack(place, len(frame)) for place, frame in zip(places, frames, strict=True)]
        packet = b"".join([_COUNT.pack(len(frames)), *head, *(f for place, f in zip(places, frames, strict=True) if place == _INLINE)])
        if len(packet) > _PACKET_BYTES:
            return False
        try:
            self._connection.send(packet)
        except OSError:  # it is full, or it has ended: that is noticed where it is read
            return False
        return True

    def receive(self) -> list[BytesLike] | None:
        """Take a waiting message, or None.

        Raises:
            ConnectionError: if the connection has ended.
            RemoteProtocolError: if it carried anything else; it cannot be used any more.
        """
        if sys.platform == "win32":
            raise ConnectionResetError("shared-memory channel: Windows has none")
        try:
            count, _, flags, _ = self._connection.recvmsg_into([self._packet])
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectionResetError(f"shared-memory channel: {error.strerror}") from error
        if count == 0:
            raise ConnectionResetError("shared-memory channel: the other side has ended it")
        if flags & socket.MSG_TRUNC:
            raise RemoteProtocolError(f"shared-memory channel: expected packets of at most {_PACKET_BYTES} bytes")
        try:
            return self._open(self._packet[:count])
        except (struct.error, RemoteProtocolError) as error:
            raise RemoteProtocolError(f"shared-memory channel: expected a packet, got {count} other bytes: {error}") from error

    def _open(self, packet: memoryview) -> list[BytesLike] | None:
        (count,) = _COUNT.unpack_from(packet)
        frames = [_FRAME.unpack_from(packet, _COUNT.size + _FRAME.size * number) for number in range(count)]
        position = _COUNT.size + _FRAME.size * count
        if position + sum(length for place, length in frames if place == _INLINE) != len(packet):
            raise RemoteProtocolError("a frame is outside the packet")
        message: list[BytesLike] = []
        for place, length in frames:
            if place == _INLINE:
                message.append(bytes(packet[position : position + length]))
                position += length
            else:
                self._other.check(place, length)
                # Not bytes: they become arrays, which are aligned, and a client's own.
                message.append(np.empty(length, np.uint8).data)
                self._other.copy(place, memoryview(message[-1]))
                self._other.release(place, length)
        self._other.tell()
        return message or None

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


# --- opening ----------------------------------------------------------------------------------------------------------------------


def open_channel(invitation: str) -> Channel | None:
    """Offer memory to the coordinator that invites, if it is on this machine; None if it is not, or not of this user."""
    if not is_invitation(invitation):
        return None
    try:
        connection, descriptor = offer_memory(invitation, "bbgrap-channel", 2 * HALF_BYTES, 0.0)
    except OSError:  # another machine or container, no memory: everything works without
        return None
    try:
        return Channel(connection, map_sealed(descriptor, 2 * HALF_BYTES), client=True)
    except (OSError, ValueError):
        connection.close()
        return None
    finally:
        os.close(descriptor)


def accept_channel(connection: socket.socket, is_invited: Callable[[bytes], bool]) -> tuple[bytes, Channel]:
    """Take what a client offers first; return the word that it was invited with, and the channel.

    Raises:
        RemoteProtocolError: if it is nothing that can be used safely.
        BlockingIOError: if nothing is there.
    """
    expected = f"shared memory: expected a token of {TOKEN_BYTES} bytes and one file of {2 * HALF_BYTES} sealed bytes"
    try:
        offered = receive_memory(connection)
    except BlockingIOError:
        raise
    except OSError as error:
        raise RemoteProtocolError(f"shared memory: {error.strerror}") from error
    if offered is None:
        raise RemoteProtocolError(f"{expected}, got something else")
    word, descriptor = offered
    try:
        if not is_invited(word):
            raise RemoteProtocolError("shared memory: it was offered by somebody who was not invited")
        memory = map_sealed(descriptor, 2 * HALF_BYTES)
    except (OSError, ValueError) as error:
        raise RemoteProtocolError(f"{expected}, {error}") from error
    finally:
        os.close(descriptor)
    return word, Channel(connection, memory, client=False)


# --- the coordinator's ends -------------------------------------------------------------------------------------------------------

MAX_INVITED = 1024
"""Clients that have been invited and have not come: those on other machines never do. Of more, the oldest are forgotten."""
MAX_CHANNELS = 16
"""Chosen: each may take 256 MiB; further clients use ZeroMQ."""
_AT_ONCE = 32
"""Connections that are taken in before others get their turn."""
_LOOKS = 4
"""In one call: for a connection, its offer, and its first message."""

_log = logging.getLogger("bbgrap.transport")


class Channels:
    """Channels of clients.

    Invariants: `_open` has the newest channel of an identity; every connection is registered; used by one thread.
    """

    def __init__(self) -> None:
        """Listen, if this system can."""
        self._selector = selectors.DefaultSelector()
        self._warnings = PeerWarnings(_log)
        self._open: dict[bytes, Channel] = {}
        self._strangers: dict[socket.socket, None] = {}
        self._ready: deque[tuple[bytes, Channel]] = deque()
        self._invited: OrderedDict[bytes, bytes] = OrderedDict()
        found = listen()
        self._name = "" if found is None else found[0]
        self._listener = None if found is None else found[1]
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """A file descriptor that is readable when there is something to receive; for a poller."""
        if sys.platform == "win32":
            raise NotImplementedError("coordinators do not run on Windows")
        return self._selector.fileno()

    def invite(self, identity: bytes) -> str:
        """Return where a client on this machine may offer memory, with a word that only it knows; empty if it cannot."""
        if not self._name:
            return ""
        word = secrets.token_bytes(TOKEN_BYTES)
        self._invited[word] = identity
        while len(self._invited) > MAX_INVITED:
            self._invited.popitem(last=False)
        return f"{self._name} {word.hex()}"

    def end(self, key: bytes) -> None:
        """End the channels of all identities that begin with a key, and forget who was invited of them."""
        for identity, channel in list(self._open.items()):
            if identity.startswith(key):
                self._forget(identity, channel)
        self._invited = OrderedDict((word, identity) for word, identity in self._invited.items() if not identity.startswith(key))

    def send(self, identity: bytes, frames: Sequence[BytesLike]) -> bool:
        """Send a message; False if it must go another way."""
        channel = self._open.get(identity)
        return channel is not None and channel.send(frames)

    def receive(self) -> tuple[bytes, list[BytesLike]] | None:
        """Take a waiting message, or None."""
        for _ in range(_LOOKS):
            while self._ready:
                identity, channel = self._ready.popleft()
                try:
                    frames = channel.receive()
                except (ConnectionError, RemoteProtocolError) as error:
                    if isinstance(error, RemoteProtocolError):
                        self._warnings.warn("a process on this machine", f"{error}; the connection is closed")
                    self._forget(identity, channel)
                    continue
                if frames is not None:
                    return identity, frames
            events = self._selector.select(0)
            if not events:
                break
            for key, _ in events:
                self._attend(key)
        return None  # whatever comes still: strangers must not keep the caller here

    def listen_again(self) -> None:
        """Take in clients again after a crowd; to be called some times a second."""
        if self._listener is not None and self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """End all."""
        for channel in self._open.values():
            channel.close()
        for connection in self._strangers:
            connection.close()
        if self._listener is not None:
            self._listener.close()
        self._open, self._strangers = {}, {}
        self._selector.close()

    def _attend(self, key: selectors.SelectorKey) -> None:
        if key.data is not None:
            self._ready.append(key.data)
        elif key.fileobj is self._listener:
            self._accept(self._listener)
        elif key.fileobj in self._strangers and isinstance(key.fileobj, socket.socket):  # not turned away a moment ago
            self._greet(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        """Take in who waits; after a crowd, nobody until the next `listen_again`: every user of this machine may knock."""
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._take_in(connection)
        self._selector.unregister(listener)

    def _take_in(self, connection: socket.socket) -> None:
        if len(self._open) >= MAX_CHANNELS or not is_same_user(connection):
            connection.close()
            return
        while len(self._strangers) + len(self._open) >= MAX_CHANNELS:
            self._turn_away(next(iter(self._strangers)))
        connection.setblocking(False)
        self._strangers[connection] = None
        self._selector.register(connection, selectors.EVENT_READ)

    def _greet(self, connection: socket.socket) -> None:
        try:
            word, channel = accept_channel(connection, self._invited.__contains__)
        except BlockingIOError:
            return
        except RemoteProtocolError as error:
            self._warnings.warn("a process on this machine", f"{error}; the connection is closed")
            self._turn_away(connection)
            return
        identity = self._invited.pop(word)
        del self._strangers[connection]
        if identity in self._open:
            self._forget(identity, self._open[identity])
        self._open[identity] = channel
        self._selector.modify(connection, selectors.EVENT_READ, (identity, channel))

    def _turn_away(self, connection: socket.socket) -> None:
        del self._strangers[connection]
        self._selector.unregister(connection)
        connection.close()

    def _forget(self, identity: bytes, channel: Channel) -> None:
        if self._open.get(identity) is channel:
            del self._open[identity]
            self._selector.unregister(channel)
            channel.close()
