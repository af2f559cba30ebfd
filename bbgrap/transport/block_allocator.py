"""Which bytes of a shared memory are in use, and by how many holders: numbers only, no memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

ALIGN = 4096
"""A page: blocks begin where any element type is aligned."""


@dataclass(slots=True)
class _Block:
    start: int
    stop: int
    holders: int = 1


class BlockAllocator:
    """The blocks of a range of bytes; a new one takes the lowest place, so that few pages are ever touched.

    Invariants: blocks are disjoint, in order and inside the range; every one has a holder.
    """

    def __init__(self, start: int, size: int) -> None:
        """Start with everything free; `start` is a multiple of `ALIGN`."""
        self.start, self.stop = start, start + size
        self._blocks: list[_Block] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(block.start, block.stop) for block in self._blocks])

    def take(self, nbytes: int) -> int | None:
        """Return where a new block with one holder begins; None if there is no room."""
        size = -(-max(1, nbytes) // ALIGN) * ALIGN
        start = self.start
        for place, block in enumerate(self._blocks):
            if block.start - start >= size:
                self._blocks.insert(place, _Block(start, start + size))
                return start
            start = block.stop
        if self.stop - start < size:
            return None
        self._blocks.append(_Block(start, start + size))
        return start

    def hold(self, offset: int) -> None:
        """Add a holder to the block around a byte.

        Raises:
            LookupError: if there is no block.
        """
        self._blocks[self._find(offset)].holders += 1

    def drop(self, offset: int) -> None:
        """Take a holder away from the block around a byte; without any it is free.

        Raises:
            LookupError: if there is no block.
        """
        place = self._find(offset)
        self._blocks[place].holders -= 1
        if not self._blocks[place].holders:
            del self._blocks[place]

    def _find(self, offset: int) -> int:
        place = bisect_right(self._blocks, offset, key=lambda block: block.start) - 1
        if place < 0 or offset >= self._blocks[place].stop:
            raise LookupError(f"no block is at byte {offset}")
        return place
