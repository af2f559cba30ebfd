"""Operators that only rename axes (Reshape, Flatten, Squeeze, Unsqueeze, Expand), and those that make tensors of sizes.

Input and output axes are matched in groups of equal products. In a group the outermost axes survive: of `[C, H, W] -> [C*H*W]` a range
of the output is a range of channels, of `[G*K] -> [G, K]` a range of groups is a range of G*K. Inner axes that a group makes cannot be
split. Inner axes that are joined can: of `[A, H, W] -> [A*H*W]` rows are A ranges of the output. Another cut that falls inside a unit is
computed from the whole unit and cropped.

Where sizes differ between requests or between shapes, pieces take them from what they read, as far as that can be said.
"""

from __future__ import annotations

from math import prod

import numpy as np

from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.language import ALL, Constant, Description, Expression, Index, Opaque, ScalarCall, Subscript, operand
from bbgrap.tdl.operators.common import Reads, broadcast, first_read, integers, output_indices, whole, wholes
from bbgrap.tdl.rule import ConstantOperand, Input, LocalNode, OperatorRule, Result, Site, register, same_node

RENAME_AXES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that only rename axes."""

_MERSENNE = (1 << 61) - 1
"""Stands for a size that moves: no size of a model, nor a product of some, is as large, and none is 1."""

Group = tuple[tuple[int, ...], tuple[int, ...]]
"""Input axes and output axes whose extents have equal products; axes of extent 1 belong to none."""


def groups_of(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[Group, ...]:
    """Match the axes of a reshape in the smallest groups of equal product, outermost first."""
    left = [a for a, extent in enumerate(before) if extent != 1]
    right = [a for a, extent in enumerate(after) if extent != 1]
    groups: list[Group] = []
    while left:
        ins, outs = [left.pop(0)], [right.pop(0)]
        while (have := prod(before[a] for a in ins)) != (want := prod(after[a] for a in outs)):
            (ins if have < want else outs).append((left if have < want else right).pop(0))
        groups.append((tuple(ins), tuple(outs)))
    return tuple(groups)


def describe_reshape(site: Site) -> Description | None:
    """out[i...] = x at the same place in row-major order."""
    before, after = site.shape(0), site.output_shape
    if not 0 < prod(before) == prod(after):
        return None  # contradictory sizes are for onnxruntime to refuse
    out = output_indices(site)
    subscripts: list[Subscript] = [Constant(0)] * len(before)
    fixed: list[Index] = []
    for ins, outs in groups_of(before, after):
        unit_in, unit_out = (prod(shape[a] for a in axes[1:]) for shape, axes in ((before, ins), (after, outs)))
        first = out[outs[0]]
        if unit_in == unit_out:
            subscripts[ins[0]] = first
        else:
            flat = first * unit_out + Index(f"r{outs[0]}", unit_out) if unit_out > 1 else first
            subscripts[ins[0]] = flat // unit_in if unit_in > 1 else flat
        for place, axis in enumerate(ins[1:], 2):
            inner = prod(before[a] for a in ins[place:])
            subscripts[axis] = (first // inner if inner > 1 else first) % before[axis] if unit_out == 1 else ALL
        fixed += [out[a] for a in outs[1:]]
    read = operand(0)[tuple(subscripts)]
    body: Expression = Opaque("reshape", (read,), tuple(fixed)) if fixed else ScalarCall("copy", (read,))
    return Description(out, body)


def localize_reshape(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Reshape what was read; where the tile begins or ends inside a unit, pick its elements."""
    read = first_read(reads)
    if read.size != region.size:
        return _reshape_by_elements(site, region, read)
    if site.moving_made and site.node.op != "Reshape":
        return same_node(site, region, reads)
    if site.free_made and site.node.op in {"Squeeze", "Unsqueeze"} and site.has(1):  # all axes that are one would be others of a piece
        return same_node(site, region, reads)
    target, moved = _target(site, read, region)
    if not moved:
        return (LocalNode("Reshape", (Input(0), integers(*target))),)
    axes = range(region.rank)
    is_moved, origin = (np.array([axis in moved for axis in axes]), integers(*(moved.get(axis, 0) for axis in axes)))
    return (
        LocalNode("Shape", (Input(0),)),
        LocalNode("Gather", (Result(0), origin), {"axis": 0}),
        LocalNode("Where", (ConstantOperand(is_moved), Result(1), integers(*target))),
        LocalNode("Reshape", (Input(0), Result(2))),
    )


def _target(site: Site, read: ShapeMap, region: ShapeMap) -> tuple[list[int], dict[int, int]]:
    """Return the sizes of a piece; one that differs between shapes is as in the input (0), one such size is what is left (-1).

    Then pieces for several shapes are the same. Which is left is a guess, since not all axes that are free do differ: the last of those
    that were joined or divided, else the first that is more than one and not the batch, of which there are few. Where several are left in
    a model with state, those that are only at another place are told by the input: the axes, and where they were.
    """
    before, target = site.shape(0), list(region.shape)
    told, joined = set(site.free_made), set[int]()
    for ins, outs in groups_of(before, site.output_shape):
        if not site.has_state and not any(axis in site.free[0] for axis in ins):
            told.difference_update(outs)
        elif len(ins) + len(outs) > 2:
            joined.update(outs)
    for axis in sorted(told):
        if axis in site.free[0] and before[axis] == site.output_shape[axis] and read.shape[axis] == target[axis]:
            target[axis] = 0
            told.remove(axis)
    moved: dict[int, int] = {}
    if site.has_state and len(told) > 1:
        moved = {axis: origin for axis, origin in _carried(site).items() if axis in told}
        told -= moved.keys()
        target = [0 if axis in moved else size for axis, size in enumerate(target)]
    if told:
        first = min(told, key=lambda axis: (axis == 0, site.output_shape[axis] == 1, axis))
        target[max(told & joined, default=first)] = -1
    return target, moved


