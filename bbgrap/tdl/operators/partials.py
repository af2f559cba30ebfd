"""Operators whose partial results add up (or combine by maximum, minimum)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bbgrap.graph.divided_experts import CHOSEN_EXPERTS, OWN_DOMAIN
from bbgrap.graph.types import DType, Node
from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.operators.common import Reads, integers
from bbgrap.tdl.operators.convolutions import localize_conv
from bbgrap.tdl.operators.experts import answers_of
from bbgrap.tdl.operators.quantized import localize_matmul_nbits
from bbgrap.tdl.partial import WIDE_FLOATS, Part, PartialRule, register_partial
from bbgrap.tdl.rule import ConstantOperand, Input, LocalNode, Result, Site, operands_of, same_node

BIAS = 2
"""Operand of Conv and Gemm that counts once: it belongs to the first part."""


def _without_bias(nodes: tuple[LocalNode, ...], part: Part) -> tuple[LocalNode, ...]:
    if part.interval.start == 0:
        return nodes
    return tuple(replace(node, operands=node.operands[:BIAS]) for node in nodes)


def conv_part(site: Site, region: ShapeMap, reads: Reads, part: Part) -> tuple[LocalNode, ...]:
    """The same convolution over a range of input channels."""
    return _without_bias(localize_conv(site, region, reads), part)


def product_part(site: Site, region: ShapeMap, reads: Reads, part: Part) -> tuple[LocalNode, ...]:
    """The same product over a range of the inner dimension."""
    return _without_bias(same_node(site, region, reads), part)


def _shares_inputs(site: Site) -> bool:
    """Whether all outputs of a convolution share its input channels."""
    return site.integer("group", 1) == 1


def _has_floats(site: Site) -> bool:
    """Whether a sum or mean is of floats; one of integers rounds once, at its end."""
    kind = site.inputs[0]
    return kind is not None and kind.dtype in WIDE_FLOATS


def reduction_part(site: Site, region: ShapeMap, reads: Reads, part: Part) -> tuple[LocalNode, ...]:
    """The same reduction over a range of a reduced axis."""
    return same_node(site, region, reads)


def mean_part(site: Site, region: ShapeMap, reads: Reads, part: Part) -> tuple[LocalNode, ...]:
    """The mean over the range, and of it the share that the range has of its axis.

    Nothing else is told of sizes: pieces for requests that differ along other axes are the same.
    """
    kind, first = site.inputs[0], 0 if site.node.op == "ReduceMean" else 2  # pools count spatial axes only
    assert kind is not None, "a mean has an input"
    extent = site.shape(0)[first + int(part.index.removeprefix("k"))]
    share = ConstantOperand(np.array(len(part.interval) / extent, kind.dtype.numpy))
    return *same_node(site, region, reads), LocalNode("Mul", (Result(0), share))


def _is_in_rows(site: Site) -> bool:
    """Whether scales and zero points of a product of few bits have a row for each column."""
    return all(not site.has(k) or len(site.shape(k)) == 2 for k in (2, 3)) and not site.has(4)


def nbits_unit(node: Node) -> int:
    """Whole blocks; where zero points are packed, as many as share a byte."""
    size, bits = (node.attributes.get(name, default) for name, default in (("block_size", 1), ("bits", 4)))
    assert isinstance(size, int), "onnxruntime takes whole numbers only"
    assert isinstance(bits, int), "onnxruntime takes whole numbers only"
    return size * (8 // bits if any(node.inputs[3:4]) else 1)


def nbits_part(site: Site, region: ShapeMap, reads: Reads, part: Part) -> tuple[LocalNode, ...]:
    """The same product over a range of blocks."""
    (node,) = localize_matmul_nbits(site, region, reads)
    bias = 5
    operands = node.operands if part.interval.start == 0 else node.operands[:bias]
    while operands[-1] is None:
        operands = operands[:-1]
    return (replace(node, operands=operands, attributes={**node.attributes, "K": len(part.interval)}),)


def _has_table(site: Site) -> bool:
    """Whether what is looked up is a weight; onnxruntime (1.32) has no `Where` of 64-bit naturals."""
    return site.constant(0) is not None and site.outputs[0].dtype is not DType.UINT64


def gather_part(site: Site, region: ShapeMap, reads: Reads, part: Part) -> tuple[LocalNode, ...]:
    """Look up what a range of the table has, and zeros for the rest: of all parts one has each element, so that sums are exact.

    An index that is not in the whole table is not in that of a part either, and onnxruntime refuses it.
    """
    axis = site.integer("axis", 0) % len(site.shape(0))  # of a table of few bits always the first one
    extent, start, size = site.shape(0)[axis], part.interval.start, len(part.interval)
    kinds = [kind.dtype.numpy for kind in site.inputs if kind is not None]
    zero, end, beyond = (ConstantOperand(np.array(value, kinds[1])) for value in (0, extent, size))
    trailing = len(site.shape(0)) - axis - 1
    wrapped = (
        LocalNode("Less", (Input(1), zero)),
        LocalNode("Add", (Input(1), end)),
        LocalNode("Where", (Result(0), Result(1), Input(1))),
    )
    in_part = (
        LocalNode("Sub", (Result(2), ConstantOperand(np.array(start, kinds[1])))),
        LocalNode("GreaterOrEqual", (Result(3), zero)),
        LocalNode("Less", (Result(3), beyond)),
        LocalNode("And", (Result(4), Result(5))),
    )
    in_table = (
        LocalNode("GreaterOrEqual", (Result(2), zero)),
        LocalNode("Less", (Result(2), end)),
        LocalNode("And", (Result(7), Result(8))),
    )
    looked_up = (
        LocalNode("Where", (Result(9), zero, beyond)),
        LocalNode("Where", (Result(6), Result(3), Result(10))),
        LocalNode(site.node.op, (Input(0), Result(11), *operands_of(site, reads)[2:]), site.node.attributes, site.node.domain),
        LocalNode("Unsqueeze", (Result(6), integers(*range(-trailing, 0)))),
        LocalNode("Where", (Result(13), Result(12), ConstantOperand(np.zeros((), site.outputs[0].dtype.numpy)))),
    )
    return (*wrapped, *in_part, *in_table, *looked_up)


def chosen_part(site: Site, region: ShapeMap, reads: Reads, part: Part) -> tuple[LocalNode, ...]:
    """The answers of some experts, and zeros for those of others."""
    return answers_of(site, region, reads, part.interval)


MICROSOFT = "com.microsoft"

register_partial(PartialRule(conv_part, _shares_inputs, only="ci"), "Conv")
register_partial(PartialRule(product_part), "Gemm", "MatMul")
register_partial(PartialRule(reduction_part, unit=lambda _: 4), "MatMulInteger")
register_partial(PartialRule(reduction_part), "FusedMatMul", domain=MICROSOFT)
register_partial(PartialRule(nbits_part, _is_in_rows, unit=nbits_unit), "MatMulNBits", domain=MICROSOFT)
register_partial(PartialRule(gather_part, _has_table, is_exact=True), "Gather")
register_partial(PartialRule(gather_part, _has_table, is_exact=True), "GatherBlockQuantized", domain=MICROSOFT)
register_partial(PartialRule(chosen_part, is_exact=True), CHOSEN_EXPERTS, domain=OWN_DOMAIN)
register_partial(PartialRule(reduction_part), "ReduceMax", "ReduceMin", "GlobalMaxPool")
register_partial(PartialRule(reduction_part, _has_floats), "ReduceSum", "Einsum")
register_partial(PartialRule(mean_part, _has_floats), "ReduceMean")
register_partial(PartialRule(mean_part), "GlobalAveragePool")
