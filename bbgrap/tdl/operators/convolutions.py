"""Convolutions: Conv and its integer, quantized and fused forms, ConvTranspose. The geometry of a window is in `windows`.

The forms of Conv differ only in where their operands are (`ConvOperands`): padding is the operator's own in all of them, so a quantized
piece is padded by its zero point as the whole is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from bbgrap.graph.types import Attribute
from bbgrap.shapemap import Interval, ShapeMap
from bbgrap.tdl.language import ALL, Access, Description, Expression, Index, Opaque, Quotient, ScalarCall, Sum, operand
from bbgrap.tdl.operators.common import (
    Reads,
    doubled,
    first_read,
    is_lone_row,
    is_scalar,
    sliced,
    spatial_interval,
    whole,
    wholes,
)
from bbgrap.tdl.operators.windows import Window, is_odd, local_attributes, map_axes, output_axes, spatial, windows_of
from bbgrap.tdl.rule import ConstantOperand, Input, LocalNode, LocalOperand, OperatorRule, Result, Site, operands_of, register

Cut = tuple[int, int, int, int]
"""Of an operand, from where to where along which axis."""


@dataclass(frozen=True, slots=True)
class ConvOperands:
    """The operand positions of one form of Conv."""

    weights: int = 1
    per_channel: tuple[int, ...] = (2,)
    """One element per output channel, or one for all of them: biases, scales and zero points of the weights."""
    scalars: tuple[int, ...] = ()
    residual: int | None = None
    """Added to the output, and of its shape."""


CONV = ConvOperands()
INTEGER = ConvOperands(per_channel=(3,), scalars=(2,))
QUANTIZED = ConvOperands(weights=3, per_channel=(4, 5, 8), scalars=(1, 2, 6, 7))
FUSED = ConvOperands(residual=3)


def conv_windows(site: Site, form: ConvOperands) -> tuple[Window, ...]:
    """Return the spatial windows of a Conv."""
    return windows_of(site, map_axes(site).extents(site.shape(0)), site.integers("kernel_shape", site.shape(form.weights)[2:]))


def describe_conv(site: Site, form: ConvOperands = CONV) -> Description | None:
    """out[n, c, s...] = Sum over ci, k... of x[n, group(c) * Ci + ci, s * S + k * D - P...] * w[c, ci, k...] + b[c]."""
    layout, windows = map_axes(site), conv_windows(site, form)
    if is_odd(windows) or not all(is_scalar(site, k) for k in form.scalars):
        return None
    n, c, s = output_axes(site, layout)
    per_group_in, groups = site.shape(form.weights)[1], site.integer("group", 1)
    if c.extent % groups or site.shape(0)[layout.channel] != per_group_in * groups:
        return None  # nothing infers shapes from groups: it is the kernel that refuses those that do not fit
    per_group_out = c.extent // groups
    ci, k = Index("ci", per_group_in), spatial("k", tuple(w.kernel for w in windows))
    channel = ci if groups == 1 else (c // per_group_out) * per_group_in + ci
    positions = tuple(w.subscript(si, ki) for w, si, ki in zip(windows, s, k, strict=True))
    if form is QUANTIZED and per_group_in == 1 < per_group_out:
        return _with_whole_channels(site, form, layout.placed(n, c, s), operand(0)[layout.placed(n, ALL, positions)], c)
    body: Expression = Sum((ci, *k), operand(0)[layout.placed(n, channel, positions)] * operand(form.weights)[c, ci, *k])
    further: list[Expression] = [whole(site, o) for o in form.scalars if site.has(o)]
    further += [whole(site, o) if is_scalar(site, o) else operand(o)[(c,)] for o in form.per_channel if site.has(o)]
    if form.residual is not None and site.has(form.residual):
        further.append(operand(form.residual)[layout.placed(n, c, s)])
    return Description(layout.placed(n, c, s), ScalarCall("add", (body, *further)) if further or form is not CONV else body)


def _with_whole_channels(site: Site, form: ConvOperands, out: tuple[Index, ...], read: Access, channel: Index) -> Description:
    """Describe a quantized convolution with one input channel and several outputs per group, whose channels must stay together.

    Cut to one output per group it would be depthwise: that kernel adds exactly, the other one in saturating pairs on CPUs without VNNI.
    """
    further = wholes(site, (form.weights, *form.scalars, *form.per_channel))
    return Description(out, Opaque("Conv", (read, *further), (channel,)))


def localize_conv(site: Site, region: ShapeMap, reads: Reads, form: ConvOperands = CONV) -> tuple[LocalNode, ...]:
    """One Conv with its own pads; where the tile's channels cut through groups, one Conv per run of whole or single groups."""
    attributes = local_attributes(site, region, conv_windows(site, form))
    groups = site.integer("group", 1)
    channel = map_axes(site).channel
    per_group = site.output_shape[channel] // groups
    runs = [run for r in region.axes[channel].ranges for run in _group_runs(r, per_group)]
    if groups == 1 or len(runs) == 1:
        count = 1 if groups == 1 else _groups_in(runs[0], per_group)
        node = LocalNode(site.node.op, operands_of(site, reads), {**attributes, "group": count}, site.node.domain)
        is_lone = form is CONV and is_lone_row(site, region, channel, per_group, form.weights)
        return _with_two_channels(node, channel) if is_lone else (node,)
    return _by_runs(site, reads, attributes, runs, partial(_cuts_of_conv, site, reads, form))


