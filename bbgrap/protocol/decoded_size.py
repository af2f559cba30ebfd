"""How much memory msgpack's values take, before they are made: a byte of an empty map becomes 72.

msgpack's own limits bound single values, not all together: 400 lists inside each other, 5 bytes each, may all claim to be as long as the
message. So the tokens are counted first, without making anything: their order says nothing about their size, so no nesting is followed.
Law: `check_growth` raises, or the values take no more than `factor` times the bytes, and 256 KiB; those in CPython, on 64-bit machines.
"""

from __future__ import annotations

import struct

from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.messages import BytesLike

SLACK_BYTES = 256 << 10
"""The shapes of 1,024 inputs, the most that a request has, take 250 KB in 8 KB of message: names of two letters, and two sizes each."""
_SMALL_BYTES = 200
"""Up to here nothing can take more than the slack."""
_POINTER, _NUMBER, _TUPLE, _MAP, _ENTRY, _TEXT, _WIDE_TEXT, _BYTES, _EXTENSION = 8, 32, 64, 216, 108, 64, 96, 64, 256
"""Bytes of an object, or of its place in another."""
_LONG_POINTER = 18
"""The same in a long list: msgpack makes a list that grows, and then a tuple of it."""
_EMPTY_MAP = 72

_LENGTHS = {
    **dict.fromkeys((0xC4, 0xC7, 0xD9), struct.Struct(">B")),
    **dict.fromkeys((0xC5, 0xC8, 0xDA, 0xDC, 0xDE), struct.Struct(">H")),
    **dict.fromkeys((0xC6, 0xC9, 0xDB, 0xDD, 0xDF), struct.Struct(">I")),
}
"""How a token of this first byte says its length."""


def _fixed() -> list[tuple[int, int]]:
    """Return, by its first byte, how many bytes a token has and how many its value takes; no bytes: the length follows."""
    table = [(1, 0)] * 0x80  # small integers are there already
    table += [(1, _EMPTY_MAP)] + [(1, _MAP + _ENTRY * n) for n in range(1, 16)]
    table += [(1, 0)] + [(1, _TUPLE + _POINTER * n) for n in range(1, 16)]
    table += [(1, 0), (2, 0)] + [(0, 0)] * 30
    table += [(1, 0)] * 4 + [(0, 0)] * 6  # nothing, none, truths; bytes and extensions
    table += [(5, _NUMBER), (9, _NUMBER)]
    table += [(2, 0)] + [(1 + (1 << n), _NUMBER) for n in (1, 2, 3)] + [(1 + (1 << n), _NUMBER) for n in (0, 1, 2, 3)]
    table += [(2 + (1 << n), _EXTENSION) for n in range(5)]
    return table + [(0, 0)] * 7 + [(1, _NUMBER)] * 32


_FIXED = _fixed()


def check_growth(content: BytesLike, factor: int) -> None:
    """Check that the values in some bytes take no more than `factor` times as many, and 256 KiB.

    Raises:
        RemoteProtocolError: if they do, or if it is not msgpack.
    """
    if len(content) <= _SMALL_BYTES:
        return
    content = bytes(content)
    end, limit = len(content), factor * len(content) + SLACK_BYTES
    position = taken = 0
    while position < end:
        size, cost = _FIXED[content[position]]
        if not size:
            size, cost = _token(content, position)
        position += size
        taken += cost
        if taken > limit:
            raise RemoteProtocolError(f"message: its values take more than {factor} times its {end} bytes; it is none of bbgrap")


def _token(content: bytes, position: int) -> tuple[int, int]:
    """Return the same for a token that says its length."""
    first = content[position]
    if 0xA0 <= first < 0xC0:
        return _text(content, position + 1, 1, first - 0xA0)
    length = _LENGTHS[first]
    try:
        (count,) = length.unpack_from(content, position + 1)
    except struct.error:
        raise RemoteProtocolError(f"message: it ends within a value, after {len(content)} bytes") from None
    head = 1 + length.size
    if first in {0xD9, 0xDA, 0xDB}:
        return _text(content, position + head, head, count)
    if first in {0xC4, 0xC5, 0xC6}:
        return head + count, _BYTES + count
    if first in {0xC7, 0xC8, 0xC9}:
        return head + 1 + count, _EXTENSION + 2 * count
    return head, (_MAP + _ENTRY * count if first in {0xDE, 0xDF} else _TUPLE + _LONG_POINTER * count)


def _text(content: bytes, start: int, head: int, count: int) -> tuple[int, int]:
    """Return the same for a text: one wide character makes all of them wide."""
    if content[start : start + count].isascii():
        return head + count, _TEXT + count
    return head + count, _WIDE_TEXT + 4 * count
