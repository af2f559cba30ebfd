"""Which results must keep their last bits: those that an operator with jumps turns into something else.

A sum in another order is off by some 1e-7 of its terms, which is no further from the truth than onnxruntime's own sum. Continuous
operators hand that on as it is. One that jumps does not:

- *Rounding* (quantization, `Round`, a cast to integers) moves a value by a whole step if the difference lies across the border of two
  steps. Of 255 steps that happens to some values of every large tensor, in every request, so it counts wherever it is.
- *Choosing* (comparisons, `ArgMax`, `TopK`, `NonMaxSuppression`) differs only where two candidates are equal to seven digits. At the end
  of a model the tie is then decided otherwise, and as well. It counts where a layer computes on with what was chosen, and in control flow.
  It does not where it reaches no answer, but only state: in a training step Relu and MaxPool choose which gradients go on, and a tie is one
  element's share in the next weights.

Nor does a piece that is one row of a product keep its bits, where onnxruntime multiplies one row in an order of its own (`is_lone_row`).
"""

from __future__ import annotations

import weakref

from bbgrap.graph.divided_experts import CHOSEN_EXPERTS
from bbgrap.graph.types import DType, Graph, Node

FLOATS = frozenset({DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16})
"""Types whose rounding is finer than what they are used for; 8-bit floats (`DType.OTHER`) are not."""

ROUNDING = frozenset(
    {"QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "Round", "Floor", "Ceil", "Mod"}
    | {"BitCast", "MaxRoiPool", "QAttention", "QMoE", "MoE"}
)
"""Operators that round whatever they read, or choose and compute on in one."""

CHOOSING = frozenset(
    {"ArgMax", "ArgMin", "TopK", "Hardmax", "NonMaxSuppression", "NonZero", "Unique", "Sign", "Shrink", "ThresholdedRelu", "MaxUnpool"}
    | {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Binarizer", "Imputer"}
    | {"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "SVMClassifier", "LinearClassifier"}
)
"""Operators that choose."""

CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"})
"""Operators with a body, of which nobody knows what it does."""

LAYERS = frozenset(
    {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "FusedConv", "NhwcFusedConv", "DeformConv", "Attention", "MultiHeadAttention"}
    | {"MatMul", "Gemm", "Einsum", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "FusedGemm", "QGemm", "MatMulIntegerToFloat"}
    | {"MatMulNBits", "MatMulBnb4", "GroupQueryAttention", "LinearAttention", "CausalConvWithState", CHOSEN_EXPERTS}
    | {"LSTM", "GRU", "RNN"}
)
"""Operators that sum over what they read."""

INT8_ACTIVATIONS = 4
"""The level of accuracy at which a MatMulNBits quantizes what it reads."""

_Known = tuple[weakref.ref[Graph], frozenset[str]]
_KNOWN: dict[int, _Known] = {}
"""By the identity of a graph, which is compared by content and so cannot be a key; entries go with their graph."""


def bit_sensitive_nodes(graph: Graph) -> frozenset[str]:
    """Return the names of the nodes on whose results a jump depends that counts; remembered as long as the graph lives."""
    key = id(graph)
    known = _KNOWN.get(key)
    if known is None or known[0]() is not graph:
        known = _KNOWN[key] = (weakref.ref(graph, lambda _: _KNOWN.pop(key, None)), _bit_sensitive_nodes(graph))
    return known[1]


def _bit_sensitive_nodes(graph: Graph) -> frozenset[str]:
    found, choosing = set[str](), set[str]()
    before_layer, before_answer, answered = set[str](), set[str](), set(graph.answered)
    for node in reversed(graph.nodes):
        after = [reader for output in node.outputs for reader in graph.consumers.get(output, ()) if reader.op not in ("Shape", "Size")]
        if any(reader.op in LAYERS or reader.name in before_layer for reader in after):
            before_layer.add(node.name)
        if not answered.isdisjoint(node.outputs) or any(reader.name in before_answer for reader in after):
            before_answer.add(node.name)
        if _chooses(node) and node.name in before_layer and node.name in before_answer:
            choosing.add(node.name)
        if any(reader.name in found or reader.name in choosing or _rounds(graph, reader) for reader in after):
            found.add(node.name)
    return frozenset(found)


def _rounds(graph: Graph, node: Node) -> bool:
    if node.op == "Cast":
        return graph.types[node.inputs[0]].dtype in FLOATS and graph.types[node.outputs[0]].dtype not in FLOATS
    if node.op == "MatMulNBits":
        return node.attributes.get("accuracy_level", 0) == INT8_ACTIVATIONS
    return node.op in ROUNDING or node.op in CONTROL


def _chooses(node: Node) -> bool:
    return node.op in CHOOSING or (node.op == "MaxPool" and len(node.outputs) > 1)
