"""Copies between buffers of which some are blocked: [N, C, H, W] by their shape, [N, C/b, H, W, b] in memory.

Convolutions work on blocked feature maps, so an agent keeps those that only its own segments read as they are. The arrays still have the
nominal shape, which is also what onnxruntime says of them; only here their memory is looked at. Rows and columns of a blocked map are
plain slices of it; what comes from another machine or goes there is converted on the way, and is small.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

import numpy as np

from bbgrap.graph.types import Array
from bbgrap.runtime.execution import SlicePlan
from bbgrap.runtime.schedule import Box, LocalJoin, LocalPart, Schedule, box_shape, extract

_ALIGN = 64
"""Bytes of a vector register: kernels read an array that begins at such an address faster."""

_FLOAT = np.dtype(np.float32)

_Window = tuple[tuple[int, ...], int, tuple[int, ...]]
"""Where a region is in the memory of an array without gaps, seen as [N, C/b, H, W, b]: its extents, the byte it begins at, and the bytes
from one element to the next. One call of numpy's makes that a view; slices take three, and right after a kernel none is in a cache."""


class BlockedSlicePlan(SlicePlan):
    """The slice plan of a schedule with some blocked buffers.

    Invariants: every blocked buffer has 32-bit floats, four axes, and a multiple of `block` channels; the pieces of a blocked `LocalJoin`
    are boxes of one range per axis and begin and end at multiples of `block` channels, in their sources, too.
    """

    def __init__(self, schedule: Schedule, block: int, blocked: Collection[int]) -> None:
        """Work for this schedule; `blocked` are the numbers of the blocked buffers."""
        super().__init__(schedule)
        self.block = block
        self.blocked = frozenset(blocked)

    def part(self, part: LocalPart, array: Array) -> Array:
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

    def empty(self, step: LocalJoin, arrays: Mapping[int, Array]) -> Array:
        """Return the array of a `LocalJoin`'s output before anything is there, blocked if that is."""
        shape = self.schedule.buffers[step.output].shape
        return super().empty(step, arrays) if step.output not in self.blocked or shape is None else aligned_empty(shape)

    def place(self, step: LocalJoin, joined: Array, box: Box | None, part: LocalPart, array: Array) -> None:
        """Copy one piece of a `LocalJoin` to where it belongs."""
        if step.output not in self.blocked:
            super().place(step, joined, box, part, array)
            return
        (shape, here, steps), (_, offset, strides) = self._window(LocalPart(step.output, box)), self._window(part)
        dense = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        np.ndarray(shape, _FLOAT, joined, here, steps)[...] = np.ndarray(shape, _FLOAT, dense, offset, strides)

    def _window(self, part: LocalPart) -> _Window:
        """Return where a region of whole blocks is, whether its buffer is blocked or not."""
        shape = self.schedule.buffers[part.buffer].shape
        assert shape is not None, "what is joined and sent in blocks has a shape"
        (_, c, h, w), b = shape, self.block
        ((n0, n1),), ((c0, c1),), ((h0, h1),), ((w0, w1),) = part.box or tuple(((0, extent),) for extent in shape)
        steps = (c * h * w, b * h * w, w * b, b, 1) if part.buffer in self.blocked else (c * h * w, b * h * w, w, 1, h * w)
        start = sum(place * step for place, step in zip((n0, c0 // b, h0, w0), steps, strict=False))
        strides = tuple(_FLOAT.itemsize * step for step in steps)
        return (n1 - n0, (c1 - c0) // b, h1 - h0, w1 - w0, b), _FLOAT.itemsize * start, strides


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
