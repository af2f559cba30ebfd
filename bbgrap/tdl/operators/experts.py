"""Mixtures of experts, as onnxruntime's tools for language models write them: words split, and in a second form their experts.

    words [N, E] or [B, T, E], of each word the scores of all experts [N, experts]   ──► output like the words
    weights [experts, inner, E] and [experts, E, inner], of floats, or of few bits with their scales

Every word asks its best `k` experts. Parts of their inner sums would be partial results; but the next layer chooses by them, and the law
of partial sums (`bbgrap.tdl.partial`) excludes that. In the second form (`bbgrap.graph.divided_experts`) answers are looked up, each of one
expert, and a part of the experts has zeros for the others.
"""

from __future__ import annotations

import numpy as np

from bbgrap.graph.divided_experts import CHOSEN_EXPERTS, OWN_DOMAIN
from bbgrap.shapemap import Interval, ShapeMap
from bbgrap.tdl.language import ALL, OPAQUE_FLOPS, Description, Index, Opaque, Sum, operand
from bbgrap.tdl.operators.common import Reads, but, integers, output_indices, wholes, with_whole_axes
from bbgrap.tdl.rule import ConstantOperand, Input, LocalNode, OperatorRule, Result, Site, operands_of, register

EXPERTS = frozenset({"MoE", "QMoE", CHOSEN_EXPERTS})
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


def describe_chosen(site: Site) -> Description | None:
    """out[n, j, :] = what expert numbers[n, j] makes of x[n, :]: a sum over all experts, of which one has no zeros."""
    out, (experts, inner, *_) = output_indices(site), site.shape(FIRST_WEIGHTS)
    e = Index("e", experts)
    weights = [number for number in range(FIRST_WEIGHTS, len(site.inputs)) if site.has(number)]
    reads = [operand(0)[out[0], ALL], operand(1)[out[:2]]]
    reads += [operand(number)[e, *(ALL,) * (len(site.shape(number)) - 1)] for number in weights]
    return Description(out, Sum((e,), Opaque("expert", tuple(reads), out[2:], max(1, 4 * inner // experts))))


def localize_chosen(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """A mixture of all experts."""
    return answers_of(site, region, reads, Interval(0, site.shape(FIRST_WEIGHTS)[0]))


def answers_of(site: Site, region: ShapeMap, reads: Reads, experts: Interval) -> tuple[LocalNode, ...]:
    """A mixture of some experts that answers for each word of each place alone, and with zeros if the expert asked is another.

    Scores are zero for the expert that is asked, so that its answer counts once, and minus infinity for others. Where all are, a softmax
    is no number, and onnxruntime's kernels skip what has no share above zero.
    """
    places = region.shape[1]
    numbers = ConstantOperand(np.arange(experts.start, experts.stop, dtype=np.int64)[None])
    yes, no = (ConstantOperand(np.array(score, np.float32)) for score in (0, -np.inf))
    operands = operands_of(site, reads)[FIRST_WEIGHTS:]
    op = "QMoE" if "expert_weight_bits" in site.node.attributes else "MoE"
    return (
        LocalNode("Unsqueeze", (Input(0), integers(1))),
        LocalNode("Expand", (Result(0), integers(1, places, 1))),
        LocalNode("Reshape", (Result(1), integers(-1, region.shape[2]))),
        LocalNode("Reshape", (Input(1), integers(-1, 1))),
        LocalNode("Equal", (Result(3), numbers)),
        LocalNode("Where", (Result(4), yes, no)),
        LocalNode(op, (Result(2), Result(5), *operands), site.node.attributes, "com.microsoft"),
        LocalNode("Reshape", (Result(6), integers(-1, places, region.shape[2]))),
    )


register(OperatorRule(describe_experts), "MoE", "QMoE", domain="com.microsoft")
register(OperatorRule(describe_chosen, localize_chosen), CHOSEN_EXPERTS, domain=OWN_DOMAIN)
