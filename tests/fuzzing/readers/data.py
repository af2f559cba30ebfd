"""Readers of the data plane: headers, streams of messages, tensors and what is packed into them."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from random import Random

import numpy as np

from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import DType, TensorType
from bbgrap.program.dictionaries import decode_with_dictionary, encode_with_dictionary
from bbgrap.program.encodings import decode_floats, encode_floats
from bbgrap.protocol.data import Frame, Kind, pack_number, unpack_number
from bbgrap.protocol.message_layout import MessageLayout, pack, unpack
from bbgrap.protocol.tensors import decode_array, encode_array
from bbgrap.protocol.values import Numbers, pack_value, unpack_value
from bbgrap.transport import framing
from bbgrap.transport.payload_memory import MEMORY_BYTES, RING_BYTES, PayloadReader
from tests.fuzzing.readers.mutate import in_msgpack
from tests.fuzzing.readers.reader import Reader

ERRORS = (RemoteProtocolError,)
_FLOATS = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
_PICTURE = (np.arange(3 * 64 * 64, dtype=np.float32) % 7).reshape(1, 3, 64, 64)
_TEXTS = np.array([["a", "bc"], ["", "déf"]], object)
_KINDS = tuple(DType)
_WIRES = ("exact", "float16", "int8", "dictionary")

# --- headers and streams ------------------------------------------------------------------------------------------------------


def _header(data: bytes) -> None:
    frame = Frame.parse(data)
    assert frame.to_bytes()[:8] == data[:8]


def _stream(data: bytes) -> None:
    """Read a stream cut anywhere, and whole: the same messages, or an error both times."""
    _cut_and_whole(data, lambda: None)


def _laid_stream(data: bytes) -> None:
    """The same where payloads may lie in memory, which has other bytes at every place."""
    _cut_and_whole(data, lambda: PayloadReader(mmap.mmap(-1, MEMORY_BYTES)))


def _cut_and_whole(data: bytes, memory: Callable[[], PayloadReader | None]) -> None:
    chance = Random(data[:4])
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(8)))
    pieces = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    answers = []
    for feed in (pieces, [data]):
        reader, found = framing.MessageReader(), []
        reader.memory = memory()
        try:
            for piece in feed:
                found += [(header, bytes(body)) for header, body in reader.feed(memoryview(piece), lambda _, size, peer: size < 1 << 19)]
                assert len(reader._begun) <= framing.MAX_DATA_HEADER + 8
        except RemoteProtocolError:
            found.append((b"error", b""))
        answers.append(found)
    cut, whole = answers
    if whole[-1:] == [(b"error", b"")]:  # what came with the bytes that are wrong goes with them
        # Cut, a stream may name places for longer: the sender was told meanwhile what has been read.
        if reader.memory is None:
            assert cut[-1:] == whole[-1:]
        assert cut[: len(whole) - 1] == whole[:-1]
    else:
        assert cut == whole, "the messages of a stream do not depend on how it is cut"


def _framed(header: bytes, payload: bytes) -> bytes:
    return framing.frame_head(header, len(payload)) + payload


def _in_pieces(header: bytes, *sizes: int) -> list[bytes]:
    """Return the parts of a message whose payload comes in pieces of these sizes."""
    pieces = [framing.frame_head(b"h", size)[:-1] + bytes(size) for size in sizes]
    return [framing.frame_head(header, sum(sizes), cut=True), *(struct.pack("<HH", 0xBB6A, 0) + piece[4:] for piece in pieces)]


_FRAMES = [Frame(kind, 1, 2**40, 7, 3).to_bytes() for kind in Kind]

# --- tensors ------------------------------------------------------------------------------------------------------------------


def _head(kind: DType, shape: tuple[int, ...], wire: int = 0) -> bytes:
    return struct.pack(f"<BBB{len(shape)}I", _KINDS.index(kind), wire, len(shape), *shape)


def _asked(data: bytes) -> tuple[DType, int, tuple[int, ...], bytes]:
    """Return what kind of tensor an input asks for, and the rest of it."""
    if len(data) < 3 or len(data) < 3 + 4 * (data[2] % 8):
        raise RemoteProtocolError("too short")
    rank = data[2] % 8
    return _KINDS[data[0] % len(_KINDS)], data[1] % 4, struct.unpack_from(f"<{rank}I", data, 3), data[3 + 4 * rank :]


def _tensor(data: bytes) -> None:
    kind, _, shape, content = _asked(data)
    array = decode_array(kind, shape, content)
    assert array.shape == shape
    assert kind is DType.STRING or bytes(encode_array(array)) == content


def _tensors() -> list[bytes]:
    return [_head(DType.of(array.dtype), array.shape) + bytes(encode_array(array)) for array in (_FLOATS, _TEXTS, np.array(3))]


def _floats(data: bytes) -> None:
    _, wire, shape, content = _asked(data)
    decoded = decode_with_dictionary(content, shape) if wire == 3 else decode_floats(content, shape, _WIRES[wire])
    assert decoded.shape == shape
    assert decoded.dtype == np.float32


def _encoded() -> list[bytes]:
    exact = [_head(DType.FLOAT, _FLOATS.shape, k) + bytes(encode_floats(_FLOATS, wire)) for k, wire in enumerate(_WIRES[:3])]
    picture = encode_with_dictionary(_PICTURE)
    assert picture is not None
    return [
        *exact,
        _head(DType.FLOAT, _PICTURE.shape, 3) + picture.tobytes(),
        _head(DType.FLOAT, (2, 3, 4), 3) + bytes(8) + _FLOATS.tobytes(),
    ]


# --- messages -----------------------------------------------------------------------------------------------------------------

_KNOWN, _FREE = TensorType(DType.FLOAT, (2, 3, 4)), TensorType(DType.FLOAT, None)
_LAYOUTS = [
    MessageLayout(0, (_KNOWN,)),
    MessageLayout(0, (_KNOWN, TensorType(DType.INT8, (5,)), _KNOWN), "float16"),
    MessageLayout(0, (_KNOWN, _KNOWN), "int8"),
    MessageLayout(0, (TensorType(DType.STRING, (2, 2)), _KNOWN)),
    MessageLayout(0, (_FREE, TensorType(DType.INT64, None), TensorType(DType.STRING, None))),
    MessageLayout(0, (TensorType(DType.FLOAT, _PICTURE.shape), TensorType(DType.INT8, (5,))), "dictionary"),
    MessageLayout(0, (_FREE, _FREE), "int8"),
]


def _message(data: bytes) -> None:
    layout = _LAYOUTS[data[0] % len(_LAYOUTS)] if data else _LAYOUTS[0]
    parts = unpack(layout, memoryview(bytearray(data[1:])))
    assert len(parts) == len(layout.types)
    assert layout.admits(len(data) - 1)


def _messages() -> list[bytes]:
    bytes5, many = np.arange(5, dtype=np.int8), np.arange(6).reshape(1, 6)
    contents = [
        [_FLOATS],
        [_FLOATS, bytes5, _FLOATS],
        [_FLOATS, _FLOATS],
        [_TEXTS, _FLOATS],
        [_FLOATS, many, _TEXTS],
        [_PICTURE, bytes5],
        [_FLOATS, _FLOATS[0]],
    ]
    return [bytes([k]) + b"".join(map(bytes, pack(_LAYOUTS[k], parts))) for k, parts in enumerate(contents)]


_VALUES: list[object] = [
    None,
    [_FLOATS, _FLOATS[0], np.array(7)],
    [{"a": 1.5, "b": -2.0}, {"a": 0.0}],
    {3: "x", -4: "y"},
    Numbers(16, (2, 2), b"12345678"),
    [[_TEXTS], None, 5, "text"],
]

DATA = [
    Reader("data header", _header, _FRAMES, ERRORS),
    Reader("number", unpack_number, [pack_number(2**40)], ERRORS),
    Reader(
        "stream",
        _stream,
        [
            framing.GREETING + b"".join(_framed(frame, bytes(size)) for frame, size in zip(_FRAMES, (0, 9, 4096), strict=False)),
            framing.GREETING + _framed(_FRAMES[1], b"small").join(_in_pieces(_FRAMES[0], 300, 200, 4)),
        ],
        ERRORS,
        beside=16 << 20,  # a payload that was announced: 64 KiB without asking, and what is admitted here
    ),
    Reader(
        "laid stream",
        _laid_stream,
        [
            framing.GREETING
            + b"".join(framing.frame_head(_FRAMES[0], size, place) for size, place in ((8192, 0), (70_000, 8192), (1, 2**25)))
        ],
        ERRORS,
        beside=4 * RING_BYTES,  # a stream may name as many bytes as lie there, whole and cut
    ),
    Reader("tensor", _tensor, _tensors(), ERRORS, times=96),
    Reader("floats", _floats, _encoded(), ERRORS),
    Reader("message layout", _message, _messages(), ERRORS, times=96),
    Reader("packed value", unpack_value, [pack_value(value).tobytes() for value in _VALUES], ERRORS, mutate=in_msgpack(), times=96),
]
