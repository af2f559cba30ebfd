"""The messages of the data plane (`bbgrap.transport.tcp`), what it asks and tells, and their framing: a stream of bytes, no socket.

    | magic 2 | header length 2 | payload length 4 | header | payload |                    little endian
    | magic 2 | 8 + header length | payload length 4 | place 8 | header |                  the payload lies in memory that both sides have
    | magic 2 | header length 2 | payload length 4 | header |                              the payload comes in pieces, each of which is
    | magic 2 | 0 | length of the piece 4 | piece |                                        this; others of these messages may come between

Both lengths zero are a greeting: it says that the other side speaks this protocol, before its first message. Laws: what `frame_head`
and the payload make, `MessageReader` takes apart, however the stream is cut; a stream that is anything else raises `RemoteProtocolError`
before more than `MAX_DATA_HEADER` bytes of it are kept; memory for a large payload is taken only if it was admitted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bbgrap.errors import LocalProtocolError, RemoteProtocolError
from bbgrap.protocol.limits import MAX_TENSOR_BYTES
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.payload_memory import PayloadReader


class Arrival(NamedTuple):
    """A message that came: its header and payload, the network address of the sender for log lines, and who it is.

    `peer` is the fingerprint of the certificate that the sender has shown, "" on a plane without any.
    """

    header: BytesLike
    payload: BytesLike
    sender: str = "a peer"
    peer: str = ""


Admit = Callable[[BytesLike, int, str], bool]
"""Whether a message with this header may have a payload of so many bytes from this peer."""

OnBroken = Callable[[str, str], None]
"""Told the address and the reason when messages to an address may have been lost, or none can be sent; what waited for it is forgotten.

