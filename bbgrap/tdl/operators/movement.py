"""Operators that only move elements: concatenation, slices, transposition, resizing."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bbgrap.graph.types import Attribute, DType
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.language import ALL, Constant, Description, Index, IndexExpression, Opaque, ScalarCall, Subscript, Sum, operand
from bbgrap.tdl.operators.common import (
    Reads,
    but,
    cropped,
    described_concat,
    first_read,
    integers,
    output_indices,
    spatial_interval,
    wholes,
    with_whole_axes,
)
from bbgrap.tdl.rule import ConstantOperand, Input, LocalNode, OperatorRule, Result, Site, register, same_node


def describe_concat(site: Site) -> Description | None:
    """out[..., a, ...] = operand k at a - offset k, for the one k where that lies inside."""
    out, reads = described_concat(site, range(len(site.inputs)))
    return Description(out, ScalarCall("select", tuple(reads)))


def localize_concat(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Concatenate the operands that the tile touches; one alone is passed through."""
    present = tuple(Input(k) for k, read in enumerate(reads) if read is not None and not read.is_empty)
    if len(present) == 1:
        return (LocalNode("Identity", present),)
    return (LocalNode("Concat", present, site.node.attributes),)


def slice_bounds(site: Site) -> tuple[tuple[int, int], ...] | None:
    """Return (first element, step) per axis of a Slice's input, or None where a parameter is only known at run time."""
    shape = site.shape(0)
    given = [site.constant(k) for k in range(1, len(site.inputs)) if site.has(k)]
    if any(g is None for g in given):
        return None
    starts = np.asarray(site.constant(1)).ravel()
    axes = np.asarray(site.constant(3)).ravel() if site.has(3) else np.arange(len(starts))
    steps = np.asarray(site.constant(4)).ravel() if site.has(4) else np.ones(len(starts), np.int64)
    found = [(0, 1)] * len(shape)
    for start, axis, step in zip(starts.tolist(), axes.tolist(), steps.tolist(), strict=True):
        extent = shape[axis]
        first = start + extent if start < 0 else start
        found[axis] = (min(max(first, 0), extent if step > 0 else extent - 1), step)
    return tuple(found)


def describe_slice(site: Site) -> Description | None:
    """out[i...] = x[start + step * i...]; an axis whose size moves, or whose bounds the run tells, is read whole."""
    found, out = slice_bounds(site), output_indices(site)
    if found is None:
        return _described_as_told(site, out)
    moving = _sliced(site) & site.moving[0]
    if moving and moving != _sliced(site):
        return None  # bounds of both kinds of axes
    places = (ALL if a in moving else index * step + start for a, (index, (start, step)) in enumerate(zip(out, found, strict=True)))
    read = operand(0)[tuple(places)]
    return Description(
        out, Opaque("slice", (read,), tuple(out[axis] for axis in sorted(moving))) if moving else ScalarCall("copy", (read,))
    )


def _described_as_told(site: Site, out: tuple[Index, ...]) -> Description | None:
    """Describe a Slice by bounds that are no constants: what it slices stays whole, the others line up."""
    if site.has(3) and site.constant(3) is None:
        return None
    axes = _sliced(site)
    bounds = (number for number in (1, 2, 4) if site.constant(number) is None)
    return with_whole_axes("slice", out, [operand(0)[but(out, axes)], *wholes(site, bounds)], axes)


def _sliced(site: Site) -> frozenset[int]:
    """Return the axes that a Slice names."""
    given, rank = site.constant(3), len(site.shape(0))
    return frozenset(range(site.shape(1)[0]) if given is None else (int(axis) % rank for axis in given.ravel()))


