"""Memory in which a process of this machine lays payloads for another one: their messages name the place instead of carrying the bytes.

Devices have one for each direction, a client and its coordinator (`bbgrap.transport.channel`) halves of one.

    ready 8 | ... | read 8 | ...                        a page; the receiver writes, both read
    ring of payloads                                    the sender writes, the receiver copies

Places count on without end; the byte of a place is its rest by the ring's size. The message that names a place travels over the connection
as any other, so their order, their losses and who may send are those of the connection. What finds no room travels in its message.

Laws: the receiver copies a payload before anybody looks at it, so nobody can change it then; no place is written again before the receiver
has copied it; neither side believes the other's numbers; the memory is sealed, so nobody can make it smaller under the other's feet.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.messages import BytesLike

RING_BYTES = 32 << 20
"""What may be on its way from one device to another, taken as it is used, the lowest bytes first. Chosen: two of VGG16's largest maps."""
PAGE_BYTES = 4096
MEMORY_BYTES = PAGE_BYTES + RING_BYTES
LEAST_BYTES = 8 << 10
"""Of a payload that is laid there. Measured: below, a copy into a record of TLS takes no longer."""
_ALIGN = 64
_READY, _READ = 0, 8
"""Which numbers of the page they are: in lines of cache of their own."""


class PayloadWriter:
    """The sender's end.

    Invariants: what lies between the later of `_first` and the receiver's count, and `_written`, may still be read.
    """

    def __init__(self, memory: mmap.mmap | memoryview) -> None:
        """Begin with an empty ring; nothing is laid there before the receiver has the memory."""
        self._numbers, self._ring = _parts(memory)
        self._first = self._written = 0

    @property
    def is_read(self) -> bool:
        """Whether the receiver has the memory."""
        return bool(self._numbers[_READY])

    def mark(self) -> tuple[int, int]:
        """Return what `go_back` takes."""
        return self._first, self._written

    def go_back(self, mark: tuple[int, int]) -> None:
        """Forget what was laid there since a mark, of which the receiver was told nothing."""
        self._first, self._written = mark

    def put(self, pieces: Sequence[BytesLike], nbytes: int) -> int | None:
        """Lay a payload there, given in pieces, and return its place; None if there is no room."""
        read, ring = int(self._numbers[_READ]), len(self._ring)
        if not self.is_read or read > self._written:
            return None
        if read == self._written:
            self._first = start = _next(read, ring)
        else:
            start = self._written
            if start % ring + nbytes > ring:
                start = _next(start, ring)
        if start + nbytes > max(self._first, read) + ring:
            return None
        position = start % ring
        for piece in pieces:
            self._ring[position : position + len(piece)] = np.frombuffer(piece, np.uint8)
            position += len(piece)
        self._written = _next(start + nbytes, _ALIGN)
        return start


class PayloadReader:
    """The receiver's end.

    Invariants: everything before `_read` has been copied or was not wanted; what the sender knows of that is `_told`.
    """

    def __init__(self, memory: mmap.mmap | memoryview) -> None:
        """Let the sender begin."""
        self._numbers, self._ring = _parts(memory)
        self._read = self._told = 0
        self._numbers[_READY] = 1

    def check(self, place: int, nbytes: int) -> None:
        """See whether a payload can be at a place: also many small messages do not name more than there is.

        Raises:
            RemoteProtocolError: if not.
        """
        ring = len(self._ring)
        most = self._told + 2 * ring
        if nbytes < 1 or place < self._read or place % ring + nbytes > ring or place + nbytes > most:
            raise RemoteProtocolError(f"payload memory: {nbytes} bytes at place {place}; expected {self._read} to {most}, in one piece")

    def copy(self, place: int, into: memoryview) -> None:
        """Copy a payload that `check` has passed."""
        start = place % len(self._ring)
        np.frombuffer(into, np.uint8)[:] = self._ring[start : start + len(into)]

    def release(self, place: int, nbytes: int) -> None:
        """Note that what precedes the end of a payload is not needed any more."""
        self._read = _next(place + nbytes, _ALIGN)

    def tell(self) -> None:
        """Let the sender use again what is not needed any more; after a piece of the stream, not amid it."""
        if self._told != self._read:
            self._numbers[_READ] = self._told = self._read


def _parts(memory: mmap.mmap | memoryview) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Return the numbers of the page and the ring behind it."""
    return np.frombuffer(memory, np.uint64, PAGE_BYTES // 8), np.frombuffer(memory, np.uint8, offset=PAGE_BYTES)


def _next(value: int, step: int) -> int:
    """Return the first multiple of a step that is not below a value."""
    return -(-value // step) * step
