"""Copies between buffers of which some are blocked: [N, C, H, W] by their shape, [N, C/b, H, W, b] in memory.

Convolutions work on blocked feature maps, so an agent keeps those that only its own segments read as they are. The arrays still have the
nominal shape, which is also what onnxruntime says of them; only here their memory is looked at. Rows and columns of a blocked map are
plain slices of it; what comes from another machine or goes there is converted on the way, and is small.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import prod

import numpy as np

from bbgrap.graph.types import Array
from bbgrap.program.execution import Copies, Empty, Take
from bbgrap.program.schedule import Box, Join, Part, Schedule, box_shape, extract

_ALIGN = 64
"""Bytes of a vector register: kernels read an array that begins at such an address faster."""

_Index = tuple[slice, ...]


class BlockedCopies(Copies):
    """Copies for a schedule with some blocked buffers.

    Invariants: every blocked buffer has 32-bit floats, four axes, and a multiple of `block` channels; the pieces of a blocked `Join` are
    boxes of one range per axis and begin and end at multiples of `block` channels, in their sources, too.
    """

    def __init__(self, schedule: Schedule, block: int, blocked: Collection[int]) -> None:
        """Prepare the copies of every step; `blocked` are the numbers of the blocked buffers."""
        super().__init__(schedule)
        self.block = block
        self.blocked = frozenset(blocked)
        self._joins = {step.output: self._prepared(step) for step in schedule.steps if isinstance(step, Join)}

    def part(self, part: Part, array: Array) -> Array:
        """Return a region as a plain array; the channels around it are converted with it if it does not end with a block."""
        if part.buffer not in self.blocked:
            return extract(array, part.box)
        if part.box is None:
            return from_blocks(blocks_of(array, self.block))
        b = self.block
        hull = [(ranges[0][0], ranges[-1][1]) for ranges in part.box]
        (n, n_end), (c, c_end), (h, h_end), (w, w_end) = hull
        first = c // b
        found = from_blocks(blocks_of(array, b)[n:n_end, first : -(-c_end // b), h:h_end, w:w_end])
        origin = (n, first * b, h, w)
        rest = tuple(tuple((start - at, stop - at) for start, stop in ranges) for ranges, at in zip(part.box, origin, strict=True))
        return found if box_shape(part.box) == found.shape else extract(found, rest)

    def taker(self, part: Part) -> Take:
        """Return what takes a region as a plain array: one copy where it is whole blocks of channels, as halos are."""
        spec = self.schedule.buffers[part.buffer]
        whole = part.box is not None and all(len(ranges) == 1 for ranges in part.box) and not any(c % self.block for c in part.box[1][0])
        if part.buffer not in self.blocked or not whole or spec.shape is None:
            return super().taker(part)
        n, c, h, w = spec.shape
        b, index, shape = self.block, self._blocks(part.box), box_shape(part.box or ())
        blocks, made = (n, c // b, h, w, b), (shape[0], shape[1] // b, b, shape[2], shape[3])

        def take(array: Array) -> Array:
            piece: Array = np.empty(made, np.float32)
            piece[...] = array.reshape(blocks)[index].transpose(0, 1, 4, 2, 3)
            return piece.reshape(shape)

        return take

    def join(self, step: Join, arrays: Mapping[int, Array], empty: Empty = np.empty) -> Array:
        """Return the array of a `Join`'s output, blocked if that is."""
        if step.output not in self.blocked:
            return super().join(step, arrays, empty)
        shape = self.schedule.buffers[step.output].shape
        assert shape is not None, "blocked buffers have shapes"
        joined = aligned_empty(shape)
        target = blocks_of(joined, self.block)
        for buffer, place, take in self._joins[step.output]:
            target[place] = take(arrays[buffer])
        return joined

    def _prepared(self, step: Join) -> list[tuple[int, _Index, Callable[[Array], Array]]]:
        return [(part.buffer, self._blocks(box), self._taker(part)) for part, box in step.pieces] if step.output in self.blocked else []

    def _taker(self, part: Part) -> Callable[[Array], Array]:
        block = self.block
        if part.buffer in self.blocked:
            index = self._blocks(part.box)
            return lambda array: blocks_of(array, block)[index]
        box = part.box
        return lambda array: to_blocks(extract(array, box), block)

    def _blocks(self, box: Box | None) -> _Index:
        if box is None:
            return (slice(None),) * 5
        ((n,), (c,), (h,), (w,)) = box
        return slice(*n), slice(c[0] // self.block, c[1] // self.block), slice(*h), slice(*w), slice(None)


def blocks_of(array: Array, block: int) -> Array:
    """Return a blocked array of nominal shape [N, C, H, W] as [N, C/b, H, W, b]: a view."""
    n, c, h, w = array.shape
    return array.reshape(n, c // block, h, w, block)


def to_blocks(array: Array, block: int) -> Array:
    """Return a plain array [N, C, H, W] as [N, C/b, H, W, b]: a view."""
    n, c, h, w = array.shape
    return array.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2)


def from_blocks(blocks: Array) -> Array:
    """Return [N, C/b, H, W, b] as a plain array [N, C, H, W]: a copy."""
    n, c, h, w, b = blocks.shape
    return blocks.transpose(0, 1, 4, 2, 3).reshape(n, c * b, h, w)


def blocked(array: Array, block: int) -> Array:
    """Return a plain array as a blocked one of the same nominal shape: a copy."""
    made = aligned_empty(array.shape)
    blocks_of(made, block)[...] = to_blocks(array, block)
    return made


def aligned_empty(shape: tuple[int, ...]) -> Array:
    """Return an array of 32-bit floats, not filled, that begins at a multiple of 64 bytes."""
    count = prod(shape)
    raw = np.empty(count + _ALIGN // 4, np.float32)
    start = -raw.__array_interface__["data"][0] % _ALIGN // 4
    return raw[start : start + count].reshape(shape)
