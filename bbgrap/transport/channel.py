"""A shared-memory channel: control messages between a client and the coordinator on its machine.

    client ── packet: small frames, places of large ones ──► coordinator        the same the other way
       └── writes ──► first half │ second half ◄── writes ──┘                   of one piece of memory

The memory comes from the client (`bbgrap.transport.shared_memory`); packets travel over the local socket that it was passed over. Laws: a
place is inside the sender's half or the connection ends; a block is written again only when the receiver has given it back, and never if a
process that was forked may have it; what does not fit is for the connection over ZeroMQ.

    packet: number of frames 2 | of places given back 2 | per frame: place 8, length 8 | per place given back: 8 | small frames
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.block_allocator import BlockAllocator
from bbgrap.transport.shared_memory import TOKEN_BYTES, is_invitation, map_sealed, offer_memory, receive_memory

HALF_BYTES = 128 << 20
"""What one side may have on its way. Chosen: a reader of text answers 58 MB for six lines, while its user may still have the last answer.

Memory is taken only as it is used.
"""
WELCOME = b"welcome"
"""What the coordinator answers when it has the memory."""
SMALL_BYTES = 16 << 10
"""Frames below this travel in the packet. Chosen: two copies of so little cost less than keeping account of a block."""
KEPT_BYTES = HALF_BYTES // 2
"""What a client may keep of the other half as its outputs; of further ones it gets copies. Chosen: half is left for what is on its way."""
COPIED_BYTES = 64 << 10
"""Smaller outputs are copied in any case: it takes some microseconds, and keeps `KEPT_BYTES` to a few hundred of them."""
_PACKET_BYTES = 60 << 10
_MOST_FRAMES = 1100
_INLINE = 2**64 - 1
_HEAD = struct.Struct("<HH")
_FRAME = struct.Struct("<QQ")


class Channel:
    """One end of a channel.

    Invariants: `_lent` counts the places that the other side has not given back; one thread uses it, but for memory that is let go.
    """

    def __init__(self, connection: socket.socket, memory: mmap.mmap, *, client: bool) -> None:
        """Take over a connection and the memory that belongs to it; the first half is the client's."""
        self._connection, self._memory, self._client = connection, memory, client
        self._blocks = BlockAllocator(0 if client else HALF_BYTES, HALF_BYTES)
        self._address = np.frombuffer(memory, np.uint8).ctypes.data
        self._theirs = HALF_BYTES if client else 0
        self._lent: Counter[int] = Counter()
        self._unused: deque[int] = deque()
        """Own blocks that nobody here needs any more."""
        self._read: deque[int] = deque()
        """Places of the other side to be given back."""
        self._kept: list[tuple[weakref.finalize[..., Any], int]] = []
        """What gives back the client's outputs, and their bytes."""
        self._forked = False
        if client:
            _CLIENTS.add(self)
        self._packet = memoryview(bytearray(_PACKET_BYTES))
        self.ready = not client
        """Whether the other side is known to have the memory."""

    def fileno(self) -> int:
        """The file descriptor to poll."""
        return self._connection.fileno()

    def memory(self, nbytes: int) -> memoryview | None:
        """Return memory that can be sent without a copy; it is free again once it is neither needed here nor on its way."""
        start = self._take(nbytes)
        if start is None:
            return None
        block = np.ndarray(nbytes, np.uint8, self._memory, start)
        weakref.finalize(block, self._unused.append, start).atexit = False
        return block.data

    def send(self, frames: Sequence[BytesLike]) -> bool:
        """Send a message; False if it must go another way: there is no room, or the connection has ended."""
        if not self.ready or len(frames) > _MOST_FRAMES:
            return False
        places = [self._place(frame) if len(frame) >= SMALL_BYTES else _INLINE for frame in frames]
        lent = [place for place in places if place is not None and place != _INLINE]
        small = [frame for frame, place in zip(frames, places, strict=True) if place == _INLINE]
        if None not in places and self._say([(place or 0, len(f)) for place, f in zip(places, frames, strict=True)], small):
            self._lent.update(lent)
            return True
        for place in lent:
            self._blocks.drop(place)
        return False

    def give_back(self) -> None:
        """Tell the other side which places have been read; with the next message they are told anyway."""
        if self._read and self.ready:
            self._say([], [])

    def receive(self) -> list[BytesLike] | None:
        """Take a waiting message, or None.

        A client gets outputs that are its own, a coordinator what it must not write to.

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
        if not self.ready:
            if self._packet[:count] != WELCOME:
                raise RemoteProtocolError("shared-memory channel: expected a welcome")
            self.ready = True
            return None
        try:
            return self._open(self._packet[:count])
        except (struct.error, LookupError) as error:
            raise RemoteProtocolError(f"shared-memory channel: expected a packet, got {count} other bytes: {error}") from error

    def close(self) -> None:
        """End the connection; the memory lasts as long as something of it is in use."""
        self.ready = False
        self._connection.close()

    # --- own memory -----------------------------------------------------------------------------------------------------------------

    def _take(self, nbytes: int) -> int | None:
        while self._unused:
            self._blocks.drop(self._unused.popleft())
        return self._blocks.take(nbytes)

    def _place(self, frame: BytesLike) -> int | None:
        """Return where a frame is in the shared memory, with one holder more; it is copied there unless it is there."""
        content = np.frombuffer(frame, np.uint8)
        place = int(content.__array_interface__["data"][0]) - self._address
        if self._blocks.start <= place < self._blocks.stop:
            self._blocks.hold(place)
            return place
        start = self._take(len(frame))
        if start is not None:
            np.copyto(np.ndarray(len(frame), np.uint8, self._memory, start), content)
        return start

    def _say(self, frames: Sequence[tuple[int, int]], small: Sequence[BytesLike]) -> bool:
        if sys.platform == "win32":
            return False
        back = [self._read.popleft() for _ in range(min(len(self._read), _MOST_FRAMES))]
        head = [_HEAD.pack(len(frames), len(back)), *(_FRAME.pack(*frame) for frame in frames), struct.pack(f"<{len(back)}Q", *back)]
        size = sum(map(len, head)) + sum(map(len, small))
        try:
            if size <= _PACKET_BYTES:
                self._connection.sendmsg([b"".join(head), b"".join(small)])
                return True
        except OSError:  # it is full, or it has ended: that is noticed where it is read
            pass
        self._read.extendleft(reversed(back))
        return False

    # --- the other side's -------------------------------------------------------------------------------------------------------------

    def _open(self, packet: memoryview) -> list[BytesLike] | None:
        count, back = _HEAD.unpack_from(packet)
        frames = [_FRAME.unpack_from(packet, _HEAD.size + _FRAME.size * number) for number in range(count)]
        position = _HEAD.size + _FRAME.size * count
        for place in struct.unpack_from(f"<{back}Q", packet, position):
            self._returned(place)
        position += 8 * back
        inline = sum(length for place, length in frames if place == _INLINE)
        if position + inline != len(packet) or any(not self._is_theirs(*frame) for frame in frames):
            raise LookupError("a frame is outside the packet or the sender's memory")
        message: list[BytesLike] = []
        for place, length in frames:
            if place == _INLINE:
                message.append(bytes(packet[position : position + length]))
                position += length
            else:
                message.append(self._content(place, length, header=not message))
        return message or None

    def _is_theirs(self, place: int, length: int) -> bool:
        return place == _INLINE or (self._theirs <= place and place + length <= self._theirs + HALF_BYTES)

    def _returned(self, place: int) -> None:
        if not self._lent[place]:
            raise LookupError(f"place {place} was not lent")
        self._lent[place] -= 1
        if not self._lent[place]:
            del self._lent[place]
        self._blocks.drop(place)

    def _content(self, place: int, length: int, *, header: bool) -> BytesLike:
        content = np.ndarray(length, np.uint8, self._memory, place)
        # Headers are parsed, so nobody may change them meanwhile.
        if header or (self._client and not self._may_keep(length)):
            self._read.append(place)
            return content.copy().data
        content.flags.writeable = self._client
        giving_back = weakref.finalize(content, self._read.append, place)
        giving_back.atexit = False
        if self._client:
            self._kept.append((giving_back, length))
        return content.data

    def _may_keep(self, length: int) -> bool:
        """Whether the user may have so many bytes more as they are in the other half, for as long as they like."""
        if self._forked or length < COPIED_BYTES:
            return False
        self._kept = [(giving_back, nbytes) for giving_back, nbytes in self._kept if giving_back.alive]
        return sum(nbytes for _, nbytes in self._kept) + length <= KEPT_BYTES

    def on_fork(self) -> None:
        """Never give back what is kept: the child will have it, too, and cannot say for how long. From now on there are copies."""
        self._forked = True
        for giving_back, _ in self._kept:
            giving_back.detach()


_CLIENTS: weakref.WeakSet[Channel] = weakref.WeakSet()


def _before_fork() -> None:
    for channel in list(_CLIENTS):
        channel.on_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


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
        connection.send(WELCOME)
    except (OSError, ValueError) as error:
        raise RemoteProtocolError(f"{expected}, {error}") from error
    finally:
        os.close(descriptor)
    return word, Channel(connection, memory, client=False)
