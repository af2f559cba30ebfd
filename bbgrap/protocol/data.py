"""The data plane: tensors between devices, framed without a codec.

    frame 0 (32 bytes)   magic | version | kind | source | message | epoch | request
    frame 1              the parts of one `Send`, each starting at a multiple of 8 bytes, C order, little endian

Sizes are known from the schedule, so a part of known shape has no header. A part whose shape only the run tells, or of strings, starts
with its own: [rank, bytes, extents...] as unsigned 64-bit integers. Strings are [length, UTF-8] one after the other. 32-bit floats have
the form that the letter's `wire` says (`bbgrap.program.wire`).
Laws: `unpack(letter, pack(letter, parts))` equals `parts`, rounded as the wire rounds them; `unpack` and `Frame.parse` raise nothing but
`RemoteProtocolError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from bbgrap.errors import ModelError, RemoteProtocolError
from bbgrap.graph.types import STORABLE, Array, DType, TensorType
from bbgrap.program.palettes import EXACT, decode_with_palettes, encode_with_palettes
from bbgrap.program.schedule import Part, Receive, Schedule, Send, part_shape
from bbgrap.program.wire import WireType, decode_floats, encode_floats, wire_bytes, wire_of
from bbgrap.protocol.limits import MAX_INTEGER, MAX_TENSOR_BYTES
from bbgrap.protocol.messages import Buffer, TensorHeader

DATA_VERSION = 1
_MAGIC = b"BBGr"
_HEADER = struct.Struct("<4sBBHIxxxxQQ")
_ALIGN = 8
_MIN_BLOCK = 16 << 10
"""Dense blocks from here on are sent from where they are; smaller ones are copied together. Measured: a copy of 16 KB takes as long as
a piece more in a system call."""
_FLOAT = np.dtype(np.float32)
_FIXED = STORABLE - {DType.STRING}
_MAX_RANK = 64
_MOST_BESIDES = 8 * (2 + _MAX_RANK) + 16
"""Bytes that a part takes besides its numbers, where its size is told: palettes are taken where they save more than they take."""


Inputs = tuple[tuple[TensorHeader, ...], tuple[Buffer, ...]]
"""The inputs of a request, and their contents."""


class Kind(IntEnum):
    """What a data message is."""

    DATA = 0
    """The parts of a `Send`."""
    START = 1
    """From the host to a device that it sends no tensor: a request begins."""
    PING = 2
    """Measuring: answer with as many bytes as `message` says. The payload is the address to answer to."""
    PONG = 3
    """The answer to `PING`; `request` tells which."""
    RECORD = 4
    """From the host to a device, before anything else: a request begins, and when its steps are done is to be noted."""
    CLOCK = 5
    """To the host: what does your clock show? From it: the answer, with the number asked for in `message`; number 0 comes unasked when a
    recorded request is over. The payload is the clock, see `pack_clock`."""


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
    def parse(cls, header: Buffer) -> Frame:
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
_REQUEST = struct.Struct("<Q")


class Headers:
    """The headers of the tensors that one device sends for one deployment, but for the number of the request, which comes last."""

    def __init__(self, source: int, epoch: int, messages: Iterable[int]) -> None:
        """Prepare the headers of some messages."""
        self._starts = {m: Frame(Kind.DATA, source, epoch, 0, m).to_bytes()[: -_REQUEST.size] for m in messages}

    def of(self, message: int, request: int) -> bytes:
        """Return what `Frame.to_bytes` does."""
        return self._starts[message] + _REQUEST.pack(request)


def pack_clock(clock_ns: int) -> Buffer:
    """Return the payload of `CLOCK`: nanoseconds of a clock."""
    return clock_ns.to_bytes(8, "little")


def unpack_clock(payload: Buffer) -> int:
    """Return the nanoseconds in the payload of a `CLOCK`.

    Raises:
        RemoteProtocolError: if it is none.
    """
    if len(payload) != 8 or (clock_ns := int.from_bytes(payload, "little")) > MAX_INTEGER:
        raise RemoteProtocolError(f"data message: expected a clock of 8 bytes below 2**63, got {len(payload)} bytes")
    return clock_ns


@dataclass(frozen=True, slots=True)
class _Field:
    """Where a part of known size lies in the payload."""

    start: int
    nbytes: int
    padding: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    wire: WireType


@dataclass(frozen=True, slots=True)
class Letter:
    """What a `Send` sends or a `Receive` expects: the other device, the types of the parts, and what 32-bit floats become on the way.

    Invariants: `fields` has an entry per part and `nbytes` is the size of the payload; if the run tells a size, `fields` is None and
    `nbytes` the most there may be, or None. They are computed once, because a letter is packed or unpacked in every request.
    """

    peer: int
    types: tuple[TensorType, ...]
    wire: WireType = "exact"
    fields: tuple[_Field, ...] | None = field(init=False)
    nbytes: int | None = field(init=False)

    def __post_init__(self) -> None:
        """Compute the layout."""
        known = all(map(_fixed, self.types))
        if self.wire == "palette":
            object.__setattr__(self, "fields", None)
            object.__setattr__(self, "nbytes", sum(kind.nbytes + _MOST_BESIDES for kind in self.types) if known else None)
            return
        fields, position = [], 0
        for kind in self.types if known else ():
            wire = wire_of(kind.dtype, self.wire)
            nbytes = kind.nbytes if wire == "exact" else wire_bytes(prod(kind.known_shape), wire)
            padding = -nbytes % _ALIGN if len(self.types) > 1 else 0
            fields.append(_Field(position, nbytes, padding, kind.dtype.numpy, kind.known_shape, wire))
            position += nbytes + padding
        object.__setattr__(self, "fields", tuple(fields) if known else None)
        object.__setattr__(self, "nbytes", position if known else None)

    def admits(self, size: int) -> bool:
        """Whether a payload of so many bytes may be this."""
        if self.fields is None:
            return self.nbytes is None or size <= self.nbytes
        return size == self.nbytes


def letters_sent(schedule: Schedule) -> Mapping[int, Letter]:
    """Return the messages a device sends, by number."""
    return {
        step.message: Letter(step.destination, tuple(_type_of(schedule, part) for part in step.parts), step.wire)
        for step in schedule.steps
        if isinstance(step, Send)
    }


def _type_of(schedule: Schedule, part: Part) -> TensorType:
    spec = schedule.buffers[part.buffer]
    return TensorType(spec.dtype, part_shape(spec, part))


def letters_received(schedule: Schedule) -> Mapping[int, Letter]:
    """Return the messages a device expects, by number."""
    return {
        step.message: Letter(step.source, tuple(_type_of(schedule, Part(b, None)) for b in step.buffers), step.wire)
        for step in schedule.steps
        if isinstance(step, Receive)
    }


def pack(letter: Letter, parts: Sequence[Array]) -> list[Buffer]:
    """Return the payload of some parts, in pieces: views of dense parts, copies of others, except large ones of few dense blocks.

    Raises:
        ModelError: if a part has no numpy counterpart or not the type the schedule says.
    """
    pieces: list[Buffer] = []
    if letter.fields is not None:
        for place, part in zip(letter.fields, parts, strict=True):
            if part.shape != place.shape or part.dtype != place.dtype:
                raise _not_planned(letter, parts)
            if place.wire != "exact":
                pieces += _content(part, place.wire)
            else:
                pieces += _dense_pieces(part)
            if place.padding:
                pieces.append(bytes(place.padding))
        return pieces
    for kind, part in zip(letter.types, parts, strict=True):
        if (kind.shape is not None and part.shape != kind.shape) or not _fits(kind.dtype, part):
            raise _not_planned(letter, parts)
        wire = wire_of(kind.dtype, letter.wire)
        content = _content(part, wire)
        length = sum(map(len, content))
        head = struct.pack(f"<{2 + part.ndim}Q", part.ndim, length, *part.shape) if _is_told(kind, wire) else b""
        pieces += [head, *content, bytes(-(len(head) + length) % _ALIGN)]
    return pieces


def _content(part: Array, wire: WireType) -> list[Buffer]:
    match wire:
        case "exact":
            return [encode_array(part)]
        case "palette":
            encoded = encode_with_palettes(part)
            return [EXACT, *_dense_pieces(part)] if encoded is None else [encoded.data]
        case "float16" | "int8":
            return [encode_floats(part, wire).data]


def _is_told(kind: TensorType, wire: WireType) -> bool:
    """Whether only the run tells how many bytes a part has; they are sent with it then."""
    return wire == "palette" or not _fixed(kind)


def _dense_pieces(part: Array) -> list[Buffer]:
    return [_bytes_of(part)] if part.flags.c_contiguous else _blocks(part)


def _bytes_of(dense: Array) -> Buffer:
    if dense.dtype == _FLOAT and dense.size:
        return dense.data.cast("B")  # one call instead of three: right after a kernel none of their code is in a cache
    return dense.reshape(-1).view(np.uint8).data


def _blocks(part: Array) -> list[Buffer]:
    """Return the bytes of a part with gaps: its dense blocks if they are large, else a copy."""
    axis, size = part.ndim, part.itemsize
    while axis and (part.strides[axis - 1] == size or part.shape[axis - 1] == 1):
        axis -= 1
        size *= part.shape[axis]
    if size < _MIN_BLOCK:
        return [_bytes_of(np.ascontiguousarray(part))]
    return [_bytes_of(part[index]) for index in np.ndindex(part.shape[:axis])]


def _not_planned(letter: Letter, parts: Sequence[Array]) -> ModelError:
    for kind, part in zip(letter.types, parts, strict=True):
        if (kind.shape is not None and part.shape != kind.shape) or not _fits(kind.dtype, part):
            return ModelError(f"tensor to send: the plan says {kind}, the kernel gave {part.dtype}{list(part.shape)}")
    raise AssertionError


def _fits(dtype: DType, part: Array) -> bool:
    return part.dtype == dtype.numpy or (dtype is DType.STRING and part.dtype.kind in "OUST")


def _fixed(kind: TensorType) -> bool:
    return kind.shape is not None and kind.dtype in _FIXED


def unpack(letter: Letter, payload: Buffer) -> list[Array]:
    """Return the parts of a payload: views of it, except strings.

    Raises:
        RemoteProtocolError: if the payload does not have exactly the expected parts.
    """
    if letter.fields is not None and len(payload) != letter.nbytes:
        raise RemoteProtocolError(f"data message: expected a payload of {letter.nbytes} bytes, got {len(payload)}")
    parts, position = [], 0
    try:
        if letter.fields is not None:
            return [_part_at(place, payload) for place in letter.fields]
        for kind in letter.types:
            part, length = _unpack_one(kind, memoryview(payload)[position:], wire_of(kind.dtype, letter.wire))
            parts.append(part)
            position += length + -length % _ALIGN
    except (ValueError, struct.error, ModelError, OverflowError) as error:
        raise RemoteProtocolError(f"data message: its payload of {len(payload)} bytes has not the expected parts: {error}") from error
    if position != len(payload):
        raise RemoteProtocolError(f"data message: expected a payload of {position} bytes, got {len(payload)}")
    return parts


def _part_at(place: _Field, payload: Buffer) -> Array:
    if place.wire == "exact":
        return _array(place.dtype, place.shape, payload, place.start, place.nbytes)
    return _decoded(DType.FLOAT, place.shape, memoryview(payload)[place.start : place.start + place.nbytes], place.wire)


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], content: Buffer, start: int, nbytes: int) -> Array:
    array: Array = np.ndarray(shape, dtype, content, start) if nbytes else np.empty(shape, dtype)
    # Kernels are compiled for aligned elements; a vectorised loop over others may fault.
    return array if array.flags.aligned else array.copy()


def _unpack_one(kind: TensorType, payload: memoryview, wire: WireType) -> tuple[Array, int]:
    if not _is_told(kind, wire):
        nbytes = kind.nbytes if wire == "exact" else wire_bytes(prod(kind.known_shape), wire)
        return _decoded(kind.dtype, kind.known_shape, payload[:nbytes], wire), nbytes
    rank, length = struct.unpack_from("<2Q", payload)
    if rank > _MAX_RANK:
        raise RemoteProtocolError(f"data message: a tensor of rank {rank}")
    shape = struct.unpack_from(f"<{rank}Q", payload, 16)
    start = 16 + 8 * rank
    if (kind.shape is not None and shape != kind.shape) or length > len(payload) - start:
        raise RemoteProtocolError(f"data message: expected {kind}, got shape {list(shape)} in {length} of {len(payload)} bytes")
    return _decoded(kind.dtype, shape, payload[start : start + length], wire), start + length


def _decoded(dtype: DType, shape: tuple[int, ...], content: memoryview, wire: WireType) -> Array:
    match wire:
        case "exact":
            return decode_array(dtype, shape, content)
        case "palette":
            decoded = decode_with_palettes(content, shape)
            return decoded if decoded.flags.aligned else decoded.copy()
        case "float16" | "int8":
            return decode_floats(content, shape, wire)


def made_up(host: Schedule) -> Inputs | None:
    """Return inputs of the right types for a host's schedule, all ones (integers may be divisors); None if they are not numbers."""
    specs = [host.buffers[buffer] for buffer in host.feeds]
    shapes = [spec.shape for spec in specs if spec.shape is not None and spec.dtype is not DType.STRING]
    if len(shapes) < len(specs):
        return None
    headers = tuple(TensorHeader(spec.name, spec.dtype, shape) for spec, shape in zip(specs, shapes, strict=True))
    return headers, tuple(encode_array(np.ones(header.shape, header.dtype.numpy)) for header in headers)


