"""Damage: bytes changed at random, and the same for what has a form (msgpack, protobuf), so that it stays one. By seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import msgpack
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import ModelProto

from tests.fuzzing.readers.reader import LONGEST, Mutator

EDGES = (0, 1, 7, 8, 63, 64, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)

_VALUES = (None, True, -1, 0.5, float("nan"), float("inf"), "", "x" * 70_000, b"", b"\xff" * 9, [], [[]], {}, {"a": 1}, {1: [2]})
_TEXTS = ("", "x", "y", "w", "Add", "If", "Loop", "Conv", "ConvTranspose", "Reshape", "Constant", "Split", "group", "f", "n" * 70_000)


def damaged(data: bytes, chance: Random) -> bytes:
    """Return an input with one to eight places changed."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        place = chance.randrange(len(made) + 1)
        match chance.randrange(6):
            case 0 if place < len(made):
                made[place] ^= 1 << chance.randrange(8)
            case 1 if place < len(made):
                made[place] = chance.randrange(256)
            case 2:
                del made[place : place + chance.choice((1, 1, 4, 16, 1 << 20))]
            case 3:
                made[place:place] = chance.randbytes(chance.choice((1, 2, 4, 9)))
            case 4:
                width = chance.choice((1, 2, 4, 8))
                edge = chance.choice(EDGES) % (1 << 8 * width)
                made[place : place + width] = edge.to_bytes(width, chance.choice(("little", "big")))
            case _:
                piece = made[place : place + chance.choice((1, 4, 32, 256))]
                made[place:place] = piece * chance.choice((1, 2, 100))
    return bytes(made[:LONGEST])


def in_msgpack(start: int = 0) -> Mutator:
    """Return what changes a value somewhere inside msgpack, which begins at a byte of the input."""

    def mutate(data: bytes, chance: Random) -> bytes:
        try:
            value = msgpack.unpackb(data[start:], strict_map_key=False)
            return data[:start] + msgpack.packb(_changed(value, chance))
        except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
            return damaged(data, chance)

    return mutate


def _changed(value: object, chance: Random) -> object:
    items: list[object] = list(value) if isinstance(value, list) else []
    if items and chance.random() < 0.85:
        place = chance.randrange(len(items))
        match chance.randrange(12):
            case 0:
                del items[place]
            case 1:
                items[place:place] = [items[place]] * chance.choice((1, 3, 1000))
            case _:
                items[place] = _changed(items[place], chance)
        return items
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        return {**value, key: _changed(value[key], chance)}
    return chance.choice((*_VALUES, *EDGES, [value] * 3, [value, value], {"": value}))


def in_protobuf(data: bytes, chance: Random) -> bytes:
    """Change a field somewhere inside a model."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
        _change_field(model, chance)
        return bytes(model.SerializeToString())
    except (ValueError, DecodeError, EncodeError):  # a number that its enumeration does not have, a text that is no Unicode
        return damaged(data, chance)


def _change_field(model: Message, chance: Random) -> None:
    message = chance.choice(list(_messages(model)))
    fields = message.DESCRIPTOR.fields
    name = chance.choice([f.name for f, _ in message.ListFields()] * 3 + [f.name for f in fields])
    kind = message.DESCRIPTOR.fields_by_name[name]
    values = getattr(message, name)
    if kind.is_repeated:
        match chance.randrange(4):
            case 0 if values:
                del values[chance.randrange(len(values))]
            case 1 if values:
                again = [chance.choice(values)] * chance.choice((1, 2, 70))
                values.extend(again)
            case _ if kind.message_type is None:
                values.append(_scalar(kind.cpp_type, chance, b"" if kind.type == kind.TYPE_BYTES else None))
            case _:
                values.add()
    elif kind.message_type is None:
        setattr(message, name, _scalar(kind.cpp_type, chance, values))
    elif chance.random() < 0.5:
        message.ClearField(name)
    else:
        others = [other for other in _messages(model) if other.DESCRIPTOR is kind.message_type]
        values.CopyFrom(_copy(chance.choice(others))) if others else values.SetInParent()


def _copy(message: Message) -> Message:
    """Return a copy that shares no memory: protobuf crashes where a message gets into itself."""
    return type(message).FromString(message.SerializeToString())


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for kind, value in message.ListFields():
        if kind.message_type is not None:
            for inner in value if kind.is_repeated else (value,):
                yield from _messages(inner)


_MAKERS: dict[int, Callable[[Random, object], object]] = {
    1: lambda chance, _: chance.choice((0, 1, 2, 9, 16, 17, 77, -1, 2**31 - 1, -(2**31))),  # int32
    2: lambda chance, _: chance.choice((0, 1, 2, 3, 4, 13, 2**31, 2**62, 2**63 - 1, -1, -2, -(2**63))),  # int64
    6: lambda chance, _: chance.choice((0.0, -1.0, 1e38, float("nan"), float("inf"))),  # float
    5: lambda chance, _: chance.choice((0.0, 1e308, float("nan"))),  # double
    4: lambda chance, _: chance.choice((0, 2**64 - 1)),  # uint64
    8: lambda chance, _: chance.randrange(0, 20),  # enum
}


def _scalar(kind: int, chance: Random, old: object = None) -> object:
    if kind != 9:  # not a text or bytes
        return _MAKERS.get(kind, lambda *_: 0)(chance, old)
    if isinstance(old, bytes):
        return damaged(old, chance) if old else chance.choice(_TEXTS).encode()
    return chance.choice(_TEXTS)
