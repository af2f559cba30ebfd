"""Readers of the control plane: messages of the three directions, and the plain values that make their classes."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import Any

import msgpack

from bbgrap.errors import BbgrapError, RemoteProtocolError
from bbgrap.protocol.codec import Codec
from bbgrap.protocol.directions import TO_AGENT, TO_CLIENT, TO_COORDINATOR
from bbgrap.protocol.messages import Deploy
from bbgrap.protocol.schema import SchemaError, build, plain_form
from tests.fuzzing.readers.mutate import damaged, in_msgpack
from tests.fuzzing.readers.reader import Reader
from tests.messages import AGENT, ANSWERS, CLIENT, COMMANDS, KEYS

CUT = b"|next frame|"
"""Between the frames of a message in an input."""

_DEPLOY = next(message for message in COMMANDS if isinstance(message, Deploy))


def _decode(codec: Codec[Any], data: bytes) -> None:
    message = codec.decode(data.split(CUT))
    assert codec.decode(codec.encode(message)) == message, "what was taken is encoded and decoded to the same"


def _in_header(data: bytes, chance: Random) -> bytes:
    header, *payload = data.split(CUT)
    if payload and chance.random() < 0.2:
        payload = [damaged(frame, chance) for frame in payload] * chance.choice((0, 1, 2))
    return CUT.join([in_msgpack()(header, chance), *payload])


def _codec(name: str, codec: Codec[Any], messages: list[Any]) -> Reader:
    seeds = [CUT.join(bytes(frame) for frame in codec.encode(message)) for message in messages]
    return Reader(f"codec {name}", lambda data: _decode(codec, data), seeds, (RemoteProtocolError,), mutate=_in_header, times=MSGPACK_TIMES)


MSGPACK_TIMES = 96
"""A byte of msgpack can be an empty map, which Python keeps in 72 bytes."""


class _RefusedError(BbgrapError):
    """What `build` raises, as an error of ours: whoever calls it turns it into one."""


def _build(data: bytes) -> None:
    try:
        body = msgpack.unpackb(data, use_list=False)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise _RefusedError from error
    try:
        build(Deploy, body)
    except SchemaError as error:
        raise _RefusedError from error


CONTROL = [
    _codec("to agents", TO_AGENT, COMMANDS),
    _codec("to clients", TO_CLIENT, ANSWERS),
    _codec("to the coordinator", TO_COORDINATOR, [*AGENT, *CLIENT, *KEYS]),
    Reader(
        "schema",
        _build,
        [msgpack.packb([getattr(_DEPLOY, field.name) for field in fields(_DEPLOY)], default=plain_form)],
        (BbgrapError,),
        mutate=in_msgpack(),
        times=MSGPACK_TIMES,
    ),
]