def _with_two_channels(conv: LocalNode, channel: int) -> tuple[LocalNode, ...]:
    """Return a Conv of one output channel that computes it twice, and the Slice of one."""
    x, *per_channel = conv.operands
    twice = tuple(doubled(source, 0) for source in per_channel if source is not None)
    operands = (x, *(Result(number) for number in range(len(twice))))
    return *twice, replace(conv, operands=operands), sliced(Result(len(twice)), 0, 1, channel)


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


def _cuts_of_conv(site: Site, reads: Reads, form: ConvOperands, run: Interval, taken: int) -> Iterator[Cut]:
    channel = map_axes(site).channel
    per_out, per_in = site.output_shape[channel] // site.integer("group", 1), site.shape(form.weights)[1]
    first, stop = first_read(reads).axes[channel].position_of(run.start // per_out * per_in), taken + len(run)
    yield 0, first, first + _groups_in(run, per_out) * per_in, channel
    for o in (form.weights, *(o for o in form.per_channel if not is_scalar(site, o))):
        yield o, taken, stop, 0
    if form.residual is not None and site.has(form.residual):
        yield form.residual, taken, stop, channel


def _by_runs(
    site: Site, reads: Reads, attributes: dict[str, Attribute], runs: Sequence[Interval], cuts: Callable[[Interval, int], Iterable[Cut]]
) -> tuple[LocalNode, ...]:
    """One operator per run of whole groups, or of channels inside one, so that none is computed that the tile does not have.

    `cuts` are what a run reads, behind so many channels of the tile.
    """
    channel = map_axes(site).channel
    per_out = site.output_shape[channel] // site.integer("group", 1)
    nodes: list[LocalNode] = []
    done: list[LocalOperand] = []
    taken = 0
    for run in runs:
        operands = list(operands_of(site, reads))
        for number, start, stop, axis in cuts(run, taken):
            source = operands[number]
            assert source is not None, "what is cut is there"
            nodes.append(sliced(source, start, stop, axis))
            operands[number] = Result(len(nodes) - 1)
        nodes.append(LocalNode(site.node.op, tuple(operands), {**attributes, "group": _groups_in(run, per_out)}, site.node.domain))
        done.append(Result(len(nodes) - 1))
        taken += len(run)
    return (*nodes, LocalNode("Concat", tuple(done), {"axis": channel}))


def describe_conv_transpose(site: Site) -> Description | None:
    """out[n, c, o...] = Sum over ci, k... of x[n, ci, (o + P - k * D) / S...] * w[ci, c, k...] where the division is exact.

    Of groups, channel c takes filter c % Co of its own group.
    """
    batch, channels, *space = site.output_shape
    windows = windows_of(site, site.shape(0)[2:], site.integers("kernel_shape", site.shape(1)[2:]))
    if any(w.reach < w.stride for w in windows):
        return None  # outputs between windows read nothing at all: no local ConvTranspose starts with them
    groups = site.integer("group", 1)
    if site.shape(1)[0] % groups or site.shape(0)[1] != site.shape(1)[0]:
        return None  # the kernel refuses it
    per_in, per_out = site.shape(1)[0] // groups, site.shape(1)[1]
    n, c, ci = Index("n", batch), Index("c", channels), Index("ci", per_in)
    s, k = spatial("s", tuple(space)), spatial("k", tuple(w.kernel for w in windows))
    begins = transposed_pad_begins(site, windows)
    positions = tuple(
        Quotient(si - ki * w.dilation + begin, w.stride, exact=True) for w, si, ki, begin in zip(windows, s, k, begins, strict=True)
    )
    source = ci if groups == 1 else c // per_out * per_in + ci
    filters = c if groups == 1 else c % per_out
    body: Expression = Sum((ci, *k), operand(0)[n, source, *positions] * operand(1)[source, filters, *k])
    if site.has(2):
        body = ScalarCall("add", (body, operand(2)[(c,)]))
    return Description((n, c, *s), body)


def transposed_pad_begins(site: Site, windows: tuple[Window, ...]) -> tuple[int, ...]:
    """Return the leading crop of a ConvTranspose per spatial axis; with `output_shape` or SAME it follows from the total."""
    mode = site.text("auto_pad", "NOTSET")
    if "output_shape" not in site.node.attributes and not mode.startswith("SAME"):
        return tuple(w.pad_begin for w in windows)
    extra = site.integers("output_padding", (0,) * len(windows))
    sizes = zip(windows, extra, site.output_shape[2:], strict=True)
    totals = [max(0, (w.extent - 1) * w.stride + e + w.reach - out) for w, e, out in sizes]  # a larger output gets zeros at its end
    return tuple(total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals)


def localize_conv_transpose(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Compute what the local input reaches and crop it by the pads; where it reaches too little, `output_padding` adds zeros."""
    if first_read(reads).is_empty:
        return _only_bias(site, region.shape)
    windows = windows_of(site, site.shape(0)[2:], site.integers("kernel_shape", site.shape(1)[2:]))
    attributes = _transposed_attributes(site, region, first_read(reads), windows)
    per_out = site.shape(1)[1]
    runs = [run for r in region.axes[1].ranges for run in _group_runs(r, per_out)]
    if attributes["group"] == 1 or len(runs) == 1:
        count = 1 if attributes["group"] == 1 else _groups_in(runs[0], per_out)
        return (LocalNode("ConvTranspose", operands_of(site, reads), {**attributes, "group": count}),)
    return _by_runs(site, reads, attributes, runs, partial(_cuts_of_transposed, site, reads))


def _transposed_attributes(site: Site, region: ShapeMap, read: ShapeMap, windows: tuple[Window, ...]) -> dict[str, Attribute]:
    begins, ends, extra = [], [], []
    for axis, (window, begin) in enumerate(zip(windows, transposed_pad_begins(site, windows), strict=True)):
        piece, source = spatial_interval(site, region, axis + 2), read.axes[axis + 2].hull
        missing = piece.stop - ((source.stop - 1) * window.stride + window.reach - begin)
        begins.append(piece.start - (source.start * window.stride - begin))
        ends.append(max(0, -missing))
        extra.append(max(0, missing))
    kept = {k: v for k, v in site.node.attributes.items() if k not in ("pads", "auto_pad", "output_padding", "output_shape")}
    return {**kept, "pads": (*begins, *ends), "output_padding": tuple(extra), "group": site.integer("group", 1)}


def _cuts_of_transposed(site: Site, reads: Reads, run: Interval, taken: int) -> Iterator[Cut]:
    weights = reads[1]
    assert weights is not None, "described, so its weights are read"
    per_in, per_out = site.shape(1)[0] // site.integer("group", 1), site.shape(1)[1]
    count, source = _groups_in(run, per_out), run.start // per_out * per_in
    x, row = first_read(reads).axes[1].position_of(source), weights.axes[0].position_of(source)
    column = weights.axes[1].position_of(run.start % per_out)
    yield 0, x, x + count * per_in, 1
    yield 1, row, row + count * per_in, 0
    yield 1, column, column + len(run) // count, 1
    if site.has(2):
        yield 2, taken, taken + len(run), 0


def _only_bias(site: Site, shape: tuple[int, ...]) -> tuple[LocalNode, ...]:
    """A tile of a ConvTranspose that no input reaches."""
    if not site.has(2):
        return (LocalNode("Identity", (ConstantOperand(np.zeros(shape, site.outputs[0].dtype.numpy)),)),)
    column = ConstantOperand(np.array([1, -1, *(1 for _ in shape[2:])], np.int64))
    return LocalNode("Reshape", (Input(2), column)), LocalNode("Expand", (Result(0), ConstantOperand(np.array(shape, np.int64))))


def _register(form: ConvOperands, op: str, domain: str = "") -> None:
    register(OperatorRule(partial(describe_conv, form=form), partial(localize_conv, form=form)), op, domain=domain)


_register(CONV, "Conv")
_register(INTEGER, "ConvInteger")
_register(QUANTIZED, "QLinearConv")
_register(QUANTIZED, "QLinearConv", "com.microsoft")
_register(FUSED, "FusedConv", "com.microsoft")
register(OperatorRule(describe_conv_transpose, localize_conv_transpose), "ConvTranspose")
