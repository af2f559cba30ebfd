"""Attention by a state of fixed size, as onnxruntime has it: batches split, and heads with their state.

    queries, keys, values [B, T, heads * E], decay and update rate of a head  ──► output [B, T, heads * E]
    past state [B, heads, D, E]                                               ──► present state, of the same shape

Words follow one another, so their axis stays whole. In front of it stands a convolution over the last few words of each channel, whose
state they are; behind it a norm of each head (`normalizations`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.language import ALL, OPAQUE_FLOPS, Access, Description, Index, IndexExpression, Subscript, operand
from bbgrap.tdl.operators.common import Reads, but, localize_units, output_indices, with_whole_axes
from bbgrap.tdl.rule import LocalNode, OperatorRule, Site, register

MICROSOFT = "com.microsoft"
QUERY, KEY, VALUE, PAST, DECAY, RATE = range(6)


def describe_causal_convolution(site: Site) -> Description | None:
    """out[n, c, s] = Sum over k of weight[c, 0, k] * (past, and behind it x)[n, c, s - k]; the last words of it are the state.

    None where channels are last and lie along several axes.
    """
    out = output_indices(site)
    last = bool(site.integer("channels_last", 0))
    if len(out) != 3:
        return None
    channel = 2 if last else 1
    c, fixed = out[channel], set(range(1, len(out))) - {channel}
    place = but(out, fixed)
    reads = [operand(0)[place], operand(1)[c, ALL, ALL]]
    reads += [operand(2)[(c,)]] if site.has(2) else []
    reads += [operand(3)[place]] if site.has(3) else []
    taps = 2 * site.shape(1)[-1]
    return with_whole_axes("convolution", out, reads, fixed, OPAQUE_FLOPS + taps, (place,) * (len(site.outputs) - 1))


@dataclass(frozen=True, slots=True)
class Groups:
    """Heads that are computed together: several heads of queries share keys or values, or the other way round."""

    count: int
    unit: int
    """Elements of the output that belong to a group."""


def groups_of(site: Site) -> Groups:
    """Return the groups of an attention: as many as divide its heads of queries, of values, and of keys."""
    queries, values = site.integer("q_num_heads", 1), site.integer("kv_num_heads", 1)
    count = gcd(queries, values, site.shape(KEY)[2] * queries // site.shape(QUERY)[2])
    return Groups(count, site.output_shape[2] // count)


def describe_linear_attention(site: Site) -> Description | None:
    """Y[b, :, h] = queries of h's group · states of it, of which every word forgets a part and to which it adds; the last are put out."""
    out, groups = output_indices(site), groups_of(site)
    group = out[2] if groups.unit == 1 else out[2] // groups.unit

    def of_group(elements: int) -> IndexExpression:
        """Return the elements of the group, of an axis that has so many."""
        each = elements // groups.count
        return group if each == 1 else group * each + Index(f"r{each}", each)

    def rows(number: int) -> Access:
        elements = site.shape(number)[2]
        return operand(number)[(out[0], ALL, ALL if elements == 1 else of_group(elements))]

    state: tuple[Subscript, ...] = (out[0], of_group(site.integer("kv_num_heads", 1)), ALL, ALL)
    reads = [rows(number) for number in (QUERY, KEY, VALUE, DECAY, RATE) if site.has(number)]
    reads += [operand(PAST)[state]] if site.has(PAST) else []
    features = site.shape(QUERY)[2] // site.integer("q_num_heads", 1)
    return with_whole_axes("attention", out, reads, {1}, OPAQUE_FLOPS + 6 * features, (state,) * (len(site.outputs) - 1))


def localize_linear_attention(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The same attention with every group that the tile touches, then the tile's own elements."""
    groups = groups_of(site)
    heads = {name: site.integer(name, 1) // groups.count for name in ("q_num_heads", "kv_num_heads")}
    return localize_units(site, region, reads, 2, groups.unit, heads)


register(OperatorRule(describe_causal_convolution), "CausalConvWithState", domain=MICROSOFT)
register(OperatorRule(describe_linear_attention, localize_linear_attention), "LinearAttention", domain=MICROSOFT)
