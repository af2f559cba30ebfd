"""Mixtures of experts, as onnxruntime's tools for language models write them: words split, their experts do not.

    words [N, E] or [B, T, E], of each word the scores of all experts [N, experts]   ──► output like the words
    weights [experts, inner, E] and [experts, E, inner], of floats, or of few bits with their scales

Every word asks its best `k` experts. Parts of their inner sums would be partial results; but the next layer chooses by them, and the law
of partial sums (`bbgrap.tdl.partial`) excludes that.
"""

from __future__ import annotations

from bbgrap.tdl.language import ALL, OPAQUE_FLOPS, Description, operand
from bbgrap.tdl.operators.common import but, output_indices, wholes, with_whole_axes
from bbgrap.tdl.rule import OperatorRule, Site, register

EXPERTS = frozenset({"MoE", "QMoE"})
SCORES, FIRST_WEIGHTS = 1, 2
MIXING = 14
"""Operand of a mixture of few bits: weights of the experts' answers that are no scores."""


def describe_experts(site: Site) -> Description | None:
    """out[n, :] = sum over the best experts of n of what each makes of x[n, :]; of several sequences only whole ones are a row of words."""
    out = output_indices(site)
    last = len(out) - 1
    *outer, words = (index.extent for index in out[:last])
    fixed = {last} if outer in ([], [1]) or words == 1 else {last - 1, last}
    row = out[0] if last == 1 else out[0] * words + out[1]
    of_words = (SCORES, MIXING) if site.node.op == "QMoE" else (SCORES,)
    reads = [operand(0)[but(out, {last})], *(operand(number)[row, ALL] for number in of_words if site.has(number))]
    reads += wholes(site, (number for number in range(FIRST_WEIGHTS, len(site.inputs)) if number not in of_words))
    inner = site.shape(FIRST_WEIGHTS)[1]
    return with_whole_axes("experts", out, reads, fixed, OPAQUE_FLOPS + 4 * site.integer("k", 1) * inner)


register(OperatorRule(describe_experts), *sorted(EXPERTS), domain="com.microsoft")
