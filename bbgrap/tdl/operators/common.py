"""What several families share: one index per output axis, broadcasting, whole operands, functions of whole axes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from bbgrap.errors import PlanError
from bbgrap.shapemap import Interval, ShapeMap
from bbgrap.tdl.bit_sensitive import FLOATS
from bbgrap.tdl.language import (
    ALL,
    OPAQUE_FLOPS,
    Access,
    Constant,
    Description,
    Index,
    IndexExpression,
    Opaque,
    Subscript,
    operand,
)
from bbgrap.tdl.rule import ConstantOperand, LocalNode, LocalOperand, Result, Site, operands_of

Reads = tuple[ShapeMap | None, ...]


def output_indices(site: Site) -> tuple[Index, ...]:
    """Return one index per axis of the first output."""
    return tuple(Index(f"i{axis}", extent) for axis, extent in enumerate(site.output_shape))


def broadcast(out: Sequence[IndexExpression], shape: Sequence[int]) -> tuple[IndexExpression, ...]:
    """Return the subscripts of an operand that broadcasts to `out`: aligned at the last axis, an axis of extent 1 read at 0.

    It may have more axes of extent 1 than there are: onnxruntime takes the bounds of a `Clip` so.
    """
    tail = (*(Constant(0),) * (len(shape) - len(out)), *out[max(0, len(out) - len(shape)) :])
    return tuple(Constant(0) if extent == 1 else index for index, extent in zip(tail, shape, strict=True))


def whole(site: Site, number: int) -> Access:
    """Read all of an operand."""
    return operand(number)[(ALL,) * len(site.shape(number))]


def wholes(site: Site, numbers: Iterable[int]) -> list[Access]:
    """Read all of each operand that is present."""
    return [whole(site, number) for number in numbers if site.has(number)]


def but(out: Sequence[IndexExpression], axes: Collection[int]) -> tuple[Subscript, ...]:
    """Return the subscripts that follow the output, except on some axes, which are read whole."""
    return tuple(ALL if axis in axes else index for axis, index in enumerate(out))


def with_whole_axes(
    function: str,
    out: tuple[Index, ...],
    reads: Sequence[Access],
    axes: Collection[int],
    flops: int = OPAQUE_FLOPS,
    extra: tuple[tuple[Subscript, ...], ...] = (),
) -> Description | None:
    """Describe a function that needs some of its output's axes whole, or none, with its work per element; None if these are all axes.

    `extra` are the subscripts of its further outputs.
    """
    if len(set(axes)) == len(out):
        return None
    fixed = tuple(index for axis, index in enumerate(out) if axis in axes)
    return Description(out, Opaque(function, tuple(reads), fixed, flops), extra)


def is_scalar(site: Site, number: int) -> bool:
    """Tell whether an operand is absent or has one element."""
    return not site.has(number) or int(np.prod(site.shape(number), dtype=np.int64)) == 1


def integers(*values: int) -> ConstantOperand:
    """Return a 1-D int64 parameter."""
    return ConstantOperand(np.array(values, np.int64))


def sliced(source: LocalOperand, start: int, stop: int, axis: int) -> LocalNode:
    """Return a Slice of one axis, local coordinates."""
    return LocalNode("Slice", (source, integers(start), integers(stop), integers(axis)))


def is_lone_row(site: Site, region: ShapeMap, axis: int, rows: int, other: int) -> bool:
    """Tell whether a piece has one of several rows of a product, and must have the bits that it has among them.

    onnxruntime multiplies one row by another matrix in an order of its own, unless that is a weight, which it packs (MLAS, `sgemm.cpp`);
    two rows it multiplies like many.
    """
    is_float = site.outputs[0].dtype in FLOATS
    return site.keeps_bits and is_float and region.shape[axis] == 1 < rows and site.constant(other) is None


def doubled(source: LocalOperand, axis: int) -> LocalNode:
    """Return what has a row twice."""
    return LocalNode("Concat", (source, source), {"axis": axis})


def cropped(nodes: tuple[LocalNode, ...], region: ShapeMap, places: Mapping[int, tuple[int, int]]) -> tuple[LocalNode, ...]:
    """Return nodes followed by a Slice that keeps a tile of what the last one makes; no Slice where it keeps all.

    `places` are, by axis, where the tile begins in that, and how many elements that has.
    """
    if all(extent == region.shape[axis] for axis, (_, extent) in places.items()):
        return nodes
    starts = {axis: start for axis, (start, _) in places.items()}
    bounds = (integers(*starts.values()), integers(*(start + region.shape[axis] for axis, start in starts.items())), integers(*starts))
    return *nodes, LocalNode("Slice", (Result(len(nodes) - 1), *bounds))


def first_read(reads: Reads) -> ShapeMap:
    """Return what is read of the first operand, of an operator that always reads it."""
    assert reads[0] is not None, "described, so its first operand is read"
    return reads[0]


def described_concat(site: Site, numbers: Sequence[int]) -> tuple[tuple[Index, ...], list[Access]]:
    """Return the output of a concatenation of some operands, and what it reads: operand k at a - offset k, where that lies inside."""
    out = output_indices(site)
    axis = site.integer("axis", 0) % len(out)
    offsets = accumulate((site.shape(number)[axis] for number in numbers), initial=0)
    places = ((*out[:axis], out[axis] - offset, *out[axis + 1 :]) for offset in offsets)
    return out, [operand(number)[place] for number, place in zip(numbers, places, strict=False)]


def unit_of(index: Index, size: int, name: str = "r") -> IndexExpression:
    """Return the elements that are computed together with one: as many as `size`, of which the first is at a multiple of it."""
    return index // size * size + Index(name, size)


def localize_units(
    site: Site, region: ShapeMap, reads: Reads, axis: int, size: int, counted: Mapping[str, int] = MappingProxyType({})
) -> tuple[LocalNode, ...]:
    """Return the same node for the units of an axis that a tile touches, then a Slice that keeps the tile's own elements.

    `counted` are attributes that say how many there are of something, such as heads, and how many of these a unit has.

    Raises:
        PlanError: if the tile is a part of the axis, and has several ranges there.
    """
    node = LocalNode(site.node.op, operands_of(site, reads), site.node.attributes, site.node.domain, makes_further=True)
    if region.shape[axis] == site.output_shape[axis]:
        return (node,)
    own = spatial_interval(site, region, axis)
    first, last = own.start // size, -(-own.stop // size)
    told = {name: each * (last - first) for name, each in counted.items()}
    place = own.start - first * size, (last - first) * size
    return cropped((replace(node, attributes={**node.attributes, **told}),), region, {axis: place})


def spatial_interval(site: Site, region: ShapeMap, axis: int) -> Interval:
    """Return a tile's range along an axis.

    Raises:
        PlanError: if the tile has several ranges there: one local operator cannot compute them.
    """
    ranges = region.axes[axis].ranges
    if len(ranges) != 1:
        raise PlanError(f"node '{site.node.name}' ({site.node.op}): expected one range along axis {axis}, got {region.axes[axis]}")
    return ranges[0]
