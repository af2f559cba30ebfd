"""Normalisations: the axes over which the statistics run stay whole, the others split."""

from __future__ import annotations

from collections.abc import Sequence

from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.language import ALL, Access, Constant, Description, Index, Subscript, operand
from bbgrap.tdl.operators.common import (
    Reads,
    broadcast,
    but,
    localize_units,
    output_indices,
    unit_of,
    wholes,
    with_whole_axes,
)
from bbgrap.tdl.rule import LocalNode, OperatorRule, Site, register

MICROSOFT = "com.microsoft"


def _over_trailing(out: tuple[Index, ...], axis: int, shape: Sequence[int], number: int) -> Access | None:
    """Read a scale or bias that broadcasts over the normalised axes; None if it has elements along the others."""
    subscripts: list[Subscript] = []
    first = len(out) - len(shape)
    for position, extent in enumerate(shape):
        if first + position < axis and extent != 1:
            return None
        subscripts.append(Constant(0) if extent == 1 else ALL)
    return operand(number)[tuple(subscripts)]


def describe_layer_normalization(site: Site) -> Description | None:
    """out[before..., after...] = normalised x[before..., :...] * scale + bias; everything from the axis on stays whole."""
    out = output_indices(site)
    if not out:
        return None
    axis = site.integer("axis", -1) % len(out)
    fixed = range(axis, len(out))
    reads = [operand(0)[but(out, fixed)]]
    for number in (1, 2):
        if site.has(number):
            read = _over_trailing(out, axis, site.shape(number), number)
            if read is None:
                return None
            reads.append(read)
    statistics: tuple[Subscript, ...] = tuple(Constant(0) if a in fixed else index for a, index in enumerate(out))
    mean_and_inverse_deviation = (statistics,) * (len(site.outputs) - 1)
    return with_whole_axes(site.node.op, out, reads, fixed, extra=mean_and_inverse_deviation)


def describe_skip_normalization(site: Site) -> Description | None:
    """out[..., :] = normalised (x + skip + bias)[..., :] * gamma + beta, and that sum; the last axis stays whole."""
    out = output_indices(site)
    last = {len(out) - 1}
    follows = broadcast(out, site.shape(1))
    reads = [operand(0)[but(out, last)], operand(1)[(*follows[:-1], ALL)], *wholes(site, range(2, 5))]
    further = tuple((*out[:-1], Constant(0) if kind.known_shape[-1] == 1 else ALL) for kind in site.outputs[1:])
    return with_whole_axes(site.node.op, out, reads, last, extra=further)


def describe_embedding(site: Site) -> Description | None:
    """out[b, :, :] = normalised rows of three tables, by words[b, :], segments[b, :] and place, how many words count, and the sum."""
    out = output_indices(site)
    own = [operand(k)[(Constant(0) if site.shape(k)[0] == 1 else out[0], ALL)] for k in (0, 1, 7, 8) if site.has(k)]
    further: tuple[tuple[Subscript, ...], ...] = tuple((out[0], *(ALL,) * (len(kind.known_shape) - 1)) for kind in site.outputs[1:])
    return with_whole_axes("embed", out, [*own, *wholes(site, range(2, 7))], {1, 2}, extra=further)


def describe_gated_normalization(site: Site) -> Description | None:
    """out[..., e] = x[..., e] / root of the mean square of e's group * scale * gate[..., e] activated; groups are as long as the scale."""
    out, size = output_indices(site), site.shape(1)[0]
    last = len(out) - 1
    if out[last].extent == size:
        return with_whole_axes("normalize", out, [operand(k)[but(out, {last})] for k in (0, 2)] + wholes(site, (1,)), {last})
    place = (*out[:last], unit_of(out[last], size))
    return with_whole_axes("normalize", out, [operand(0)[place], operand(2)[place], *wholes(site, (1,))], ())


def localize_gated_normalization(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Normalise the groups that the tile touches, then crop."""
    return localize_units(site, region, reads, region.rank - 1, site.shape(1)[0])


def describe_instance_normalization(site: Site) -> Description | None:
    """out[n, c, s...] = normalised x[n, c, :...] * scale[c] + bias[c]; the map stays whole."""
    out = output_indices(site)
    fixed = range(2, len(out))
    reads = [operand(0)[but(out, fixed)], operand(1)[(out[1],)], operand(2)[(out[1],)]]
    return with_whole_axes("normalize", out, reads, fixed)


def describe_mean_variance(site: Site) -> Description | None:
    """out[i...] = (x[i...] - mean) / deviation, both over the axes."""
    out = output_indices(site)
    fixed = {axis % len(out) for axis in site.integers("axes", (0, 2, 3))}
    return with_whole_axes("normalize", out, [operand(0)[but(out, fixed)]], fixed)


register(OperatorRule(describe_layer_normalization), "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
register(OperatorRule(describe_skip_normalization), "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
register(OperatorRule(describe_embedding), "EmbedLayerNormalization", domain=MICROSOFT)
register(OperatorRule(describe_gated_normalization, localize_gated_normalization), "GatedRMSNorm", domain=MICROSOFT)
register(OperatorRule(describe_instance_normalization), "InstanceNormalization")
register(OperatorRule(describe_mean_variance), "MeanVarianceNormalization")
