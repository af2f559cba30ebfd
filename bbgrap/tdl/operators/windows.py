"""Windowed operators: the window of an axis, pools, local response normalisation; convolutions are in `convolutions`.

Along a spatial axis output `o` reads `o * S + k * D - P0` for every kernel offset `k`. A local piece `[o0, o1)` therefore reads
`lo = o0 * S - P0` to `hi = (o1 - 1) * S - P0 + (K - 1) * D + 1`; what of that lies outside `[0, I)` becomes the piece's own padding,
so pads are asymmetric at the border and zero inside (BBGraP equations 2 to 6 in their corrected, half-open form; docs/equations.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from bbgrap.graph.types import Attribute
from bbgrap.shapemap import Interval, ShapeMap
from bbgrap.tdl.analysis import Shape
from bbgrap.tdl.language import Access, Description, Expression, Index, IndexExpression, Max, ScalarCall, Sum, operand
from bbgrap.tdl.operators.common import Reads, cropped, first_read, output_indices, spatial_interval
from bbgrap.tdl.rule import Input, LocalNode, OperatorRule, Site, operands_of, register

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MapAxes:
    """Where a map has its channels and its spatial axes: `[N, C, H, W]`, or `[N, H, W, C]` as onnxruntime's integer kernels want it."""

    channel: int
    spatial: tuple[int, ...]

    @property
    def is_channels_last(self) -> bool:
        """Tell whether channels come behind the spatial axes."""
        return self.channel != 1

    def extents(self, shape: Shape) -> Shape:
        """Return the spatial extents of a map."""
        return tuple(shape[axis] for axis in self.spatial)

    def placed(self, batch: T, channel: T, space: Sequence[T]) -> tuple[T, ...]:
        """Return what belongs to batch, channel and spatial axes in the order of the axes."""
        return (batch, *space, channel) if self.is_channels_last else (batch, channel, *space)


def map_axes(site: Site) -> MapAxes:
    """Return the layout of the maps that a convolution or pool reads and makes."""
    rank = len(site.shape(0))
    if site.integer("channels_last", 0) or site.node.op.startswith("Nhwc"):
        return MapAxes(rank - 1, tuple(range(1, rank - 1)))
    return MapAxes(1, tuple(range(2, rank)))


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial axis of a windowed operator, in elements.

    `pad_begin` and `pad_end` are the operator's own padding with `auto_pad` resolved.
    """

    extent: int
    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int

    @property
    def reach(self) -> int:
        """The true kernel size `(K - 1) * D + 1` (BBGraP equation 2)."""
        return (self.kernel - 1) * self.dilation + 1

    def subscript(self, out: Index, offset: Index) -> IndexExpression:
        """Return what output `out` reads at kernel offset `offset`."""
        return out * self.stride + offset * self.dilation - self.pad_begin

    def local_pads(self, piece: Interval, *, ceil_mode: bool = False) -> tuple[int, int]:
        """Return the (begin, end) padding of a local piece of the output (half-open, global).

        With `ceil_mode` the last window may run past the padded input; that excess is left to the operator's own `ceil_mode`.
        """
        low = piece.start * self.stride - self.pad_begin
        high = (piece.stop - 1) * self.stride - self.pad_begin + self.reach
        if high <= 0 or low >= self.extent:
            return high - low, 0
        end = max(0, high - self.extent)
        return max(0, -low), min(end, self.pad_end) if ceil_mode else end


def windows_of(site: Site, extents: Shape, kernel: Shape) -> tuple[Window, ...]:
    """Return the window of every spatial axis of a node, `auto_pad` resolved (SAME with stride > kernel may give negative pads)."""
    rank = len(kernel)
    strides = site.integers("strides", (1,) * rank)
    dilations = site.integers("dilations", (1,) * rank)
    pads = site.integers("pads", (0,) * (2 * rank))
    mode = site.text("auto_pad", "NOTSET")
    found = []
    for axis in range(rank):
        begin, end = pads[axis], pads[axis + rank]
        if mode == "VALID":
            begin = end = 0
        elif mode in ("SAME_UPPER", "SAME_LOWER"):
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            total = (-(-extents[axis] // strides[axis]) - 1) * strides[axis] + reach - extents[axis]
            small, large = total // 2, total - total // 2
            begin, end = (small, large) if mode == "SAME_UPPER" else (large, small)
        found.append(Window(extents[axis], kernel[axis], strides[axis], dilations[axis], begin, end))
    return tuple(found)


def is_odd(windows: Sequence[Window]) -> bool:
    """Tell whether some padding is negative, as SAME may make it, or a window exceeds the padded map: runtimes differ there."""
    return any(w.pad_begin < 0 or w.pad_end < 0 or w.reach > w.pad_begin + w.extent + w.pad_end for w in windows)


def local_attributes(site: Site, region: ShapeMap, windows: tuple[Window, ...], *, ceil_mode: bool = False) -> dict[str, Attribute]:
    """Return the node's attributes with the pads of a local piece."""
    axes = map_axes(site).spatial
    pads = [w.local_pads(spatial_interval(site, region, a), ceil_mode=ceil_mode) for a, w in zip(axes, windows, strict=True)]
    changed = {name: value for name, value in site.node.attributes.items() if name not in ("pads", "auto_pad")}
    return {**changed, "pads": (*(begin for begin, _ in pads), *(end for _, end in pads))}


