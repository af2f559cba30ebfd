"""Bounds of `Slice`, written so that they mean the same of a value of another size."""

from __future__ import annotations

TO_THE_END = (1 << 31) - 1
"""Where a `Slice` ends that keeps the end of an axis, whatever its size."""


def from_nearer_end(start: int, stop: int, extent: int) -> tuple[int, int]:
    """Return half-open bounds within an axis, each counted from the end that it is nearer to: of other sizes as much is cut off."""
    if stop == extent:
        stop = TO_THE_END
    elif stop > extent - stop:
        stop -= extent
    # 0, counted from the end, would be the beginning
    return (start - extent if extent - start < start < extent else start), stop