def _carried(site: Site) -> dict[int, int]:
    """Return the axes of the output that move and that the input has, too, with their places in it; of whatever size they are now."""
    shapes, moving = (site.shape(0), site.output_shape), (site.moving[0], site.moving_made)
    sizes = sorted({shape[axis] for shape, axes in zip(shapes, moving, strict=True) for axis in axes})
    unlike = {size: _MERSENNE + place for place, size in enumerate(sizes)}
    before, after = (
        tuple(unlike[size] if axis in axes else size for axis, size in enumerate(shape)) for shape, axes in zip(shapes, moving, strict=True)
    )
    if prod(before) != prod(after):
        return {}
    alone = [(ins[0], outs[0]) for ins, outs in groups_of(before, after) if len(ins) == len(outs) == 1]
    return {out: origin for origin, out in alone if out in moving[1]}


def _reshape_by_elements(site: Site, region: ShapeMap, read: ShapeMap) -> tuple[LocalNode, ...]:
    """The general form for a cut inside a unit: flatten what was read, take the tile's elements by number, give them its shape."""
    before, after = site.shape(0), site.output_shape
    tile = np.ix_(*(np.array(list(axis), np.int64) for axis in region.axes))
    numbers = np.ravel_multi_index(np.broadcast_arrays(*tile), after) if after else np.zeros((), np.int64)
    coordinates = np.unravel_index(numbers, before)
    lookup = []
    for axis, values in zip(read.axes, coordinates, strict=True):
        members = np.array(list(axis), np.int64)
        lookup.append(np.searchsorted(members, values))
    local = np.ravel_multi_index(tuple(lookup), read.shape).astype(np.int64)
    flat = LocalNode("Reshape", (Input(0), integers(-1)))
    first, last = int(local.flat[0]), int(local.flat[-1])
    if last - first + 1 == local.size:  # numbers ascend, so these are all in between
        part = LocalNode("Slice", (Result(0), integers(first), integers(last + 1), integers(0)))
        return flat, part, LocalNode("Reshape", (Result(1), integers(*region.shape)))
    return flat, LocalNode("Gather", (Result(0), ConstantOperand(local)), {"axis": 0})


def describe_expand(site: Site) -> Description | None:
    """out[i...] = x[i...], a broadcast axis read at 0."""
    out = output_indices(site)
    reads = [operand(0)[broadcast(out, site.shape(0))]]
    return Description(out, ScalarCall("copy", (*reads, whole(site, 1)) if _is_told(site) else tuple(reads)))


def localize_expand(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Expand to the tile's shape."""
    if not _is_told(site):
        return (LocalNode("Expand", (Input(0), integers(*region.shape))),)
    told = np.array([axis in site.moving_made for axis in range(region.rank)])
    sizes = integers(*(0 if axis in site.moving_made else size for axis, size in enumerate(region.shape)))
    return LocalNode("Where", (ConstantOperand(told), Input(1), sizes)), LocalNode("Expand", (Input(0), Result(0)))


def _is_told(site: Site) -> bool:
    """Whether an Expand is told moving sizes by its second operand, which has all of them."""
    return bool(site.moving_made) and site.constant(1) is None and site.shape(1) == (len(site.output_shape),)


def _sizes_of(site: Site) -> range:
    """Return the axes of which a Shape tells the sizes."""
    rank = len(site.shape(0))
    return range(*slice(site.integer("start", 0), site.integer("end", rank)).indices(rank))


def describe_shape(site: Site) -> Description | None:
    """The sizes of x: nothing is read for constant ones; for moving ones all along moving axes, and one element along any other."""
    is_told = any(axis in site.moving[0] for axis in _sizes_of(site))
    reads = operand(0)[tuple(ALL if axis in site.moving[0] else Constant(0) for axis in range(len(site.shape(0))))]
    out = output_indices(site)
    return Description(out, Opaque("Shape", (reads,) if is_told else (), out))


def localize_shape(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Moving sizes are those of what is read, the others are constants."""
    axes = _sizes_of(site)
    told = np.array([axis in site.moving[0] for axis in axes], bool)
    sizes = integers(*(0 if axis in site.moving[0] else site.shape(0)[axis] for axis in axes))
    if not told.any():
        return (LocalNode("Identity", (sizes,)),)
    shape = LocalNode("Shape", (Input(0),), site.node.attributes)
    return (shape,) if told.all() else (shape, LocalNode("Where", (ConstantOperand(told), Result(0), sizes)))


def describe_made(site: Site) -> Description | None:
    """A tensor for which every piece would need all that is read, so all is one piece; several machines may each compute it."""
    out = output_indices(site)
    body = Opaque(site.node.op, tuple(wholes(site, range(len(site.inputs)))), out)
    return Description(out, body, ((),) * (len(site.outputs) - 1)) if out else None


register(OperatorRule(describe_reshape, localize_reshape), *RENAME_AXES)
register(OperatorRule(describe_expand, localize_expand), "Expand")
register(OperatorRule(describe_shape, localize_shape), "Shape")
register(OperatorRule(describe_made), "Range", "ConstantOfShape", "DynamicQuantizeLinear")
