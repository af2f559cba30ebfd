"""Operators that sample a map at computed places, and transforms of whole matrices and signals."""

from __future__ import annotations

from bbgrap.tdl.language import ALL, Access, Description, Index, Opaque, ScalarCall, operand
from bbgrap.tdl.operators.common import but, output_indices, whole, wholes, with_whole_axes
from bbgrap.tdl.rule import OperatorRule, Site, register


def describe_grid_sample(site: Site) -> Description | None:
    """out[n, c, s...] = x[n, c, :...] sampled at grid[n, s..., :]."""
    n, c, *space = out = output_indices(site)
    image = operand(0)[n, c, *(ALL for _ in space)]
    return Description(out, ScalarCall("sample", (image, operand(1)[n, *space, ALL])))


def describe_roi_pool(site: Site) -> Description | None:
    """out[r, c, y, x] = a bin of region r of map batch(r), channel c; the bins of a region stay together."""
    r, c, y, x = output_indices(site)
    reads: list[Access] = [operand(0)[ALL, c, ALL, ALL], operand(1)[r, ALL]]
    if site.has(2):
        reads.append(operand(2)[(r,)])
    return with_whole_axes(site.node.op, (r, c, y, x), reads, {2, 3})


def describe_deform_conv(site: Site) -> Description | None:
    """out[n, c, s...] = Sum of x[n, :, somewhere...] * w[c, :, k...]: offsets reach anywhere, so the map stays whole."""
    n, c, *space = out = output_indices(site)
    fixed = set(range(2, len(out))) | ({1} if site.integer("group", 1) != 1 else set())
    map_axes = [ALL for _ in space]
    channel = ALL if 1 in fixed else c
    reads = [operand(0)[n, ALL, *map_axes], operand(1)[channel, ALL, *map_axes], operand(2)[n, ALL, *map_axes]]
    if site.has(3):
        reads.append(operand(3)[(channel,)])
    if site.has(4):
        reads.append(operand(4)[n, ALL, *map_axes])
    return with_whole_axes("DeformConv", out, reads, fixed)


def describe_det(site: Site) -> Description | None:
    """out[b...] = determinant of x[b..., :, :]."""
    out = output_indices(site)
    return Description(out, ScalarCall("det", (operand(0)[*out, ALL, ALL],))) if out else None


def _transformed_axis(site: Site) -> int | None:
    """Return the axis of a DFT: operand 2 from opset 20 on, an attribute before; where neither is given, defaults differ."""
    rank = len(site.shape(0))
    if site.has(2):
        given = site.constant(2)
        return None if given is None else int(given.reshape(())) % rank
    if "axis" in site.node.attributes:
        return site.integer("axis", 1) % rank
    return 1 if rank == 3 else None


def describe_dft(site: Site) -> Description | None:
    """out[..., f, ..., :] = transform of x[..., :, ..., :]; the signal's axis and the complex pair stay whole."""
    axis, out = _transformed_axis(site), output_indices(site)
    if axis is None:
        return None
    fixed = {axis, len(out) - 1}
    reads = [operand(0)[but(out, fixed)], *wholes(site, (1,))]
    given = site.constant(1) if site.has(1) else None  # to which signals are padded, or cut
    length = site.shape(0)[axis] if given is None else int(given.reshape(()))
    return with_whole_axes("DFT", out, reads, fixed, _flops(length, site.output_shape[axis]))


def describe_stft(site: Site) -> Description | None:
    """out[b, f, :, :] = transform of signal[b, f * step + k] * window[k]: frames are windows with a halo."""
    b, f, bins, pair = output_indices(site)
    step = site.constant(1)
    rank = len(site.shape(0))  # onnxruntime takes signals without the last axis, too
    if step is None or rank not in (2, 3) or (site.has(3) and site.constant(3) is None):
        return None
    given = site.constant(3)
    length = int(given.reshape(())) if given is not None else site.shape(2)[0]
    signal = operand(0)[b, f * int(step.reshape(())) + Index("k", length), *[ALL] * (rank - 2)]
    reads = [signal] + ([whole(site, 2)] if site.has(2) else [])
    return Description((b, f, bins, pair), Opaque("STFT", tuple(reads), (bins, pair), _flops(length, site.output_shape[2])))


def _flops(length: int, frequencies: int) -> int:
    """Return the operations per element `[frequency, pair]` of one signal's transform.

    A fast transform of n numbers has 5 n log2 n (Cooley and Tukey). A length that is no power of two takes two of them, over at least
    twice as many numbers (Bluestein): onnxruntime does so, and takes 21 us for 1,024 numbers, 51 for 400.
    """
    at_once = length & (length - 1) == 0
    padded = length if at_once else 1 << (2 * length - 2).bit_length()
    return (5 if at_once else 10) * padded * (padded.bit_length() - 1) // (2 * max(frequencies, 1))


register(OperatorRule(describe_grid_sample), "GridSample")
register(OperatorRule(describe_roi_pool), "RoiAlign", "MaxRoiPool")
register(OperatorRule(describe_deform_conv), "DeformConv")
register(OperatorRule(describe_det), "Det")
register(OperatorRule(describe_dft), "DFT")
register(OperatorRule(describe_stft), "STFT")
