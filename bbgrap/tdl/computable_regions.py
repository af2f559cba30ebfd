"""What can be computed from what a machine holds: descriptions read from their operands to their output.

    held rows 40:80 of [3, 80, 80] ──► of its reshape to [19200]: elements 3200:6400, 9600:12800, 16000:19200

`input_regions` goes the other way. Laws: whatever is returned reads nothing that is not held (`input_regions` of it lies within what is
held, padding aside); a description that this cannot be read of gives None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl.language import All, Description, Index, IndexExpression, Quotient, Remainder, Subscript, Sum2, bounds

MOST_RANGES = 32
"""Ranges that an axis of a region may have: chosen; every one is a piece to copy."""

_FAR = 2**62


def computable(
    description: Description,
    held: Sequence[ShapeMap | None],
    shapes: Sequence[tuple[int, ...] | None],
    most_ranges: int = MOST_RANGES,
) -> ShapeMap | None:
    """Return a region of the output for which held regions are enough; None if nobody knows one.

    Args:
        description: of the node.
        held: per operand what there is of it, global coordinates; None: all of it.
        shapes: the whole operands' shapes; None for one that is absent.
        most_ranges: that an axis of the region may have.
    """
    sets = {index.name: IntervalSet.full(index.extent) for index in description.outputs}
    for access in description.accesses:
        region, shape = held[access.operand], shapes[access.operand]
        if region is None or shape is None:
            continue
        for subscript, there, extent in zip(access.subscripts, region.axes, shape, strict=True):
            found = _where(subscript, there, extent, most_ranges)
            if found is None or any(name not in sets for name in found):
                return None
            sets |= {name: sets[name].intersect(values) for name, values in found.items()}
    region = ShapeMap(tuple(sets[index.name] for index in description.outputs))
    cut = {axis for axis, extent in enumerate(region.shape) if extent != description.shape[axis]}
    if cut - set(description.splittable_axes) or any(len(axis.ranges) > most_ranges for axis in region.axes):
        return None
    return region


def _where(subscript: Subscript, held: IntervalSet, extent: int, most: int) -> Mapping[str, IntervalSet] | None:
    """Return, of the indices that a subscript restricts, the values for which it reads only what is held, or nothing at all."""
    if isinstance(subscript, All):
        return {} if held == IntervalSet.full(extent) else None
    return _values(subscript, IntervalSet.of(*held.ranges, (-_FAR, 0), (extent, _FAR)), most)


def _values(expression: IndexExpression, wanted: IntervalSet, most: int) -> Mapping[str, IntervalSet] | None:
    """Return for which values of its index an expression has a wanted value; None if it depends on more than one."""
    low, high = bounds(expression, {})
    if wanted.issuperset(IntervalSet.of((low, high + 1))):
        return {}
    match expression:
        case Index(name=name, extent=extent):
            return {name: wanted.clip(extent)}
        case Sum2(left=left, right=right):
            least, largest = bounds(right, {})
            return _values(left, wanted.shift(-least), most) if least == largest else None
        case Quotient(expression=inner, divisor=divisor, exact=False):
            return _values(inner, IntervalSet.of(*((r.start * divisor, r.stop * divisor) for r in wanted.ranges)), most)
        case Remainder(expression=inner, divisor=divisor):
            low, high = bounds(inner, {})
            ranges = wanted.clip(divisor).ranges
            starts = range(low // divisor * divisor, high + 1, divisor)
            if len(starts) * len(ranges) > most:
                return None
            return _values(inner, IntervalSet.of(*((start + r.start, start + r.stop) for start in starts for r in ranges)), most)
        case _:
            return None
