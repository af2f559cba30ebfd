"""Messages to frames and back.

    frame 0: msgpack [version, message name, [field, field, ...]]      frames 1, 2, ...: the payload field, if the message has one

Laws: `decode(encode(m)) == m`; `decode` raises nothing but `RemoteProtocolError`, whatever the bytes; what it makes of bytes that are no
message takes at most `growth` times as much memory as they do, and 256 KiB. The schema is in `schema`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast

import msgpack

from bbgrap.errors import BbgrapError, LocalProtocolError, OtherVersionError, RemoteProtocolError
from bbgrap.protocol.decoded_size import check_growth
from bbgrap.protocol.limits import MAX_HEADER_BYTES, MAX_MESSAGE_BYTES, MAX_PAYLOAD_FRAMES, Payload
from bbgrap.protocol.messages import PROTOCOL_VERSION, BytesLike
from bbgrap.protocol.schema import SchemaError, build, payload_of, plain_form, schema_of

M = TypeVar("M")


class Codec(Generic[M]):
    """Encodes and decodes the messages of one direction.

    Invariants: messages of another direction are as wrong as random bytes.
    """

    def __init__(self, *kinds: type[M], growth: int = 16) -> None:
        """Take the classes of the direction's union; their plain values take at most `growth` times the bytes of a message."""
        self._growth = growth
        self._kinds: dict[str, type[Any]] = {kind.__name__: kind for kind in kinds}
        self._payloads = {name: payload_of(kind) for name, kind in self._kinds.items()}

    def encode(self, message: M) -> list[BytesLike]:
        """Return the frames of a message; payload frames are those of the message, not copied.

        Raises:
            LocalProtocolError: if the message is of another direction or too large.
        """
        kind = type(message)
        if kind.__name__ not in self._kinds:
            raise LocalProtocolError(f"message {kind.__name__}: it is never sent in this direction")
        payload = self._payloads[kind.__name__]
        body = [getattr(message, name) for name, _ in schema_of(kind) if payload is None or name != payload[0]]
        try:
            header: bytes = msgpack.packb([PROTOCOL_VERSION, kind.__name__, body], default=plain_form)
        except (OverflowError, ValueError, TypeError) as error:
            raise LocalProtocolError(f"message {kind.__name__}: it cannot be encoded: {error}") from error
        if len(header) > MAX_HEADER_BYTES:
            raise LocalProtocolError(f"message {kind.__name__}: {len(header)} bytes exceed the limit of {MAX_HEADER_BYTES}")
        frames: list[BytesLike] = [header, *(getattr(message, payload[0]) if payload else ())]
        if payload and (fault := _payload_fault(payload[1], frames[1:])):
            raise LocalProtocolError(f"message {kind.__name__}: {fault}")
        if len(frames) > 1 + MAX_PAYLOAD_FRAMES or sum(map(len, frames)) > MAX_MESSAGE_BYTES:
            raise LocalProtocolError(
                f"message {kind.__name__}: {sum(map(len, frames))} bytes in {len(frames) - 1} tensors exceed the limits of "
                f"{MAX_MESSAGE_BYTES} bytes and {MAX_PAYLOAD_FRAMES} tensors"
            )
        return frames

    def decode(self, frames: Sequence[BytesLike]) -> M:
        """Return the message of some frames.

        Raises:
            RemoteProtocolError: if they are anything but one valid message of this direction.
            OtherVersionError: if that is because the sender is of another version.
        """
        try:
            return self._decode(frames)
        except OtherVersionError:
            raise
        except SchemaError as error:
            raise RemoteProtocolError(f"message: {error}") from error
        except BbgrapError as error:
            raise RemoteProtocolError(str(error)) from error
        except (ValueError, RecursionError, OverflowError, LookupError, MemoryError, msgpack.exceptions.UnpackException) as error:
            raise RemoteProtocolError(f"message: it is not valid: {type(error).__name__}: {str(error)[:200]}") from error

    def _decode(self, frames: Sequence[BytesLike]) -> M:
        if not frames or len(frames[0]) > MAX_HEADER_BYTES:
            limits = f"at most {1 + MAX_PAYLOAD_FRAMES} frames and {MAX_MESSAGE_BYTES} bytes in all"
            raise SchemaError(f"expected a header of 1 to {MAX_HEADER_BYTES} bytes, {limits}")
        check_growth(frames[0], self._growth)
        most = len(frames[0])
        # No extensions: they are of no use here.
        plain = msgpack.unpackb(
            frames[0], raw=False, use_list=False, strict_map_key=True, max_array_len=most, max_map_len=most // 2, max_ext_len=0
        )
        match plain:
            case (int(version), str(name), tuple(body)):
                pass
            case _:
                raise SchemaError("expected [version, name, fields]")
        if version != PROTOCOL_VERSION:
            raise OtherVersionError(
                f"this side speaks protocol {PROTOCOL_VERSION}, the other {version}; install the same bbgrap on all machines"
            )
        kind = self._kinds.get(name)
        if kind is None:
            raise SchemaError(f"'{name[:40]}' is no message of this direction")
        payload = self._payloads[kind.__name__]
        extra: dict[str, Any] = {}
        if payload is not None:
            if fault := _payload_fault(payload[1], frames[1:]):
                raise SchemaError(fault)
            extra[payload[0]] = tuple(frames[1:])
        elif len(frames) > 1:
            raise SchemaError(f"{name} has no payload, got {len(frames) - 1} frames")
        return cast("M", build(kind, body, extra))


def _payload_fault(limit: Payload, frames: Sequence[BytesLike]) -> str:
    if len(frames) > limit.frames or any(len(frame) > limit.frame_bytes for frame in frames):
        return f"expected at most {limit.frames} payload frames of {limit.frame_bytes} bytes, got {[len(f) for f in frames[:8]]}"
    return ""
