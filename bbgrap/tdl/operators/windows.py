"""Windowed operators: convolutions, pools, local response normalisation.

Along a spatial axis output `o` reads `o * S + k * D - P0` for every kernel offset `k`. A local piece `[o0, o1)` therefore reads
`lo = o0 * S - P0` to `hi = (o1 - 1) * S - P0 + (K - 1) * D + 1`; what of that lies outside `[0, I)` becomes the piece's own padding,
so pads are asymmetric at the border and zero inside (BBGraP equations 2 to 6 in their corrected, half-open form; docs/equations.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bbgrap.errors import PlanError
from bbgrap.graph.types import Attribute
from bbgrap.shapemap import Interval, ShapeMap
from bbgrap.tdl.analysis import Shape
from bbgrap.tdl.language import Access, Call, Description, Expression, Index, IndexExpression, Max, Quotient, Sum, operand
from bbgrap.tdl.rule import Input, Literal, LocalNode, LocalOperand, OperatorRule, Result, Site, operands_of, register

Reads = tuple[ShapeMap | None, ...]


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


def _is_odd(windows: tuple[Window, ...]) -> bool:
    """Tell whether some padding is negative: what SAME then means is left open, and runtimes differ."""
    return any(w.pad_begin < 0 or w.pad_end < 0 for w in windows)


def spatial_interval(site: Site, region: ShapeMap, axis: int) -> Interval:
    """Return a tile's range along a windowed axis.

    Raises:
        PlanError: if the tile has several ranges there: one local window operator cannot compute them.
    """
    ranges = region.axes[axis].ranges
    if len(ranges) != 1:
        raise PlanError(f"node '{site.node.name}' ({site.node.op}): expected one range along axis {axis}, got {region.axes[axis]}")
    return ranges[0]


def local_attributes(site: Site, region: ShapeMap, windows: tuple[Window, ...], *, ceil_mode: bool = False) -> dict[str, Attribute]:
    """Return the node's attributes with the pads of a local piece."""
    pads = [w.local_pads(spatial_interval(site, region, axis + 2), ceil_mode=ceil_mode) for axis, w in enumerate(windows)]
    changed = {name: value for name, value in site.node.attributes.items() if name not in ("pads", "auto_pad")}
    return {**changed, "pads": (*(begin for begin, _ in pads), *(end for _, end in pads))}


def _spatial(prefix: str, extents: Shape) -> tuple[Index, ...]:
    return tuple(Index(f"{prefix}{axis}", extent) for axis, extent in enumerate(extents))


def conv_windows(site: Site) -> tuple[Window, ...]:
    """Return the spatial windows of a Conv."""
    return windows_of(site, site.shape(0)[2:], site.integers("kernel_shape", site.shape(1)[2:]))


