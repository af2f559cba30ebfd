"""A shared-memory channel: control messages between a client and the coordinator on its machine.

    client ── packet: small frames, places of large ones ──► coordinator        the same the other way
       └── lays ──► first half │ second half ◄── lays ──┘                     of one piece of memory

The memory comes from the client (`bbgrap.transport.shared_memory`); packets travel over the local socket that it was passed over. Each half
is a `bbgrap.transport.payload_memory`, whose laws hold here. A wrong place ends the connection; what does not fit is for the connection
over ZeroMQ.

    packet: number of frames 2 | per frame: place 8, length 8 | small frames
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence

import numpy as np

from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.payload_memory import PAGE_BYTES, PayloadReader, PayloadWriter
from bbgrap.transport.shared_memory import TOKEN_BYTES, is_invitation, map_sealed, offer_memory, receive_memory

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
