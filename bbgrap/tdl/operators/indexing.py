"""Operators that look elements up by index: gathers and scatters, and functions along an axis that answer with indices.

What an index points at is only known at run time, so the axis it points into is read whole, or (where the output has it) stays whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bbgrap.graph import Array, DType
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl.language import ALL, Constant, Description, Index, IndexExpression, Opaque, ScalarCall, Subscript, Sum, operand
from bbgrap.tdl.operators.common import Reads, but, output_indices, whole, wholes, with_whole_axes
from bbgrap.tdl.rule import ConstantOperand, Input, LocalNode, OperatorRule, Site, register, same_node


@dataclass(frozen=True, slots=True)
class _Places:
    """What a Gather takes: place `first + step0 * j0 + step1 * j1 + ...` for the index at `[j0, j1, ...]`, no step negative."""

    elements: Array
    """The indices themselves."""
    first: int
    steps: tuple[int, ...]

    def at(self, chosen: Sequence[Index]) -> IndexExpression:
        """Return the place for the index at these indices."""
        place: IndexExpression = Constant(self.first)
        for index, step in zip(chosen, self.steps, strict=True):
            place = index * step + place if step else place
        return place


def _places(site: Site) -> _Places | None:
    """Return the places of constant indices in equal steps: one, every second, or frames of a signal; None for any other."""
    given, axis = site.constant(1), site.integer("axis", 0) % len(site.shape(0))
    if given is None or not given.size or axis in site.moving[0]:
        return None
    indices = np.where(given < 0, given + site.shape(0)[axis], given).astype(np.int64)
    if indices.size > 1 and site.constant(0) is not None:
        return None  # a table, which can be divided
    first = int(indices.flat[0])
    steps = (int(np.take(indices, 1, axis).flat[0]) - first if extent > 1 else 0 for axis, extent in enumerate(indices.shape))
    found = _Places(indices, first, tuple(steps))
    regular = sum((step * place for step, place in zip(found.steps, np.indices(indices.shape), strict=True)), np.int64(first))
    return found if min(found.steps, default=0) >= 0 and np.array_equal(indices, np.broadcast_to(regular, indices.shape)) else None


def describe_gather(site: Site) -> Description | None:
    """out[before..., j..., after...] = data[before..., indices[j...], after...]; constant indices in equal steps read only their places.

    Of a table that is a weight: sum over k of data[before..., k, after...] where indices[j...] is k, so that it can be divided.
    """
    out = output_indices(site)
    axis, count = site.integer("axis", 0) % len(site.shape(0)), len(site.shape(1))
    before, chosen, after = out[:axis], out[axis : axis + count], out[axis + count :]
    places = _places(site)
    place: Subscript = ALL if places is None else places.at(chosen)
    if after and site.outputs[0].dtype is DType.STRING:
        # Of the strings after the axis onnxruntime (1.31) copies only the first, and leaves the others empty: each piece would have one.
        data = operand(0)[*before, place, *(ALL,) * len(after)]
        indices = [operand(1)[chosen]] if places is None else []
        return with_whole_axes("gather", out, [data, *indices], range(axis + count, len(out)))
    if places is not None:
        return Description(out, ScalarCall("gather", (operand(0)[*before, place, *after],)))
    if site.constant(0) is None:
        return Description(out, ScalarCall("gather", (operand(0)[*before, ALL, *after], operand(1)[chosen])))
    k = Index("k", site.shape(0)[axis])
    return Description(out, Sum((k,), ScalarCall("where", (operand(0)[*before, k, *after], operand(1)[chosen]))))


def localize_gather(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The same Gather; of constant indices in equal steps those of the region, counted among the places that were read."""
    places, read = _places(site), reads[0]
    if places is None or read is None:
        return same_node(site, region, reads)
    axis = site.integer("axis", 0) % len(site.shape(0))
    own = region.axes[axis : axis + places.elements.ndim]
    wanted = places.elements[np.ix_(*(_elements(part) for part in own))] if own else places.elements
    local = np.searchsorted(_elements(read.axes[axis]), wanted)
    return (LocalNode("Gather", (Input(0), ConstantOperand(local)), site.node.attributes),)


def _elements(part: IntervalSet) -> Array:
    """Return the elements of a set, in order."""
    return np.concatenate([np.arange(of.start, of.stop) for of in part.ranges] or [np.arange(0)])


def describe_gather_block_quantized(site: Site) -> Description | None:
    """out[j..., :] = data[indices[j...], :] scaled by block: a sum over the rows of a table of bytes as for Gather; rows stay whole."""
    data, out = site.inputs[0], output_indices(site)
    axes = (site.integer("gather_axis", 0), site.integer("quantize_axis", 1))
    if data is None or len(site.shape(0)) != 2 or axes not in ((0, 1), (0, -1)) or data.dtype is DType.OTHER or site.constant(0) is None:
        return None
    k, chosen = Index("k", site.shape(0)[0]), out[:-1]
    reads = [operand(0)[k, ALL], operand(1)[chosen], *(operand(number)[k, ALL] for number in (2, 3) if site.has(number))]
    return Description(out, Sum((k,), Opaque("look_up", tuple(reads), (out[-1],))))


