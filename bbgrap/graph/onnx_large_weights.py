"""The bytes of an ONNX file, its large weights apart, as arrays: the protobuf library would hold each of them three times meanwhile.

    model [ version | graph [ node .. | tensor [ sizes | type | name | content ] .. ] | opset .. ]
                                                                       └─ read into an array of its own

The file is walked through once, from its beginning to its end; all but contents of weights is kept as it is. Law: what is not as exporters
write it is read as a whole, for others to judge. One of the files that import onnx (see `onnx_io`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import BinaryIO

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]
from onnx import TensorProto

from bbgrap.graph.onnx_external import detach
from bbgrap.graph.onnx_limits import dtype_of
from bbgrap.graph.types import STORABLE, Array, DType

LARGE_BYTES = 1 << 20
"""Tensors from this size on are read apart. Chosen: what is smaller is copied in a fraction of a millisecond."""

_PLAIN = STORABLE - {DType.STRING, DType.BFLOAT16}
"""Types whose numbers a file has as numpy has them."""
_GRAPH, _INITIALIZER, _CONTENT = 7, 5, 9
"""Fields of a model, of its graph, and of a tensor there."""
_NUMBER, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
"""How a field is encoded."""
_MOST_DIGITS = 10
"""Bytes of a number."""
_MOST_FIELDS = 1 << 16
"""That are walked through, in a tenth of a second. Chosen: what has more is no large model, but one of many small things."""


class _UnusualError(Exception):
    """A file is not as exporters write it, or no protobuf at all."""


@dataclass(frozen=True, slots=True)
class FileWithoutWeights:
    """The content of a file without its large weights, these by name, read-only, and at which byte of the file each begins."""

    content: bytes
    weights: Mapping[str, Array]
    offsets: Mapping[str, int]


def read_without_weights(stream: BinaryIO, size: int) -> FileWithoutWeights:
    """Return a file of `size` bytes; it has no weights apart if it is unusual."""
    if size > LARGE_BYTES:
        walk = _Walk(stream)
        try:
            return FileWithoutWeights(walk.model(size), walk.weights, walk.offsets)
        except (_UnusualError, DecodeError):
            stream.seek(0)
    return FileWithoutWeights(stream.read(), {}, {})


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a message: its number, its bytes so far, and how long the content is that comes after them; None: none does."""

    number: int
    encoded: bytes
    length: int | None = None


class _Walk:
    """Goes through a file; it is `_at` so many bytes from its beginning."""

    def __init__(self, stream: BinaryIO) -> None:
        self.weights: dict[str, Array] = {}
        self.offsets: dict[str, int] = {}
        self._stream = stream
        self._at = 0
        self._fields_left = _MOST_FIELDS

    def model(self, length: int) -> bytes:
        """Return a model without what becomes `weights`."""
        return b"".join(
            field.encoded + _delimited(self._graph(field.length))
            if field.number == _GRAPH and field.length is not None
            else self._copied(field)
            for field in self._fields(length)
        )

    def _graph(self, length: int) -> bytes:
        return b"".join(
            field.encoded + _delimited(self._tensor(field.length))
            if field.number == _INITIALIZER and field.length is not None and field.length > LARGE_BYTES
            else self._copied(field)
            for field in self._fields(length)
        )

    def _tensor(self, length: int) -> bytes:
        begin, parts = 0, list[bytes]()
        contents: list[Array] = []
        for field in self._fields(length):
            if field.number == _CONTENT and field.length is not None:
                begin = self._at
                contents.append(self._filled(field.length))
            else:
                parts.append(self._copied(field))
        if not contents:
            return b"".join(parts)
        tensor, content = TensorProto.FromString(b"".join(parts)), contents[0]
        kind, shape = dtype_of(tensor.data_type), tuple(tensor.dims)
        is_plain = kind in _PLAIN and min(shape, default=0) >= 0 and prod(shape) * kind.itemsize == content.nbytes
        if len(contents) > 1 or not is_plain or tensor.data_location == TensorProto.EXTERNAL or tensor.name in self.weights:
            raise _UnusualError
        array: Array = content.view(kind.numpy.newbyteorder("<")).reshape(shape)
        array.flags.writeable = False
        self.weights[tensor.name], self.offsets[tensor.name] = array, begin
        detach(tensor, content.nbytes)
        made: bytes = tensor.SerializeToString()
        return made

    def _fields(self, length: int) -> Iterator[_Field]:
        """Yield the fields of a message that is so long; whoever gets one takes its content before the next."""
        end = self._at + length
        while self._at < end:
            self._fields_left -= 1
            if not self._fields_left:
                raise _UnusualError
            tag = self._number()
            number, encoding = divmod(_value(tag), 8)
            if encoding == _DELIMITED:
                count = _value(self._number())
                if count > end - self._at:
                    raise _UnusualError
                yield _Field(number, tag, count)
            elif encoding == _NUMBER:
                yield _Field(number, tag + self._number())
            elif encoding in {_EIGHT_BYTES, _FOUR_BYTES}:
                yield _Field(number, tag + self._taken(8 if encoding == _EIGHT_BYTES else 4))
            else:
                raise _UnusualError
        if self._at != end:
            raise _UnusualError

    def _copied(self, field: _Field) -> bytes:
        return field.encoded if field.length is None else field.encoded + _delimited(self._taken(field.length))

    def _number(self) -> bytes:
        digits = self._taken(1)
        while digits[-1] >> 7:
            digits += self._taken(1)
            if len(digits) > _MOST_DIGITS:
                raise _UnusualError
        return digits

    def _taken(self, count: int) -> bytes:
        content = self._stream.read(count)
        self._at += count
        if len(content) != count:
            raise _UnusualError
        return content

    def _filled(self, count: int) -> Array:
        content = np.empty(count, np.uint8)
        self._at += count
        if self._stream.readinto(content.data) != count:  # type: ignore[attr-defined]
            raise _UnusualError
        return content


def _value(digits: bytes) -> int:
    """Return a number that is written seven bits a byte, the lowest first."""
    return sum((digit & 0x7F) << 7 * place for place, digit in enumerate(digits))


def _delimited(content: bytes) -> bytes:
    """Return content after its length."""
    length, digits = len(content), bytearray()
    while length >> 7:
        digits.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(digits) + bytes([length]) + content
