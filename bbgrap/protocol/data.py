"""The data plane's messages: a header of 32 bytes, framed without a codec, and a payload.

    magic | version | kind | source | message | epoch | request

`bbgrap.protocol.message_layout` says how tensors lie in the payload. Law: `Frame.parse` raises nothing but `RemoteProtocolError`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.limits import MAX_INTEGER
from bbgrap.protocol.messages import BytesLike

DATA_VERSION = 1
_MAGIC = b"BBGr"
_HEADER = struct.Struct("<4sBBHIxxxxQQ")


class Kind(IntEnum):
    """What a data message is."""

    DATA = 0
    """The parts of a `Send`."""
    START = 1
    """From the host to a device that it sends no tensor: a request begins."""
    PING = 2
    """Measuring: answer with as many bytes as `message` says. The payload is the address to answer to, and zeros."""
    PONG = 3
    """The answer to `PING`; `request` tells which."""
    RECORD = 4
    """From the host to a device, before anything else: a request begins, and when its steps are done is to be noted."""
    CLOCK = 5
    """To the host: what does your clock show? From it: the answer, with the number asked for in `message`; number 0 comes unasked when a
    recorded request is over. The payload is the clock, see `pack_number`."""
    STATE = 6
    """From the host to a device, before anything else: a request of a sequence begins. The payload is a `SequenceStart`."""
    KEEP = 7
    """From the host to a device: the state of sequence `request` is also that of the one in the payload (`pack_number`), or, if that is
    0, nobody's any more."""


class Frame(NamedTuple):
    """The header of a data message: which request of which deployment, from which device, and which message number of the schedule."""

    kind: Kind
    source: int
    epoch: int
    request: int
    message: int

    def to_bytes(self) -> bytes:
        """Return the 32 bytes of the header."""
        return _HEADER.pack(_MAGIC, DATA_VERSION, self.kind, self.source, self.message, self.epoch, self.request)

    @classmethod
    def parse(cls, header: BytesLike) -> Frame:
        """Read a header.

        Raises:
            RemoteProtocolError: if the bytes are no header of this version.
        """
        if len(header) != _HEADER.size:
            raise RemoteProtocolError(f"data message: expected a header of {_HEADER.size} bytes, got {len(header)}")
        magic, version, kind, source, message, epoch, request = _HEADER.unpack(header)
        if magic != _MAGIC or version != DATA_VERSION or kind >= len(_KINDS):
            raise RemoteProtocolError(f"data message: expected version {DATA_VERSION} of the data protocol, got other bytes")
        return cls(_KINDS[kind], source, epoch, request, message)


_KINDS = tuple(Kind)
_NUMBER = struct.Struct("<Q")


_START = struct.Struct("<QQB")


class SequenceStart(NamedTuple):
    """How a request of a sequence begins: with the state that request `before` has left; 0: state is among its inputs.

    One that `reads` tells that state, and nothing else.
    """

    sequence: int
    before: int
    record: bool
    reads: bool = False

    def to_bytes(self) -> bytes:
        """Return the payload."""
        return _START.pack(self.sequence, self.before, self.record | self.reads << 1)

    @classmethod
    def parse(cls, payload: BytesLike) -> SequenceStart:
        """Read a payload.

        Raises:
            RemoteProtocolError: if it is none.
        """
        if len(payload) != _START.size:
            raise RemoteProtocolError(f"data message: expected the {_START.size} bytes of a sequence's request, got {len(payload)}")
        sequence, before, flags = _START.unpack(payload)
        if not 0 < sequence <= MAX_INTEGER or before > MAX_INTEGER or flags > 2 or (flags == 2 and not before):
            raise RemoteProtocolError(f"data message: sequence {sequence} after request {before}, flags {flags}, is none")
        return cls(sequence, before, flags == 1, flags == 2)


def pack_number(number: int) -> bytes:
    """Return the payload of `CLOCK`, nanoseconds of a clock, or of `KEEP`, a sequence."""
    return _NUMBER.pack(number)


def unpack_number(payload: BytesLike) -> int:
    """Undo `pack_number`.

    Raises:
        RemoteProtocolError: if it made no such payload.
    """
    if len(payload) != _NUMBER.size or (number := int(_NUMBER.unpack(payload)[0])) > MAX_INTEGER:
        raise RemoteProtocolError(f"data message: expected a number of 8 bytes below 2**63, got {len(payload)} bytes")
    return number
