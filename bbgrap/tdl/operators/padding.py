"""Padding: by a value, or by what is inside of the border."""

from __future__ import annotations

from typing import Literal

import numpy as np

from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.language import ALL, Bordered, Constant, Description, Opaque, ScalarCall, operand
from bbgrap.tdl.operators.common import Reads, first_read, integers, output_indices, spatial_interval
from bbgrap.tdl.rule import ConstantOperand, Input, LocalNode, LocalOperand, OperatorRule, Result, Site, register

_BORDERS: dict[str, Literal["edge", "reflect"]] = {"edge": "edge", "reflect": "reflect"}
"""The modes whose padding is made of elements beside it."""


def pad_widths(site: Site) -> tuple[tuple[int, int], ...] | None:
    """Return (before, after) per axis of a Pad, or None where they are only known at run time."""
    pads = site.constant(1)
    if pads is None:
        return None
    rank = len(site.shape(0))
    axes = [int(a) % rank for a in np.asarray(site.constant(3)).ravel()] if site.has(3) else list(range(rank))
    widths = [(0, 0)] * rank
    for position, axis in enumerate(axes):
        widths[axis] = (int(pads[position]), int(pads[position + len(axes)]))
    return tuple(widths)


def describe_pad(site: Site) -> Description | None:
    """out[i...] = x[i - before...], and outside of x the padding, or an element inside of the border; axes that wrap cannot be split."""
    widths, mode = pad_widths(site), site.text("mode", "constant")
    if widths is None or (site.has(2) and site.constant(2) is None) or (site.has(3) and site.constant(3) is None):
        return None
    out = output_indices(site)
    places = [i - before for i, (before, _) in zip(out, widths, strict=True)]
    if mode in _BORDERS:
        padded = zip(out, places, widths, site.shape(0), strict=True)
        read = tuple(i if width == (0, 0) else Bordered(place, extent, _BORDERS[mode]) for i, place, width, extent in padded)
        return Description(out, ScalarCall("copy", (operand(0)[read],)))
    if mode == "constant":
        return Description(out, ScalarCall("copy", (operand(0)[tuple(places)],)))
    fixed = tuple(i for i, width in zip(out, widths, strict=True) if width != (0, 0))
    return Description(out, Opaque("pad", (operand(0)[tuple(ALL if i in fixed else i for i in out)],), fixed))


def localize_pad(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Pad by what of the tile lies outside the input; a tile wholly in the padding is a constant.

    Where what is read, padded, is more or less than the tile, which has few elements inside of a border then, they are gathered.
    """
    widths, read, mode = pad_widths(site), first_read(reads), site.text("mode", "constant")
    kind, given = site.inputs[0], site.constant(2)
    assert widths is not None, "described, so its widths are constant"
    assert kind is not None, "a Pad has an input"
    value = np.zeros((), kind.dtype.numpy) if given is None else given.reshape(())
    if read.is_empty:
        return (LocalNode("Identity", (ConstantOperand(np.full(region.shape, value, kind.dtype.numpy)),)),)
    here = [(0, 0)] * len(widths)
    nodes: list[LocalNode] = []
    source: LocalOperand = Input(0)
    for axis, (before, after) in enumerate(widths):
        if (before, after) == (0, 0) or mode == "wrap":  # what wraps is whole
            here[axis] = before, after
            continue
        tile, extent, held = spatial_interval(site, region, axis), site.shape(0)[axis], read.axes[axis].hull
        outside = max(0, before - tile.start), max(0, tile.stop - before - extent)
        if mode in _BORDERS and len(held) + sum(outside) != len(tile):
            place = Bordered(Constant(0), extent, _BORDERS[mode])
            elements = (place.at(at - before) - held.start for at in range(tile.start, tile.stop))
            nodes.append(LocalNode("Gather", (source, integers(*elements)), {"axis": axis}))
            source = Result(len(nodes) - 1)
        else:
            here[axis] = outside
    if not nodes or any(before or after for before, after in here):
        wide = integers(*(before for before, _ in here), *(after for _, after in here))
        padding = (ConstantOperand(value),) if mode == "constant" else ()
        nodes.append(LocalNode("Pad", (source, wide, *padding), {"mode": mode}))
    return tuple(nodes)


register(OperatorRule(describe_pad, localize_pad), "Pad")
