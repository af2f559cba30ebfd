"""Which bytes of a shared memory are in use: numbers only, no memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

ALIGN = 4096
"""A page: blocks begin where any element type is aligned."""


class BlockAllocator:
    """The blocks of a range of bytes; a new one takes the lowest place, so that few pages are ever touched.

    Invariants: blocks (first byte, and the one after the last) are disjoint, in order and inside the range.
    """

    def __init__(self, start: int, size: int) -> None:
        """Start with everything free; `start` is a multiple of `ALIGN`."""
        self._start, self._stop = start, start + size
        self._blocks: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._blocks)

    def take(self, nbytes: int) -> int | None:
        """Return where a new block begins; None if there is no room."""
        size = -(-max(1, nbytes) // ALIGN) * ALIGN
        start = self._start
        for place, (first, stop) in enumerate([*self._blocks, (self._stop, self._stop)]):
            if first - start >= size:
                self._blocks.insert(place, (start, start + size))
                return start
            start = stop
        return None

    def drop(self, start: int) -> None:
        """Free the block that begins at a byte.

        Raises:
            LookupError: if there is none.
        """
        place = bisect_left(self._blocks, (start, 0))
        if place == len(self._blocks) or self._blocks[place][0] != start:
            raise LookupError(f"no block is at byte {start}")
        del self._blocks[place]
