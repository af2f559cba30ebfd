"""Crops that nothing sees: a window that strides over the last rows reads the same with or without them.

A 1x1 convolution of stride 2 needs rows 0, 2, ... 26 of a tile of 28, so the plan says rows 0:27. Cut off or not, row 27 is not read, and
the output has the same size: the convolution may as well read the tile itself, which no copy has to be made of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from bbgrap.graph import Node, Weight
from bbgrap.graph.types import Attribute

_WINDOWS = frozenset({"Conv", "MaxPool", "AveragePool"})


@dataclass(frozen=True, slots=True)
class TrailingCrop:
    """A crop that keeps the beginning of every axis: of which value, and the extents before and after."""

    source: str
    whole: tuple[int, ...]
    kept: tuple[int, ...]


def without_idle_crops(
    nodes: Sequence[Node], cuts: Mapping[str, TrailingCrop], weights: Mapping[str, Weight], outputs: Collection[str]
) -> list[Node]:
    """Return the nodes without the crops that nothing sees; `cuts` by the value they make, `outputs` are the graph's."""
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    idle = {
        name: cut.source
        for name, cut in cuts.items()
        if name not in outputs and all(_reads_the_same(node, name, cut, weights) for node in readers.get(name, ()))
    }
    kept = [node for node in nodes if not idle.keys() & set(node.outputs)]
    return [replace(node, inputs=tuple(idle.get(name, name) for name in node.inputs)) for node in kept]


def _reads_the_same(node: Node, name: str, cut: TrailingCrop, weights: Mapping[str, Weight]) -> bool:
    """Whether a node computes the same, in the same shape, from the whole value."""
    attributes = node.attributes
    plain = attributes.get("auto_pad", "NOTSET") == "NOTSET" and not attributes.get("ceil_mode", 0)
    if node.op not in _WINDOWS or node.domain or not plain or len(node.outputs) > 1 or name in node.inputs[1:]:
        return False
    spatial = len(cut.whole) - 2
    kernel: tuple[int, ...] = ()
    if node.op == "Conv" and "kernel_shape" not in attributes:
        filters = weights.get(node.inputs[1])
        if filters is None:
            return False  # computed, or given with the request: its shape is not at hand here
        kernel = filters.type.known_shape[2:]
    ones = (1,) * spatial
    sizes, strides, dilations, pads = (
        _integers(attributes.get(key), default)
        for key, default in (("kernel_shape", kernel), ("strides", ones), ("dilations", ones), ("pads", (0,) * (2 * spatial)))
    )
    if cut.whole[:2] != cut.kept[:2] or len(sizes) != spatial:
        return False
    for axis, (whole, kept) in enumerate(zip(cut.whole[2:], cut.kept[2:], strict=True)):
        reach = (sizes[axis] - 1) * dilations[axis] + 1 - pads[axis]
        before, after = ((extent - reach) // strides[axis] for extent in (whole, kept))
        if whole != kept and (pads[axis + spatial] or before != after):
            return False
    return True


def _integers(value: Attribute | None, default: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in value if isinstance(n, int)) if isinstance(value, tuple) else default