def spatial(prefix: str, extents: Shape) -> tuple[Index, ...]:
    """Return one index per spatial axis."""
    return tuple(Index(f"{prefix}{axis}", extent) for axis, extent in enumerate(extents))


def output_axes(site: Site, layout: MapAxes) -> tuple[Index, Index, tuple[Index, ...]]:
    """Return the indices of the output: of batch, channel and spatial axes."""
    shape = site.output_shape
    return Index("n", shape[0]), Index("c", shape[layout.channel]), spatial("s", layout.extents(shape))


def pool_windows(site: Site) -> tuple[Window, ...]:
    """Return the spatial windows of a pool."""
    return windows_of(site, map_axes(site).extents(site.shape(0)), site.integers("kernel_shape", ()))


def describe_pool(site: Site) -> Description | None:
    """out[n, c, s...] = reduction over k... of x[n, c, s * S + k * D - P...]."""
    layout, windows = map_axes(site), pool_windows(site)
    same = site.text("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    open_cases = bool(site.integer("ceil_mode", 0)) or any(w.dilation != 1 for w in windows)
    if site.integer("storage_order", 0) or is_odd(windows) or (same and open_cases):
        return None  # the standard leaves SAME with ceil_mode open; with dilations, onnxruntime pads as if there were none
    n, c, s = output_axes(site, layout)
    k = spatial("k", tuple(w.kernel for w in windows))
    positions = [w.subscript(si, ki) for w, si, ki in zip(windows, s, k, strict=True)]
    read = operand(0)[layout.placed(n, c, positions)]
    return Description(layout.placed(n, c, s), _pooled(site.node.op, k, read))


def _pooled(op: str, over: tuple[Index, ...], read: Access) -> Expression:
    if op.endswith("MaxPool"):
        return Max(over, read)
    return ScalarCall("div" if op.endswith("AveragePool") else "root", (Sum(over, read),))


def localize_pool(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Return the same pool with its own pads; `ceil_mode` stays, since its excess counts differently from padding."""
    ceil_mode = bool(site.integer("ceil_mode", 0))
    attributes = local_attributes(site, region, pool_windows(site), ceil_mode=ceil_mode)
    return (LocalNode(site.node.op, operands_of(site, reads), attributes, site.node.domain),)


def describe_global_pool(site: Site) -> Description | None:
    """out[n, c, 0...] = reduction over the whole map of x[n, c, k...]."""
    layout = map_axes(site)
    n, c, s = output_axes(site, layout)
    k = spatial("k", layout.extents(site.shape(0)))
    return Description(layout.placed(n, c, s), _pooled(site.node.op, k, operand(0)[layout.placed(n, c, k)]))


def describe_lrn(site: Site) -> Description | None:
    """out[n, c, ...] = x[n, c, ...] / (bias + Sum over a window of channels of x squared) ** beta."""
    size = site.integer("size", 1)
    out = output_indices(site)
    near = Index("near", size)
    window = operand(0)[out[0], out[1] + near - (size - 1) // 2, *out[2:]]
    return Description(out, ScalarCall("div", (operand(0)[out], Sum((near,), window * window))))


def localize_lrn(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Normalise with the neighbouring channels at hand, then keep the tile's own."""
    near = first_read(reads).axes[1]
    node = LocalNode("LRN", (Input(0),), site.node.attributes)
    return cropped((node,), region, {1: (spatial_interval(site, region, 1).start - near.hull.start, len(near))})


register(OperatorRule(describe_pool, localize_pool), "MaxPool", "AveragePool", "LpPool")
register(OperatorRule(describe_pool, localize_pool), "NhwcMaxPool", domain="com.microsoft")
register(OperatorRule(describe_global_pool), "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
register(OperatorRule(describe_lrn, localize_lrn), "LRN")