def localize_slice(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Where every step is 1 the piece read is the piece wanted; else slice the hull that was read, with local bounds."""
    found, read = slice_bounds(site), first_read(reads)
    if found is None or _sliced(site) & site.moving[0]:
        return same_node(site, region, reads)  # its bounds are told, or may count from an end that moves
    stepped = [axis for axis, (_, step) in enumerate(found) if step != 1]
    if not stepped:
        return (LocalNode("Identity", (Input(0),)),)
    starts, ends = [], []
    for axis in stepped:
        first, step = found[axis]
        piece = spatial_interval(site, region, axis)
        start = first + step * piece.start - read.axes[axis].hull.start
        end = start + step * len(piece)
        starts.append(start)
        ends.append(end if end >= 0 else -(2**62))
    parameters = (integers(*starts), integers(*ends), integers(*stepped), integers(*(found[axis][1] for axis in stepped)))
    return (LocalNode("Slice", (Input(0), *parameters)),)


def permutation(site: Site) -> tuple[int, ...]:
    """Return the permutation of a Transpose: output axis a is input axis permutation[a]."""
    rank = len(site.shape(0))
    return site.integers("perm", tuple(reversed(range(rank))))


def describe_transpose(site: Site) -> Description | None:
    """out[i...] = x[i permuted]."""
    out = output_indices(site)
    order = permutation(site)
    return Description(out, ScalarCall("copy", (operand(0)[tuple(out[order.index(axis)] for axis in range(len(order)))],)))


def resize_scales(site: Site) -> tuple[float, ...] | None:
    """Return the true scale of every axis, or None where it is only known at run time or depends on all extents at once.

    Given scales count, not the ratio of the extents: 5 by 2.1 gives 10, but is no doubling. But what keeps its shape is copied.
    """
    shape = site.shape(0)
    if site.has(2) and site.shape(2) != (0,):
        given = site.constant(2)
        if given is None:
            return None
        scales = [1.0] * len(shape)
        if shape == site.output_shape:
            return tuple(scales)
        for axis, scale in zip(site.integers("axes", range(len(shape))), given.tolist(), strict=True):
            scales[axis] = scale
        return tuple(scales)
    if site.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    return tuple(after / before for before, after in zip(shape, site.output_shape, strict=True))


_MOST_PLACES = 1 << 20
"""Of an axis that is resized by any factor: places are rounded to less than an element."""


def describe_resize(site: Site) -> Description | None:
    """Nearest or linear by whole factors: out[i] reads x[i // s], or the two around it; by others: four; other forms read whole axes."""
    scales, out = resize_scales(site), output_indices(site)
    if scales is None or 0 in site.shape(0) or site.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return None
    subscripts: list[Subscript] = []
    fixed: list[Index] = []
    taps: list[Index] = []
    for axis, (index, before, scale) in enumerate(zip(out, site.shape(0), scales, strict=True)):
        if scale == 1:
            subscripts.append(index)
        elif _is_by_blocks(site, axis, scale) and site.text("mode", "nearest") == "nearest":
            subscripts.append(index // int(scale))
        elif _is_by_blocks(site, axis, scale):
            taps.append(Index(f"t{axis}", 2))
            subscripts.append((index * 2 + Constant(1 - int(scale))) // (2 * int(scale)) + taps[-1])
        elif _is_between(site) and 1 < min(index.extent, before) <= max(index.extent, before) <= _MOST_PLACES:
            taps.append(Index(f"t{axis}", 4))
            subscripts.append(_first_beside(site, index, before, scale) + taps[-1])
        else:
            subscripts.append(ALL)
            fixed.append(index)
    if len(fixed) == len(out):
        return None
    read = operand(0)[tuple(subscripts)]
    if fixed:
        return Description(out, Opaque("resize", (read,), tuple(fixed)))
    return Description(out, ScalarCall("interpolate", (Sum(tuple(taps), read) if taps else read,)))


def _is_by_blocks(site: Site, axis: int, scale: float) -> bool:
    """Tell whether an axis grows by a whole factor; of linear ones by a power of two: other shares round by where the piece begins."""
    factor = site.output_shape[axis] // site.shape(0)[axis]
    return _scales_by_blocks(site) and scale == factor and (site.text("mode", "nearest") == "nearest" or factor & (factor - 1) == 0)


def _is_between(site: Site) -> bool:
    """Tell whether an element is made of the two beside its place, which any piece can find as onnxruntime does."""
    kind, transform = site.inputs[0], site.text("coordinate_transformation_mode", "half_pixel")
    is_known = transform in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
    is_plain = kind is not None and kind.dtype is DType.FLOAT and not site.integer("antialias", 0)
    return is_known and is_plain and not site.keeps_bits and site.text("mode", "nearest") == "linear"


def _first_beside(site: Site, index: Index, before: int, scale: float) -> IndexExpression:
    """Return the element before the two that an output lies between: where it lies is rounded, and may be on the other side of one."""
    transform, is_larger = site.text("coordinate_transformation_mode", "half_pixel"), scale >= 1
    nearly = Fraction(scale if is_larger else 1 / scale).limit_denominator(_MOST_PLACES)
    ratio = nearly if is_larger else 1 / nearly
    if transform == "align_corners":
        step, divisor, offset = before - 1, index.extent - 1, 0
    elif transform == "asymmetric":
        step, divisor, offset = ratio.denominator, ratio.numerator, 0
    else:
        step, divisor, offset = 2 * ratio.denominator, 2 * ratio.numerator, ratio.denominator - ratio.numerator
    return (index * step + Constant(offset - divisor)) // divisor


def _places(site: Site, axis: int, scale: float) -> NDArray[np.float32]:
    """Return where the outputs lie between the elements of an axis, in onnxruntime's arithmetic."""
    before, after, half = site.shape(0)[axis], site.output_shape[axis], np.float32(0.5)
    outputs = np.arange(after, dtype=np.float32)
    match site.text("coordinate_transformation_mode", "half_pixel"):
        case "align_corners":
            places = outputs * np.float32(before - 1) / np.float32(after - 1)
        case "asymmetric":
            places = outputs / np.float32(scale)
        case _:
            places = (outputs + half) / np.float32(scale) - half
    return places.clip(0, before - 1)


def _scales_by_blocks(site: Site) -> bool:
    """Tell whether a whole factor maps every block of outputs to the same inputs, whatever the piece starts with."""
    transform, nearest = site.text("coordinate_transformation_mode", "half_pixel"), site.text("nearest_mode", "round_prefer_floor")
    centred = transform in ("half_pixel", "pytorch_half_pixel")
    if site.integer("antialias", 0):
        return False
    match site.text("mode", "nearest"):
        case "nearest":
            return (centred and nearest.startswith("round_prefer")) or (transform == "asymmetric" and nearest == "floor")
        case "linear":
            return centred
        case _:
            return False


def localize_resize(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Resize the piece that was read by the same scales, then keep the tile's own part; what lies between elements is made of both."""
    read, scales = first_read(reads), resize_scales(site)
    assert scales is not None, "described, so its scales are known"
    attributes: dict[str, Attribute] = {k: v for k, v in site.node.attributes.items() if k not in ("axes", "keep_aspect_ratio_policy")}
    pieces = ((region, site.output_shape), (read, site.shape(0)))
    partial = [axis for axis, scale in enumerate(scales) if scale != 1 and any(part.shape[axis] != whole[axis] for part, whole in pieces)]
    split = [axis for axis in partial if _is_by_blocks(site, axis, scales[axis])]
    between = [axis for axis in partial if axis not in split]
    if between:  # of the others, those that keep their extent: onnxruntime would take the rest for a copy
        kept = (axis for axis, scale in enumerate(scales) if scale != 1 and 1 < site.shape(0)[axis] == site.output_shape[axis])
        between += [axis for axis in kept if axis not in partial]
    extents = [read.shape[axis] if axis in between else extent for axis, extent in enumerate(region.shape)]
    for axis in split:
        extents[axis] = int(scales[axis]) * read.shape[axis]
    if site.has(2) and site.shape(2) != (0,):
        here = np.array([1 if axis in between else scale for axis, scale in enumerate(scales)], np.float32)
        resized = LocalNode("Resize", (Input(0), None, ConstantOperand(here)), attributes)
    else:
        resized = LocalNode("Resize", (Input(0), None, None, integers(*extents)), attributes)
    starts = [spatial_interval(site, region, axis).start - int(scales[axis]) * read.axes[axis].hull.start for axis in split]
    made = region
    for axis in between:
        made = made.replace(axis, read.axes[axis])
    nodes = cropped((resized,), made, {axis: (start, extents[axis]) for axis, start in zip(split, starts, strict=True)})
    for axis in between:
        nodes = (*nodes, *_interpolated(site, region, read, axis, scales[axis], len(nodes)))
    return nodes


def _interpolated(site: Site, region: ShapeMap, read: ShapeMap, axis: int, scale: float, number: int) -> tuple[LocalNode, ...]:
    """Return nodes that make a tile's range of an axis of what the last of so many nodes has made: both elements beside, weighted."""
    tile, held = spatial_interval(site, region, axis), read.axes[axis].hull
    places = _places(site, axis, scale)[tile.start : tile.stop].clip(held.start, held.stop - 1)
    first = places.astype(np.int64)
    second = np.minimum(first + 1, held.stop - 1)
    shape = [-1 if other == axis else 1 for other in range(region.rank)]
    share = np.where(first == second, np.float32(0.5), places - first.astype(np.float32)).reshape(shape)
    nodes = []
    for elements, weights in ((first, np.float32(1) - share), (second, share)):
        nodes.append(LocalNode("Gather", (Result(number - 1), ConstantOperand(elements - held.start)), {"axis": axis}))
        nodes.append(LocalNode("Mul", (Result(number + len(nodes) - 1), ConstantOperand(weights))))
    return *nodes, LocalNode("Add", (Result(number + 1), Result(number + 3)))


register(OperatorRule(describe_concat, localize_concat), "Concat")
register(OperatorRule(describe_slice, localize_slice), "Slice")
register(OperatorRule(describe_transpose), "Transpose")
register(OperatorRule(describe_resize, localize_resize), "Resize")
