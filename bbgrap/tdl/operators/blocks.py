"""Operators that lay blocks of elements out anew: depth and space, tiling, triangles, columns to images."""

from __future__ import annotations

from math import prod

import numpy as np

from bbgrap.graph.types import Attribute, DType
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.language import ALL, Description, Index, IndexExpression, Opaque, ScalarCall, operand
from bbgrap.tdl.operators.common import (
    Reads,
    broadcast,
    cropped,
    first_read,
    integers,
    output_indices,
    spatial_interval,
    with_whole_axes,
)
from bbgrap.tdl.rule import ConstantOperand, Input, LocalNode, OperatorRule, Result, Site, register


def describe_depth_to_space(site: Site) -> Description | None:
    """out[n, c, y, x] = in[n, block channel, y // B, x // B]; channels split in column-row-depth order only, where a block is a range."""
    n, c, y, x = output_indices(site)
    size = site.integer("blocksize", 1)
    if site.text("mode", "DCR") == "CRD":
        block = c * size**2 + Index("r", size**2)
        return Description((n, c, y, x), ScalarCall("copy", (operand(0)[n, block, y // size, x // size],)))
    return Description((n, c, y, x), Opaque("depth_to_space", (operand(0)[n, ALL, y // size, x // size],), (c,)))


def localize_depth_to_space(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The blocks that the tile touches, then the tile."""
    read, size = first_read(reads), site.integer("blocksize", 1)
    node = LocalNode("DepthToSpace", (Input(0),), site.node.attributes)
    starts = [(axis, spatial_interval(site, region, axis).start - size * read.axes[axis].hull.start) for axis in (2, 3)]
    return cropped((node,), region, {axis: (start, size * read.shape[axis]) for axis, start in starts})


def describe_space_to_depth(site: Site) -> Description | None:
    """out[n, k, y, x] = in[n, channel(k), y * B + row(k), x * B + column(k)]; the channels stay whole."""
    n, k, y, x = output_indices(site)
    size = site.integer("blocksize", 1)
    rows, columns = y * size + Index("r", size), x * size + Index("s", size)
    return Description((n, k, y, x), Opaque("space_to_depth", (operand(0)[n, ALL, rows, columns],), (k,)))


def describe_tile(site: Site) -> Description | None:
    """out[i...] = x[i modulo extent...]; an axis that repeats more than one element is read whole."""
    out, repeats = output_indices(site), site.constant(1)
    if repeats is None:
        return None
    shape = site.shape(0)
    repeated = {axis for axis, count in enumerate(repeats.ravel().tolist()) if count != 1 and shape[axis] != 1}
    place = tuple(ALL if axis in repeated else index for axis, index in enumerate(broadcast(out, shape)))
    return Description(out, ScalarCall("tile", (operand(0)[place],)))


def localize_tile(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Repeat what was read until it covers the tile, from the first repetition that the tile meets on, then take the tile."""
    read = first_read(reads)
    counts, starts = [], []
    for axis, (extent, period) in enumerate(zip(region.shape, read.shape, strict=True)):
        repeats = site.output_shape[axis] != site.shape(0)[axis]
        start = spatial_interval(site, region, axis).start % period if repeats else 0
        counts.append(-(-(start + extent) // period))
        starts.append(start)
    made = [count * period for count, period in zip(counts, read.shape, strict=True)]
    places = {axis: (starts[axis], extent) for axis, extent in enumerate(made) if extent != region.shape[axis]}
    return cropped((LocalNode("Tile", (Input(0), integers(*counts))),), region, places)


def _diagonal(site: Site, region: ShapeMap, k: int) -> int:
    """Return which diagonal of the tile is the k-th one of the whole matrix; beyond its corners, k may be as large as a number can be."""
    rank, beyond = region.rank, sum(site.output_shape[-2:])
    return min(max(k, -beyond), beyond) + spatial_interval(site, region, rank - 2).start - spatial_interval(site, region, rank - 1).start


def describe_trilu(site: Site) -> Description | None:
    """out[..., i, j] = x[..., i, j] on one side of a diagonal, else 0."""
    if site.has(1) and site.constant(1) is None:
        return None
    out = output_indices(site)
    return Description(out, ScalarCall("triangle", (operand(0)[out],)))


def localize_trilu(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The same triangle with the diagonal where the tile sees it."""
    given = site.constant(1)
    k = _diagonal(site, region, 0 if given is None else int(given.reshape(())))
    return (LocalNode("Trilu", (Input(0), ConstantOperand(np.array(k, np.int64))), site.node.attributes),)


def describe_eye_like(site: Site) -> Description | None:
    """out[i, j] = 1 on a diagonal, else 0; reads nothing."""
    return Description(output_indices(site), ScalarCall("eye", ()))


def localize_eye_like(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The tile's own part of the diagonal, on zeros of its shape."""
    attributes: dict[str, Attribute] = {
        "k": _diagonal(site, region, site.integer("k", 0)),
        "dtype": site.outputs[0].dtype.value,
    }
    return LocalNode("ConstantOfShape", (integers(*region.shape),)), LocalNode("EyeLike", (Result(0),), attributes)


def describe_col2im(site: Site) -> Description | None:
    """out[n, c, s...] = sum of columns in[n, c * K + k, :] that fall on s; the image stays whole."""
    out, block = output_indices(site), site.constant(2)
    if block is None or site.constant(1) is None:
        return None
    size = prod(block.ravel().tolist())
    column: IndexExpression = out[1] * size + Index("k", size)
    return with_whole_axes("col2im", out, [operand(0)[out[0], column, ALL]], range(2, len(out)))


def describe_affine_grid(site: Site) -> Description | None:
    """out[n, s..., :] = theta[n] applied to the place of s in a grid; the grid stays whole.

    In 16 bits all does: onnxruntime (1.32) has no kernel then, and ONNX's function in its place fails at a single image.
    """
    if site.outputs[0].dtype is DType.FLOAT16:
        return None
    out = output_indices(site)
    return with_whole_axes("affine_grid", out, [operand(0)[out[0], ALL, ALL]], range(1, len(out)))


def localize_affine_grid(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The same grid for fewer images."""
    return (LocalNode("AffineGrid", (Input(0), integers(region.shape[0], 1, *region.shape[1:-1])), site.node.attributes),)


register(OperatorRule(describe_depth_to_space, localize_depth_to_space), "DepthToSpace")
register(OperatorRule(describe_space_to_depth), "SpaceToDepth")
register(OperatorRule(describe_tile, localize_tile), "Tile")
register(OperatorRule(describe_trilu, localize_trilu), "Trilu")
register(OperatorRule(describe_eye_like, localize_eye_like), "EyeLike")
register(OperatorRule(describe_col2im), "Col2Im")
register(OperatorRule(describe_affine_grid, localize_affine_grid), "AffineGrid")