def encode_array(array: Array) -> Buffer:
    """Return the content of a tensor: C order, little endian; a view where it already is that."""
    if array.dtype.kind in "OUST":
        encoded = [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1).tolist()]
        return b"".join(chunk for item in encoded for chunk in (struct.pack("<Q", len(item)), item))
    dense = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return dense.reshape(-1).view(np.uint8).data


def decode_array(dtype: DType, shape: tuple[int, ...], content: Buffer) -> Array:
    """Return the tensor of some bytes: a read-only view where they are aligned, else a copy.

    Raises:
        RemoteProtocolError: if the bytes are not that tensor.
    """
    count = prod(shape)
    if dtype is DType.STRING:
        return _decode_strings(shape, count, memoryview(content))
    try:
        kind: np.dtype[Any] = dtype.numpy
    except ModelError as error:
        raise RemoteProtocolError(str(error)) from error
    if count * kind.itemsize != len(content) or count > MAX_TENSOR_BYTES:
        raise RemoteProtocolError(f"tensor {dtype.name.lower()}{list(shape)}: expected {count * kind.itemsize} bytes, got {len(content)}")
    return _array(kind, shape, content, 0, len(content))


def _decode_strings(shape: tuple[int, ...], count: int, content: memoryview) -> Array:
    if count * 8 > len(content):
        raise RemoteProtocolError(f"strings {list(shape)}: they do not fit into {len(content)} bytes")
    texts, position = [], 0
    try:
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", content, position)
            position += 8
            if length > len(content) - position:
                raise RemoteProtocolError(f"strings {list(shape)}: one of {length} bytes does not fit")
            texts.append(str(content[position : position + length], "utf-8"))
            position += length
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"strings {list(shape)}: {error}") from error
    if position != len(content):
        raise RemoteProtocolError(f"strings {list(shape)}: expected {position} bytes, got {len(content)}")
    array: Array = np.empty(count, object)
    array[:] = texts
    return array.reshape(shape)