It is called from a thread of the data plane, and must neither wait nor raise.
"""


def nobody_listens(address: str, reason: str) -> None:
    """Do nothing about a broken connection."""


def rest_of(pieces: Sequence[BytesLike], sent: int) -> list[BytesLike]:
    """Return what is left of a message, given in pieces, of which so many bytes have been sent."""
    rest: list[BytesLike] = []
    for piece in pieces:
        if sent >= len(piece):
            sent -= len(piece)
        else:
            rest.append(memoryview(piece)[sent:])
            sent = 0
    return rest


MAX_DATA_HEADER = 256
"""Bytes of a header. Chosen: those of `bbgrap.protocol.data` take 32."""
SMALL_BYTES = 64 << 10
"""A payload up to here is taken without asking. Chosen: it holds a row of halo, and 512 strangers with one each take 32 MiB."""

PIECE_BYTES = 256 << 10
"""What is small waits for one of these at most, of a payload above `WHOLE_BYTES`: 0.4 s at 5 Mbit/s. Chosen."""
WHOLE_BYTES = 1 << 20
"""A payload up to here is not cut: in three pieces 600 KB take 15 µs longer (measured), 5 MiB do not."""

_MAGIC, _MAGIC_LAID, _MAGIC_CUT, _MAGIC_PIECE = 0xBB67, 0xBB68, 0xBB69, 0xBB6A
_HEAD = struct.Struct("<HHI")
_PLACE = struct.Struct("<Q")

GREETING = _HEAD.pack(_MAGIC, 0, 0)
_BEGINS = tuple(struct.pack("<H", magic) for magic in (_MAGIC, _MAGIC_LAID, _MAGIC_CUT, _MAGIC_PIECE))


def frame_head(header: BytesLike, payload_bytes: int, place: int | None = None, *, cut: bool = False) -> bytes:
    """Return everything of a message that precedes its payload, or its pieces; all of it if that is laid at a place of a memory.

    Raises:
        LocalProtocolError: if the message is too large for any receiver.
    """
    if place is not None:
        header = _PLACE.pack(place) + header
    if payload_bytes > MAX_TENSOR_BYTES:
        raise LocalProtocolError(f"data message: {payload_bytes} bytes exceed the limit of {MAX_TENSOR_BYTES}")
    if not 0 < len(header) <= MAX_DATA_HEADER:
        raise LocalProtocolError(f"data message: expected a header of 1 to {MAX_DATA_HEADER} bytes, got {len(header)}")
    magic = _MAGIC_CUT if cut else _MAGIC if place is None else _MAGIC_LAID
    return _HEAD.pack(magic, len(header), payload_bytes) + header


def frame_parts(header: BytesLike, payload: Sequence[BytesLike], nbytes: int) -> list[Sequence[BytesLike]]:
    """Return a message as it goes over a stream, in parts that other messages may go between."""
    if nbytes <= WHOLE_BYTES:
        return [[frame_head(header, nbytes), *payload]]
    parts: list[Sequence[BytesLike]] = [[frame_head(header, nbytes, cut=True)]]
    part: list[BytesLike] = []
    room = 0
    for content in payload:
        view, start = memoryview(content), 0
        while start < len(view):
            if not room:
                room = min(PIECE_BYTES, nbytes)
                nbytes -= room
                part = [_HEAD.pack(_MAGIC_PIECE, 0, room)]
                parts.append(part)
            part.append(view[start : start + room])
            start, room = start + len(part[-1]), room - len(part[-1])
    return parts


def is_laid(head: BytesLike) -> bool:
    """Whether a message that begins so has its payload in memory that both sides have."""
    return bytes(head[:2]) == _BEGINS[1]


def is_bound(head: BytesLike) -> bool:
    """Whether what begins so is of use over one connection only: its payload is in memory, or pieces before it went over that one."""
    return bytes(head[:2]) in {_BEGINS[1], _BEGINS[3]}


@dataclass(slots=True)
class _Cut:
    """A message whose payload comes in pieces: where it goes (None: it is not wanted), and how many bytes no piece was begun for yet."""

    header: bytes
    room: memoryview | None
    left: int


class MessageReader:
    """The messages of one stream.

    Invariants: `_begun` is less than a head with its header; at most one payload is incomplete beside that of `_cut`; `_payload` is a
    piece of that if `_is_piece`.
    """

    def __init__(self, peer: str = "") -> None:
        """Start at the beginning of a stream, that of a peer with this fingerprint."""
        self.peer = peer
        self.memory: PayloadReader | None = None
        """Where payloads are that messages only name the place of."""
        self.useful = False
        """Whether there was a whole message in it, or a large one that was admitted: anybody can greet."""
        self._begun = b""
        self._header = b""
        self._payload: memoryview | None = None
        self._filled = 0
        self._skip = 0
        self._cut: _Cut | None = None
        self._is_piece = False

    @property
    def room(self) -> memoryview | None:
        """The rest of the payload, or piece, that is being received: bytes may be put there directly, and told to `filled`."""
        return None if self._payload is None else self._payload[self._filled :]

    @property
    def missing(self) -> int:
        """Bytes of that which are not there yet; 0 if there is none."""
        return 0 if self._payload is None else len(self._payload) - self._filled

    def filled(self, count: int) -> tuple[bytes, memoryview] | None:
        """Note that so many bytes were put into `room`; return the message if that was its end."""
        payload = self._payload
        if payload is None:
            raise LocalProtocolError("data message: there is no payload to be filled")
        self._filled += count
        if self._filled < len(payload):
            return None
        self._payload, self.useful = None, True
        if not self._is_piece or self._cut is None:
            return self._header, payload
        self._is_piece = False
        return self._end_piece(self._cut)

    def _end_piece(self, cut: _Cut) -> tuple[bytes, memoryview] | None:
        if cut.left:
            return None
        self._cut = None
        return None if cut.room is None else (cut.header, cut.room)

    def feed(self, chunk: memoryview, admit: Admit) -> list[tuple[bytes, memoryview]]:
        """Take the next bytes and return the messages that end in them; nothing of `chunk` is kept.

        Raises:
            RemoteProtocolError: if this is no stream of messages; it cannot be read any further.
        """
        done: list[tuple[bytes, memoryview]] = []
        if self._begun:
            chunk, self._begun = memoryview(self._begun + bytes(chunk)), b""
        position, end = 0, len(chunk)
        while position < end:
            if self._skip:
                step = min(self._skip, end - position)
                self._skip -= step
            elif self._payload is not None:
                step = min(len(self._payload) - self._filled, end - position)
                self._payload[self._filled : self._filled + step] = chunk[position : position + step]
                message = self.filled(step)
                if message is not None:
                    done.append(message)
            else:
                step = self._begin(chunk[position:], admit, done)
                if step == 0:
                    self._begun = bytes(chunk[position:])
                    break
            position += step
        if self.memory is not None:
            self.memory.tell()
        return done

    def _begin(self, chunk: memoryview, admit: Admit, done: list[tuple[bytes, memoryview]]) -> int:
        """Read a head with its header; return how many bytes that were, 0 if they are not all there."""
        if len(chunk) < _HEAD.size:
            if not any(magic.startswith(bytes(chunk[:2])) for magic in _BEGINS):
                raise RemoteProtocolError("data plane: expected messages of bbgrap, got other bytes")
            return 0
        magic, header_bytes, payload_bytes = _HEAD.unpack_from(chunk)
        if not _MAGIC <= magic <= _MAGIC_PIECE:
            raise RemoteProtocolError("data plane: expected messages of bbgrap, got other bytes")
        least = _PLACE.size + 1 if magic == _MAGIC_LAID else 1 if payload_bytes and magic != _MAGIC_PIECE else 0
        if not least <= header_bytes <= MAX_DATA_HEADER or payload_bytes > MAX_TENSOR_BYTES:
            raise RemoteProtocolError(f"data plane: a message with {header_bytes} bytes of header and {payload_bytes} of payload")
        total = _HEAD.size + int(header_bytes)
        if len(chunk) < total:
            return 0
        self._begin_payload(magic, bytes(chunk[_HEAD.size : total]), payload_bytes, admit, done)
        return total

    def _begin_payload(self, magic: int, header: bytes, payload_bytes: int, admit: Admit, done: list[tuple[bytes, memoryview]]) -> None:
        if magic == _MAGIC_LAID:
            (place,) = _PLACE.unpack_from(header)
            self._fetch(place, header[_PLACE.size :], payload_bytes, admit, done)
        elif magic == _MAGIC_CUT:
            self._begin_cut(header, payload_bytes, admit)
        elif magic == _MAGIC_PIECE:
            self._begin_piece(len(header), payload_bytes)
        elif payload_bytes == 0:
            if header:
                done.append((header, memoryview(b"")))
                self.useful = True
        elif (room := self._room_for(header, payload_bytes, admit)) is None:
            self._skip = payload_bytes
        else:
            self.useful = self.useful or payload_bytes > SMALL_BYTES
            self._header, self._filled, self._payload = header, 0, room

    def _begin_cut(self, header: bytes, payload_bytes: int, admit: Admit) -> None:
        if self._cut is not None or not payload_bytes:
            raise RemoteProtocolError(f"data plane: a message of {payload_bytes} bytes in pieces, while another one is not over")
        room = self._room_for(header, payload_bytes, admit)
        self.useful = self.useful or (room is not None and payload_bytes > SMALL_BYTES)
        self._cut = _Cut(header, room, payload_bytes)

    def _begin_piece(self, header_bytes: int, piece_bytes: int) -> None:
        cut = self._cut
        if cut is None or header_bytes or not 0 < piece_bytes <= cut.left:
            raise RemoteProtocolError(
                f"data plane: a piece of {piece_bytes} bytes, expected 1 to {cut.left if cut else 0}, without a header"
            )
        start, cut.left = -cut.left, cut.left - piece_bytes
        if cut.room is None:
            self._skip = piece_bytes
            self._end_piece(cut)
        else:
            self._payload, self._filled, self._is_piece = cut.room[start : len(cut.room) - cut.left], 0, True

    def _room_for(self, header: bytes, payload_bytes: int, admit: Admit) -> memoryview | None:
        """Return where a payload goes; None if it is not wanted."""
        admitted = payload_bytes <= SMALL_BYTES or admit(header, payload_bytes, self.peer)
        # Not bytes: kernels want their inputs aligned.
        return np.empty(payload_bytes, np.uint8).data if admitted else None

    def _fetch(self, place: int, header: bytes, payload_bytes: int, admit: Admit, done: list[tuple[bytes, memoryview]]) -> None:
        """Take a payload from where it was laid."""
        if self.memory is None:
            raise RemoteProtocolError("data plane: a message names a place of a memory that is not shared with its sender")
        self.memory.check(place, payload_bytes)
        room = self._room_for(header, payload_bytes, admit)
        if room is not None:
            self.memory.copy(place, room)
            done.append((header, room))
            self.useful = True
        self.memory.release(place, payload_bytes)
