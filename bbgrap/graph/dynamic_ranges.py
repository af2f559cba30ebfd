"""Dynamic quantizers in two forms: as the file has them, for a machine that computes them whole, and with their ranges apart.

    DynamicQuantizeLinear     reads all of x, and so cannot be cut

    ReduceMin, ReduceMax      of x, in parts: the least and the largest element of all parts are those of the whole
    Concat                    of these two numbers
    DynamicQuantizeLinear     of them: scale and zero point follow from the range alone
    QuantizeLinear            of x, in pieces

`DynamicQuantizeMatMul` has the product of integers behind it as well. Law: scale, zero point and codes are onnxruntime's, to the bit,
for all numbers but NaN. It reads x three times instead of twice, so a machine that has all of x keeps the first form.
"""

from __future__ import annotations

from dataclasses import replace

from bbgrap.graph.rewriting import Rewriter, trimmed
from bbgrap.graph.types import DType, Graph, Node

_QUANTIZER = ("", "DynamicQuantizeLinear")
_PRODUCT = ("com.microsoft", "DynamicQuantizeMatMul")
_OUTPUTS = 3
_ENDS = 2


def with_ranges_apart(graph: Graph) -> Graph:
    """Return a graph with the ranges of its dynamic quantizers apart; the same graph if it has none that can be."""
    return _RangesApart(graph).run(_RangesApart.write)


class _RangesApart(Rewriter):
    """Rewrites a graph node by node."""

    def write(self, node: Node) -> bool:
        """Write a quantizer with its range apart."""
        if (node.domain, node.op) == _QUANTIZER and len([*filter(None, node.outputs)]) == _OUTPUTS and self._is_known(node):
            self._quantizer(node.name, node.inputs[0], node.outputs)
        elif (node.domain, node.op) == _PRODUCT and self._is_known(node):
            self._product(node)
        else:
            return False
        return True

    def _is_known(self, node: Node) -> bool:
        """Whether a quantizer reads more elements than a range has, and it is known how many."""
        kind = self.types[node.inputs[0]]
        return kind.dtype is DType.FLOAT and kind.nbytes > _ENDS * kind.dtype.itemsize

    def _quantizer(self, name: str, x: str, outputs: tuple[str, ...]) -> None:
        codes, scale, zero = outputs
        one = (1,) * len(self.shape(x))
        still = frozenset[int]()
        low = self.made(f"{name}.low", "ReduceMin", (x,), shape=one, moving=still)
        high = self.made(f"{name}.high", "ReduceMax", (x,), shape=one, moving=still)
        ends = self.made(f"{name}.range", "Concat", (low, high), {"axis": 0}, shape=(_ENDS, *one[1:]))
        unread = self.new(f"{name}.range codes", DType.UINT8, (_ENDS, *one[1:]))
        self.nodes += [
            Node(unread, "DynamicQuantizeLinear", (ends,), (unread, scale, zero)),
            Node(name, "QuantizeLinear", (x, scale, zero), (codes,)),
        ]

    def _product(self, node: Node) -> None:
        x, weight, weight_scale, *further = node.inputs
        weight_zero, bias = (*further, "", "")[:2]
        codes = self.new(f"{node.name}.codes", DType.UINT8, self.shape(x), self.moves(x))
        scale = self.new(f"{node.name}.scale", DType.FLOAT, ())
        zero = self.new(f"{node.name}.zero", DType.UINT8, ())
        self._quantizer(codes, x, (codes, scale, zero))
        operands = trimmed((codes, weight, scale, weight_scale, zero, weight_zero, bias))
        self.nodes.append(replace(node, op="MatMulIntegerToFloat", inputs=operands))
