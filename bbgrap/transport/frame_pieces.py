"""How the frames of a control message are cut on the wire, so that no peer has to take a large one from a stranger.

    envelope | piece, piece, ... of frame 0 | of frame 1 | ...        envelope: prefix, and the pieces of every frame 2 each if one is cut

ZeroMQ takes memory for a frame as its head says, before it knows whose it is; so frames on the wire are small (`maxmsgsize`), and large
ones are put together again here. Law: `join` undoes `cut`, and makes at most the bytes that it is given.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import zmq

from bbgrap.protocol.limits import MAX_MESSAGE_BYTES, MAX_PAYLOAD_FRAMES
from bbgrap.protocol.messages import BytesLike

PIECE_BYTES = 128 << 10
"""Chosen: 1,000 strangers that each send most of one take 128 MiB, and large messages take 15 % longer than in pieces of 1 MiB."""
MOST_BYTES = PIECE_BYTES + 4096
"""Of a frame on the wire: a piece, and what the lock adds."""
_ZERO_COPY_BYTES = 64 << 10
"""From here on handing over memory is cheaper than copying it (pyzmq's own threshold)."""


def cut(prefix: bytes, frames: Sequence[BytesLike]) -> list[BytesLike]:
    """Return the frames for the wire, behind an envelope that begins with `prefix`."""
    if all(len(frame) <= PIECE_BYTES for frame in frames):
        return [prefix, *frames]
    counts = [max(1, -(-len(frame) // PIECE_BYTES)) for frame in frames]
    views = [memoryview(frame).cast("B") for frame in frames]
    small = [view[at * PIECE_BYTES : (at + 1) * PIECE_BYTES] for view, count in zip(views, counts, strict=True) for at in range(count)]
    return [prefix + struct.pack(f"<{len(counts)}H", *counts), *small]


def join(envelope: BytesLike, wire: Sequence[BytesLike]) -> list[BytesLike]:
    """Return the frames that some on the wire are pieces of; none if the envelope does not fit them."""
    if not envelope:
        return list(wire) if len(wire) <= 1 + MAX_PAYLOAD_FRAMES else []
    if len(envelope) % 2:
        return []
    counts = struct.unpack(f"<{len(envelope) // 2}H", envelope)
    if len(counts) > 1 + MAX_PAYLOAD_FRAMES or min(counts) < 1 or sum(counts) != len(wire):
        return []
    frames: list[BytesLike] = []
    at = 0
    for count in counts:
        own = wire[at : at + count]
        frames.append(own[0] if count == 1 else memoryview(b"".join(own)))
        at += count
    return frames


def send(socket: zmq.Socket[bytes], frames: Sequence[BytesLike]) -> bool:
    """Send a multipart message; one for which there is no room is lost. Return whether there was."""
    last = len(frames) - 1
    try:
        for place, frame in enumerate(frames):
            flags = zmq.DONTWAIT | (zmq.SNDMORE if place < last else 0)
            socket.send(frame, flags, copy=len(frame) < _ZERO_COPY_BYTES)
    except zmq.Again:
        return False
    return True


def receive(socket: zmq.Socket[bytes], route: int) -> tuple[zmq.Frame, list[BytesLike]] | None:
    """Take a waiting multipart message without copying it, or None; of one that is too large, only the `route` and the envelope.

    The first frame is returned as ZeroMQ's own, too: it knows who sent it.
    """
    try:
        first = frame = socket.recv(zmq.DONTWAIT, copy=False)
    except zmq.Again:
        return None
    frames, total, count = [frame], len(frame), 1
    most = route + 2 + MAX_PAYLOAD_FRAMES + MAX_MESSAGE_BYTES // PIECE_BYTES
    while frame.more:  # they are all there: ZeroMQ delivers whole messages only
        frame = socket.recv(copy=False)
        total, count = total + len(frame), count + 1
        if total > MAX_MESSAGE_BYTES or count > most:
            del frames[route + 1 :]
        else:
            frames.append(frame)
    return first, [frame.buffer for frame in frames]