def describe_gather_elements(site: Site) -> Description | None:
    """out[..., j, ...] = data[..., indices[..., j, ...], ...]."""
    out = output_indices(site)
    if not out:
        return None
    axis = site.integer("axis", 0) % len(out)
    return Description(out, ScalarCall("gather", (operand(0)[but(out, {axis})], operand(1)[out])))


def describe_gather_nd(site: Site) -> Description | None:
    """out[b..., j..., rest...] = data[b..., indices[b..., j..., :], rest...]."""
    out = output_indices(site)
    batch, count, looked_up = site.integer("batch_dims", 0), len(site.shape(1)) - 1, site.shape(1)[-1]
    data = operand(0)[*out[:batch], *(ALL,) * looked_up, *out[count:]]
    return Description(out, ScalarCall("gather", (data, operand(1)[*out[:count], ALL])))


def describe_scatter_elements(site: Site) -> Description | None:
    """The data, with updates[..., j, ...] at [..., indices[..., j, ...], ...]: the axis stays whole, the others line up."""
    out = output_indices(site)
    if not out:
        return None
    axis = site.integer("axis", 0) % len(out)
    place = but(out, {axis})
    return with_whole_axes("scatter", out, [operand(k)[place] for k in range(3)], {axis})


def describe_scatter_nd(site: Site) -> Description | None:
    """The data, with updates[j..., rest...] at [indices[j..., :]..., rest...]: what indices point at stays whole."""
    out = output_indices(site)
    looked_up, count = site.shape(1)[-1], len(site.shape(1)) - 1
    updates = operand(2)[*(ALL,) * count, *out[looked_up:]]
    fixed = range(looked_up)
    return with_whole_axes("scatter", out, [operand(0)[but(out, fixed)], whole(site, 1), updates], fixed)


def describe_tensor_scatter(site: Site) -> Description | None:
    """out[b, ...] = past[b, ...] with update[b, ...] written from write_indices[b] on, along the axis."""
    out = output_indices(site)
    axis = site.integer("axis", -2) % len(out)
    reads = [operand(0)[but(out, {axis})], operand(1)[but(out, {axis})]]
    if site.has(2):
        reads.append(operand(2)[(out[0],)])
    return with_whole_axes("scatter", out, reads, {axis})


def describe_one_hot(site: Site) -> Description | None:
    """out[..., d, ...] = values[indices[...] == d]; the new axis stays whole."""
    out = output_indices(site)
    axis = site.integer("axis", -1) % len(out)
    indices = operand(0)[out[:axis] + out[axis + 1 :]]
    return with_whole_axes("one_hot", out, [indices, *wholes(site, (1, 2))], {axis})


def describe_arg(site: Site) -> Description | None:
    """out[kept...] = the place of the largest (smallest) of x[..., :, ...]."""
    rank = len(site.shape(0))
    if not rank:
        return None
    axis, out = site.integer("axis", 0) % rank, output_indices(site)
    after = out[axis + 1 :] if site.integer("keepdims", 1) else out[axis:]
    return Description(out, ScalarCall(site.node.op, (operand(0)[*out[:axis], ALL, *after],)))


def describe_top(site: Site) -> Description | None:
    """values[..., j, ...], indices[..., j, ...] = the j-th largest (smallest) of x[..., :, ...], and its place; the axis stays whole."""
    out = output_indices(site)
    if not out or site.constant(1) is None:
        return None
    fixed = {site.integer("axis", -1) % len(out)}
    return with_whole_axes("TopK", out, [operand(0)[but(out, fixed)]], fixed, extra=(but(out, fixed),) * (len(site.outputs) - 1))


def describe_cumulative(site: Site) -> Description | None:
    """out[..., j, ...] = sum (product) of x[..., :j, ...]; the axis stays whole."""
    axis = site.constant(1)
    out = output_indices(site)
    if axis is None or not out:
        return None
    fixed = {int(axis.reshape(())) % len(out)}
    return with_whole_axes(site.node.op, out, [operand(0)[but(out, fixed)]], fixed)


def describe_reverse_sequence(site: Site) -> Description | None:
    """out[t, b, ...] = x[length[b] - 1 - t, b, ...] up to the length; the time axis stays whole."""
    out = output_indices(site)
    time, batch = site.integer("time_axis", 0), site.integer("batch_axis", 1)
    return with_whole_axes("ReverseSequence", out, [operand(0)[but(out, {time})], operand(1)[(out[batch],)]], {time})


register(OperatorRule(describe_gather, localize_gather), "Gather")
register(OperatorRule(describe_gather_block_quantized), "GatherBlockQuantized", domain="com.microsoft")
register(OperatorRule(describe_gather_elements), "GatherElements")
register(OperatorRule(describe_gather_nd), "GatherND")
register(OperatorRule(describe_scatter_elements), "ScatterElements")
register(OperatorRule(describe_scatter_nd), "ScatterND")
register(OperatorRule(describe_tensor_scatter), "TensorScatter")
register(OperatorRule(describe_one_hot), "OneHot")
register(OperatorRule(describe_arg), "ArgMax", "ArgMin")
register(OperatorRule(describe_top), "TopK")
register(OperatorRule(describe_cumulative), "CumSum", "CumProd")
register(OperatorRule(describe_reverse_sequence), "ReverseSequence")