def describe_conv(site: Site) -> Description | None:
    """out[n, c, s...] = Sum over ci, k... of x[n, group(c) * Ci + ci, s * S + k * D - P...] * w[c, ci, k...] + b[c]."""
    batch, channels, *space = site.output_shape
    per_group_in, groups = site.shape(1)[1], site.integer("group", 1)
    per_group_out = channels // groups
    windows = conv_windows(site)
    if _is_odd(windows):
        return None
    n, c, ci = Index("n", batch), Index("c", channels), Index("ci", per_group_in)
    s, k = _spatial("s", tuple(space)), _spatial("k", tuple(w.kernel for w in windows))
    channel = ci if groups == 1 else (c // per_group_out) * per_group_in + ci
    positions = tuple(w.subscript(si, ki) for w, si, ki in zip(windows, s, k, strict=True))
    body: Expression = Sum((ci, *k), operand(0)[n, channel, *positions] * operand(1)[c, ci, *k])
    if site.has(2):
        body = Call("add", (body, operand(2)[(c,)]))
    return Description((n, c, *s), body)


def localize_conv(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """One Conv with its own pads; where the tile's channels cut through groups, one Conv per run of whole or single groups."""
    attributes = local_attributes(site, region, conv_windows(site))
    groups = site.integer("group", 1)
    per_group = site.output_shape[1] // groups
    runs = [run for r in region.axes[1].ranges for run in _group_runs(r, per_group)]
    if groups == 1 or len(runs) == 1:
        count = 1 if groups == 1 else _groups_in(runs[0], per_group)
        return (LocalNode("Conv", operands_of(site, reads), {**attributes, "group": count}),)
    return _conv_by_runs(site, region, reads, attributes, runs)


def _group_runs(channels: Interval, per_group: int) -> list[Interval]:
    """Cut a channel range into runs that are whole groups or lie inside one group."""
    first = -(-channels.start // per_group) * per_group
    last = channels.stop // per_group * per_group
    if first >= last:
        cuts = sorted({channels.start, min(max(first, channels.start), channels.stop), channels.stop})
    else:
        cuts = sorted({channels.start, first, last, channels.stop})
    return [Interval(a, b) for a, b in pairwise(cuts)]


def _groups_in(run: Interval, per_group: int) -> int:
    return (run.stop - 1) // per_group - run.start // per_group + 1


def _conv_by_runs(
    site: Site, region: ShapeMap, reads: Reads, attributes: dict[str, Attribute], runs: list[Interval]
) -> tuple[LocalNode, ...]:
    read = reads[0]
    assert read is not None, "a Conv reads its input"
    per_out, per_in = site.output_shape[1] // site.integer("group", 1), site.shape(1)[1]
    nodes: list[LocalNode] = []
    done: list[LocalOperand] = []
    taken = 0

    def cut(source: LocalOperand, start: int, stop: int, axis: int) -> Result:
        bounds = tuple(Literal(np.array([v], np.int64)) for v in (start, stop, axis))
        nodes.append(LocalNode("Slice", (source, *bounds)))
        return Result(len(nodes) - 1)

    for run in runs:
        count = _groups_in(run, per_out)
        first = read.axes[1].position_of(run.start // per_out * per_in)
        x = cut(Input(0), first, first + count * per_in, 1)
        w = cut(Input(1), taken, taken + len(run), 0)
        bias = (cut(Input(2), taken, taken + len(run), 0),) if site.has(2) else ()
        nodes.append(LocalNode("Conv", (x, w, *bias), {**attributes, "group": count}))
        done.append(Result(len(nodes) - 1))
        taken += len(run)
    return (*nodes, LocalNode("Concat", tuple(done), {"axis": 1}))


def pool_windows(site: Site) -> tuple[Window, ...]:
    """Return the spatial windows of a pool."""
    return windows_of(site, site.shape(0)[2:], site.integers("kernel_shape", ()))


def describe_pool(site: Site) -> Description | None:
    """out[n, c, s...] = reduction over k... of x[n, c, s * S + k * D - P...]."""
    windows = pool_windows(site)
    same = site.text("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    if site.integer("storage_order", 0) or _is_odd(windows) or (same and site.integer("ceil_mode", 0)):
        return None  # the standard leaves the combination of SAME padding and ceil_mode open
    batch, channels, *space = site.output_shape
    n, c = Index("n", batch), Index("c", channels)
    s, k = _spatial("s", tuple(space)), _spatial("k", tuple(w.kernel for w in windows))
    read = operand(0)[n, c, *(w.subscript(si, ki) for w, si, ki in zip(windows, s, k, strict=True))]
    return Description((n, c, *s), _pooled(site.node.op, k, read))


def _pooled(op: str, over: tuple[Index, ...], read: Access) -> Expression:
    if op.endswith("MaxPool"):
        return Max(over, read)
    return Call("div" if op.endswith("AveragePool") else "root", (Sum(over, read),))


def localize_pool(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Return the same pool with its own pads; `ceil_mode` stays, since its excess counts differently from padding."""
    ceil_mode = bool(site.integer("ceil_mode", 0))
    return (LocalNode(site.node.op, operands_of(site, reads), local_attributes(site, region, pool_windows(site), ceil_mode=ceil_mode)),)


def describe_global_pool(site: Site) -> Description | None:
    """out[n, c, 0...] = reduction over the whole map of x[n, c, k...]."""
    batch, channels, *space = site.output_shape
    n, c = Index("n", batch), Index("c", channels)
    k = _spatial("k", site.shape(0)[2:])
    return Description((n, c, *_spatial("s", tuple(space))), _pooled(site.node.op, k, operand(0)[n, c, *k]))


def describe_conv_transpose(site: Site) -> Description | None:
    """out[n, c, o...] = Sum over ci, k... of x[n, ci, (o + P - k * D) / S...] * w[ci, c, k...] where the division is exact."""
    groups = site.integer("group", 1)
    if groups != 1 or site.text("auto_pad", "NOTSET") != "NOTSET":
        return None
    batch, channels, *space = site.output_shape
    windows = windows_of(site, site.shape(0)[2:], site.integers("kernel_shape", site.shape(1)[2:]))
    if any(w.reach < w.stride for w in windows):
        return None  # outputs between windows read nothing at all: no local ConvTranspose starts with them
    n, c, ci = Index("n", batch), Index("c", channels), Index("ci", site.shape(1)[0])
    s, k = _spatial("s", tuple(space)), _spatial("k", tuple(w.kernel for w in windows))
    begins = transposed_pad_begins(site, windows)
    positions = tuple(
        Quotient(si - ki * w.dilation + begin, w.stride, exact=True) for w, si, ki, begin in zip(windows, s, k, begins, strict=True)
    )
    body: Expression = Sum((ci, *k), operand(0)[n, ci, *positions] * operand(1)[ci, c, *k])
    if site.has(2):
        body = Call("add", (body, operand(2)[(c,)]))
    return Description((n, c, *s), body)


def transposed_pad_begins(site: Site, windows: tuple[Window, ...]) -> tuple[int, ...]:
    """Return the leading crop of a ConvTranspose per spatial axis; with `output_shape` it follows from the total."""
    if "output_shape" not in site.node.attributes:
        return tuple(w.pad_begin for w in windows)
    extra = site.integers("output_padding", (0,) * len(windows))
    totals = [(w.extent - 1) * w.stride + e + w.reach - out for w, e, out in zip(windows, extra, site.output_shape[2:], strict=True)]
    return tuple(total - total // 2 for total in totals)


def localize_conv_transpose(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Compute what the local input reaches and crop it by the pads; where it reaches too little, `output_padding` adds zeros."""
    windows = windows_of(site, site.shape(0)[2:], site.integers("kernel_shape", site.shape(1)[2:]))
    read = reads[0]
    assert read is not None, "a ConvTranspose reads its input"
    if read.is_empty:
        return _only_bias(site, region)
    begins, ends, extra = [], [], []
    for axis, (window, begin) in enumerate(zip(windows, transposed_pad_begins(site, windows), strict=True)):
        piece, source = spatial_interval(site, region, axis + 2), read.axes[axis + 2].hull
        missing = piece.stop - ((source.stop - 1) * window.stride + window.reach - begin)
        begins.append(piece.start - (source.start * window.stride - begin))
        ends.append(max(0, -missing))
        extra.append(max(0, missing))
    kept = {k: v for k, v in site.node.attributes.items() if k not in ("pads", "auto_pad", "output_padding", "output_shape")}
    changed: dict[str, Attribute] = {**kept, "pads": (*begins, *ends), "output_padding": tuple(extra)}
    return (LocalNode("ConvTranspose", operands_of(site, reads), changed),)


def _only_bias(site: Site, region: ShapeMap) -> tuple[LocalNode, ...]:
    """A tile of a ConvTranspose that no input reaches."""
    if not site.has(2):
        return (LocalNode("Identity", (Literal(np.zeros(region.shape, site.outputs[0].dtype.numpy)),)),)
    column = Literal(np.array([1, -1, *(1 for _ in region.shape[2:])], np.int64))
    shape = Literal(np.array(region.shape, np.int64))
    return LocalNode("Reshape", (Input(2), column)), LocalNode("Expand", (Result(0), shape))


def describe_lrn(site: Site) -> Description | None:
    """out[n, c, ...] = x[n, c, ...] / (bias + Sum over a window of channels of x squared) ** beta."""
    size = site.integer("size", 1)
    out = tuple(Index(f"i{axis}", extent) for axis, extent in enumerate(site.output_shape))
    near = Index("near", size)
    window = operand(0)[out[0], out[1] + near - (size - 1) // 2, *out[2:]]
    return Description(out, Call("div", (operand(0)[out], Sum((near,), window * window))))


def localize_lrn(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Normalise with the neighbouring channels at hand, then keep the tile's own."""
    read = reads[0]
    assert read is not None, "LRN reads its input"
    node = LocalNode("LRN", (Input(0),), site.node.attributes)
    own = spatial_interval(site, region, 1)
    start = own.start - read.axes[1].hull.start
    if len(own) == read.shape[1]:
        return (node,)
    cut = tuple(Literal(np.array([v], np.int64)) for v in (start, start + len(own), 1))
    return node, LocalNode("Slice", (Result(0), *cut))


register(OperatorRule(describe_conv, localize_conv), "Conv")
register(OperatorRule(describe_conv_transpose, localize_conv_transpose), "ConvTranspose")
register(OperatorRule(describe_pool, localize_pool), "MaxPool", "AveragePool", "LpPool")
register(OperatorRule(describe_global_pool), "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
register(OperatorRule(describe_lrn, localize_lrn), "LRN")
