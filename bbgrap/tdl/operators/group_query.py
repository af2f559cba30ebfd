"""Attention with a cache, as onnxruntime's tools for language models write it: batches split, and groups of heads with their cache.

    query [B, S, H*E], key and value [B, S, G*E]     ──► output [B, S, H*E]
    past [B, G, P, E] of keys and of values          ──► present [B, G, max(P, T), E]: the past, and behind it what comes

T is the number of words so far. A cache grows with every request, or has room for all of them from the start: then P is at least T. The
kernel turns queries and keys by their places itself, if it is asked to. Every tile computes whole groups: H/G query heads and the key head
that they share, with its part of the cache.
"""

from __future__ import annotations

from bbgrap.tdl.language import ALL, Description, operand
from bbgrap.tdl.operators.attention import MICROSOFT, attention_flops, attention_reads, localize_attention
from bbgrap.tdl.operators.common import output_indices, wholes, with_whole_axes
from bbgrap.tdl.rule import OperatorRule, Site, register

PAST_KEY, PAST_VALUE, LENGTHS, TOTAL, COSINES, SINES, POSITIONS, BIAS, SINK = range(3, 12)
"""Operands behind queries, keys and values."""


def describe_group_query(site: Site) -> Description | None:
    """Y[b, :, h] = attention of group h // unit over past and present keys of that group, which it also puts out.

    None for keys and values that are packed into the queries (split on entry), for caches of integers, where scores are an output, and
    where the cache that was is an operand but no output: the kernel does not read it then.
    """
    beyond = any(site.has(number) for number in range(SINK + 1, len(site.inputs)))
    scores = len(site.node.outputs) > 3
    forgets = site.has(PAST_KEY) and len(site.outputs) < 3
    if beyond or scores or forgets or not (site.has(1) and site.has(2)):
        return None
    out = output_indices(site)
    batch, lengths = out[0], site.shape(LENGTHS)
    if any(len(site.shape(number)) != 3 for number in range(3)) or lengths != (batch.extent, *(1 for _ in lengths[1:])):
        return None
    place, fixed = attention_reads(site, out, queries=False, heads=True)
    reads = [place.rows(number, of_query=number == 0) for number in range(3)]
    reads += [place.rows(number, of_query=False) for number in (PAST_KEY, PAST_VALUE) if site.has(number)]
    reads += [operand(LENGTHS)[(batch, *(0 for _ in lengths[1:]))], *wholes(site, (TOTAL, COSINES, SINES))]
    if site.has(POSITIONS):
        reads.append(operand(POSITIONS)[batch if site.shape(POSITIONS)[0] == batch.extent else 0, ALL])
        fixed |= {0}  # of a prompt, the first sequence's first position stands for all
    if site.has(BIAS):
        reads.append(place.bias(BIAS))
    if site.has(SINK):
        reads.append(operand(SINK)[(place.of_group(place.heads.shared),)])
    keys = site.shape(1)[1] + (site.shape(PAST_KEY)[2] if site.has(PAST_KEY) else 0)
    return with_whole_axes("attention", out, reads, fixed, attention_flops(keys), place.caches(len(site.outputs) - 1))


register(OperatorRule(describe_group_query, localize_attention), "GroupQueryAttention", domain=MICROSOFT)
