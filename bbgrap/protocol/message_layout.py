"""What one `LocalSend` brings to a `LocalReceive`: the parts, each starting at a multiple of 8 bytes, C order, little endian.

Sizes are known from the schedule, so a part of known shape has no header. A part whose shape only the run tells, or of strings, or with
dictionaries, starts with its own: [rank, bytes, extents...] as unsigned 64-bit integers. 32-bit floats have the form that the layout's
`wire` says (`bbgrap.program.encodings`).
Laws: `unpack(layout, pack(layout, parts))` equals `parts`, rounded as the wire rounds them; `unpack` raises nothing but
`RemoteProtocolError`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from bbgrap.errors import ModelError, RemoteProtocolError
from bbgrap.graph.types import STORABLE, Array, DType, TensorType
from bbgrap.program.dictionaries import EXACT, decode_with_dictionary, encode_with_dictionary
from bbgrap.program.encodings import WireType, decode_floats, encode_floats, wire_bytes, wire_of
from bbgrap.protocol.limits import MAX_TENSOR_BYTES
from bbgrap.protocol.messages import BytesLike
from bbgrap.protocol.tensors import decode_array, encode_array, view_of
from bbgrap.runtime.schedule import LocalPart, LocalReceive, LocalSend, Schedule, part_shape

_ALIGN = 8
_FIXED = STORABLE - {DType.STRING}
_MAX_RANK = 64
_MOST_BESIDES = 8 * (2 + _MAX_RANK) + 16
"""Bytes that a part takes besides its numbers, where its size is told: dictionaries are taken where they save more than they take."""


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
class MessageLayout:
    """What a `LocalSend` sends or a `LocalReceive` expects: the other device, the types of the parts, and what 32-bit floats become.

    Invariants: `fields` has an entry per part and `nbytes` is the size of the payload; if the run tells a size, `fields` is None and
    `nbytes` the most there may be, or None. They are computed once, because a message is packed or unpacked in every request.
    """

    peer: int
    types: tuple[TensorType, ...]
    wire: WireType = "exact"
    fields: tuple[_Field, ...] | None = field(init=False)
    nbytes: int | None = field(init=False)

    def __post_init__(self) -> None:
        """Compute the layout."""
        known = all(map(_fixed, self.types))
        if self.wire == "dictionary":
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


def layouts_sent(schedule: Schedule) -> Mapping[int, MessageLayout]:
    """Return the messages a device sends, by number."""
    return {
        step.message: MessageLayout(step.destination, tuple(_type_of(schedule, part) for part in step.parts), step.wire)
        for step in schedule.steps
        if isinstance(step, LocalSend)
    }


def _type_of(schedule: Schedule, part: LocalPart) -> TensorType:
    spec = schedule.buffers[part.buffer]
    return TensorType(spec.dtype, part_shape(spec, part))


def layouts_received(schedule: Schedule) -> Mapping[int, MessageLayout]:
    """Return the messages a device expects, by number."""
    return {
        step.message: MessageLayout(step.source, tuple(_type_of(schedule, LocalPart(b, None)) for b in step.buffers), step.wire)
        for step in schedule.steps
        if isinstance(step, LocalReceive)
    }


def pack(layout: MessageLayout, parts: Sequence[Array]) -> list[BytesLike]:
    """Return the payload of some parts, in pieces: views of dense parts, copies of others.

    Raises:
        ModelError: if a part has no numpy counterpart or not the type the schedule says.
    """
    pieces: list[BytesLike] = []
    if layout.fields is not None:
        for place, kind, part in zip(layout.fields, layout.types, parts, strict=True):
            if part.shape != place.shape or part.dtype != place.dtype:
                raise _not_planned(kind, part)
            pieces += _content(part, place.wire)
            if place.padding:
                pieces.append(bytes(place.padding))
        return pieces
    for kind, part in zip(layout.types, parts, strict=True):
        if (kind.shape is not None and part.shape != kind.shape) or not _fits(kind.dtype, part):
            raise _not_planned(kind, part)
        wire = wire_of(kind.dtype, layout.wire)
        content = _content(part, wire)
        length = sum(map(len, content))
        head = struct.pack(f"<{2 + part.ndim}Q", part.ndim, length, *part.shape) if _is_told(kind, wire) else b""
        pieces += [head, *content, bytes(-(len(head) + length) % _ALIGN)]
    return pieces


def _content(part: Array, wire: WireType) -> list[BytesLike]:
    match wire:
        case "exact":
            return [encode_array(part)]
        case "dictionary":
            encoded = encode_with_dictionary(part)
            return [EXACT, encode_array(part)] if encoded is None else [encoded.data]
        case "float16" | "int8":
            return [encode_floats(part, wire).data]


def _is_told(kind: TensorType, wire: WireType) -> bool:
    """Whether only the run tells how many bytes a part has; they are sent with it then."""
    return wire == "dictionary" or not _fixed(kind)


def _not_planned(kind: TensorType, part: Array) -> ModelError:
    return ModelError(f"tensor to send: the plan says {kind}, the kernel gave {part.dtype}{list(part.shape)}")


def _fits(dtype: DType, part: Array) -> bool:
    return part.dtype == dtype.numpy or (dtype is DType.STRING and part.dtype.kind in "OUST")


def _fixed(kind: TensorType) -> bool:
    return kind.shape is not None and kind.dtype in _FIXED


def unpack(layout: MessageLayout, payload: BytesLike) -> list[Array]:
    """Return the parts of a payload: views of it, except strings.

    Raises:
        RemoteProtocolError: if the payload does not have exactly the expected parts.
    """
    if layout.fields is not None and len(payload) != layout.nbytes:
        raise RemoteProtocolError(f"data message: expected a payload of {layout.nbytes} bytes, got {len(payload)}")
    parts, position = [], 0
    try:
        if layout.fields is not None:
            return [_part_at(place, payload) for place in layout.fields]
        for kind in layout.types:
            part, length = _unpack_one(kind, memoryview(payload)[position:], wire_of(kind.dtype, layout.wire))
            parts.append(part)
            position += length + -length % _ALIGN
    except (ValueError, struct.error, ModelError, OverflowError) as error:
        raise RemoteProtocolError(f"data message: its payload of {len(payload)} bytes has not the expected parts: {error}") from error
    if position != len(payload):
        raise RemoteProtocolError(f"data message: expected a payload of {position} bytes, got {len(payload)}")
    return parts


def _part_at(place: _Field, payload: BytesLike) -> Array:
    if place.wire == "exact":
        return view_of(place.dtype, place.shape, payload, place.start, place.nbytes)
    return _decoded(DType.FLOAT, place.shape, memoryview(payload)[place.start : place.start + place.nbytes], place.wire)


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
    if prod(shape) * kind.dtype.itemsize > MAX_TENSOR_BYTES:
        raise RemoteProtocolError(f"data message: a tensor of shape {list(shape)} has more than {MAX_TENSOR_BYTES} bytes")
    return _decoded(kind.dtype, shape, payload[start : start + length], wire), start + length


def _decoded(dtype: DType, shape: tuple[int, ...], content: memoryview, wire: WireType) -> Array:
    match wire:
        case "exact":
            return decode_array(dtype, shape, content)
        case "dictionary":
            decoded = decode_with_dictionary(content, shape)
            return decoded if decoded.flags.aligned else decoded.copy()
        case "float16" | "int8":
            return decode_floats(content, shape, wire)
