"""How much work a piece of a node is, and of which kind (`bbgrap.work`): what a cost model multiplies by measured speeds.

An activation right behind a convolution or product is done while its result is written (onnxruntime fuses them), and costs nothing of
its own; a sum that joins a skip reads one map more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from bbgrap.graph import Graph, Node
from bbgrap.graph.divided_experts import CHOSEN_EXPERTS
from bbgrap.graph.lower import RECURRENT
from bbgrap.shapemap import Interval, ShapeMap
from bbgrap.tdl.analysis import flops
from bbgrap.tdl.language import Description, Descriptions
from bbgrap.tdl.operators.estimators import ESTIMATORS
from bbgrap.tdl.operators.experts import EXPERTS, FIRST_WEIGHTS, SCORES
from bbgrap.work import NO_WORK, Work

FEW_ROWS = 8
"""Products with up to so many rows count as `matvec`: chosen."""

FEW_CHANNELS = 4
"""Convolutions with up to so many input channels per group run at another speed: the first layer, or depthwise ones."""


class WorkCounter:
    """Counts the work of pieces of a graph's nodes; what does not depend on the piece is looked up once per node."""

    def __init__(self, graph: Graph, descriptions: Descriptions) -> None:
        self._graph = graph
        self._descriptions = descriptions
        self._sites: dict[str, _Site] = {}

    def work(
        self,
        node: Node,
        reads: Sequence[ShapeMap | None],
        writes: Sequence[ShapeMap],
        reduction: Mapping[str, Interval] | None = None,
    ) -> Work:
        """Return the work of a piece.

        Args:
            node: of the graph.
            reads: per operand, the region that the piece reads (`input_regions`).
            writes: per output in use, the region that it makes (`output_regions`).
            reduction: ranges of reduction indices that are split.
        """
        site = self._sites.get(node.name)
        if site is None:
            site = self._sites[node.name] = _site(self._graph, node)
        if site.kind is None or writes[0].is_empty:
            return NO_WORK
        description = self._descriptions[node.name]
        operations = operations_of(node, description, writes[0], reduction)
        sizes = [0 if read is None or not bytes_ else read.size * bytes_ for read, bytes_ in zip(reads, site.bytes_read, strict=False)]
        if node.op in LOOKUPS:  # of a table only what is looked up is read
            sizes[0] = min(sizes[0], writes[0].size * site.bytes_made[0])
        if site.each:
            operations = int(site.each * (reads[0].size if node.op.startswith("Reduce") and reads[0] is not None else writes[0].size))
        if node.op in RECURRENT:  # every step reads the weights of the one before
            sizes[_STATE_WEIGHTS] *= reads[0].shape[0] if reads[0] is not None else 1
        weights = sum(size for size, is_weight in zip(sizes, site.weights, strict=False) if is_weight)
        maps = sum(sizes) - weights + sum(of.size * bytes_ for of, bytes_ in zip(writes, site.bytes_made, strict=True))
        asking = reads[SCORES] if site.asked else None
        share = 1.0 if asking is None else min(1.0, asking.size * site.asked)
        return Work(site.kind, operations, int(weights * share), maps)


@dataclass(frozen=True, slots=True)
class _Site:
    """What the work of a node's pieces has in common; no kind: it costs nothing.

    `bytes_read` are per element of every operand (0 where reading is free), `bytes_made` of every output in use, `each` the operations
    of an element where they are done one by one (else 0), `asked` which share of the experts an element of the second operand asks
    (else 0): so much of their weights is read.
    """

    kind: str | None
    bytes_read: tuple[int, ...]
    weights: tuple[bool, ...]
    bytes_made: tuple[int, ...]
    each: float = 0.0
    asked: float = 0.0


def _site(graph: Graph, node: Node) -> _Site:
    each = operations_of_each(graph, node)
    kind = None if node.op in _FREE or is_fused(graph, node) else "scalar" if each else kind_of(graph, node)
    read = tuple(graph.types[name].dtype.itemsize if name and not _is_in_place(graph, node, name) else 0 for name in node.inputs)
    weights = tuple(name in graph.weights for name in node.inputs)
    made = tuple(graph.types[name].dtype.itemsize for name in node.outputs if name)
    return _Site(kind, read, weights, made, each, _share_asked(graph, node))


def _share_asked(graph: Graph, node: Node) -> float:
    """Return which share of its experts a score asks, or the number of one; 0 if there are none."""
    weights = graph.types[node.inputs[FIRST_WEIGHTS]].shape if node.op in EXPERTS else None
    if not weights or not weights[0]:
        return 0.0
    each = node.attributes.get("k", 1) if node.op != CHOSEN_EXPERTS else weights[0]
    return each / weights[0] ** 2 if isinstance(each, int) else 0.0


def operations_of_each(graph: Graph, node: Node) -> float:
    """Return how many operations an element takes, of the kind `scalar`, where onnxruntime computes elements one by one; else 0.

    Of a reduction these are the elements that it reads, of all others those that it makes.
    """
    match node.op:
        case "Resize" | "Upsample":
            mode = node.attributes.get("mode", "nearest")
            return _RESIZED.get(str(mode), 0.0)
        case "AveragePool":
            window = node.attributes.get("kernel_shape", ())
            return _AVERAGED * prod(s for s in window if isinstance(s, int)) if isinstance(window, tuple) and len(window) > 2 else 0.0
        case "Pow":
            exponent = graph.constant(node.inputs[1])
            return 0.0 if exponent is not None and exponent.size == 1 and exponent.item() in (2, 3) else _ONE_BY_ONE["Pow"]
        case "Conv" if len(shape := _kernel_of(graph, node)) not in (0, 4) and _has_few_channels(node, shape):
            return _CONVOLVED * prod(shape[1:])
        case op:
            return _ONE_BY_ONE.get(op, 0.0)


def operations_of(node: Node, description: Description | None, region: ShapeMap, reduction: Mapping[str, Interval] | None = None) -> int:
    """Return the floating point operations of a region of a node's first output; none of what is not described.

    A lookup in a table has none, though it is described as a sum. Of the steps of a transposed convolution only every stride-th one
    meets an element.
    """
    if description is None or node.op in LOOKUPS:
        return 0
    found = flops(description, region, reduction)
    strides = node.attributes.get("strides", ()) if node.op == "ConvTranspose" else ()
    return found // prod(s for s in strides if isinstance(s, int)) if isinstance(strides, tuple) else found


def is_fused(graph: Graph, node: Node) -> bool:
    """Tell whether a node is an activation that the node before it does on the way."""
    producer = graph.producers.get(node.inputs[0]) if node.inputs else None
    return (
        node.op in _ACTIVATIONS
        and producer is not None
        and (producer.op in _PRODUCTS or producer.op in _CONVOLUTIONS or producer.op == "Add")
        and len(graph.consumers.get(node.inputs[0], ())) == 1
    )


def _is_in_place(graph: Graph, node: Node, name: str) -> bool:
    """Tell whether a sum's operand is added by the convolution that makes it."""
    producer = graph.producers.get(name)
    first = next((i for i in node.inputs if i in graph.producers and graph.producers[i].op in _CONVOLUTIONS), None)
    return node.op == "Add" and producer is not None and name == first and len(graph.consumers.get(name, ())) == 1


_ONE_BY_ONE: Mapping[str, float] = {
    op: operations
    for operations, ops in {
        3.0: ("Sin", "Cos", "Elu", "Selu", "Celu"),
        4.0: ("Log",),
        8.0: ("Pow",),
        9.0: ("ReduceLogSumExp",),
        12.0: ("Cosh", "Mod"),
        18.0: ("Softplus", "Tan", "Sinh"),
        30.0: ("Acosh", "Asinh", "Atanh"),
        40.0: ("LRN",),
    }.items()
    for op in ops
}
"""Operations of an element, as `scalar` counts them. Measured with onnxruntime 1.32 on an Intel Xeon, 1.4 of them a nanosecond."""
_RESIZED: Mapping[str, float] = {"linear": 3.0, "cubic": 108.0}
_AVERAGED = 2.0
"""Of an element of a window in space; windows in planes are blocked, and as fast as other pools."""
_CONVOLVED = 0.4
"""Of an element of a window of few channels, if it is not in a plane: one operation for five floating point ones."""
LOOKUPS = frozenset({"Gather", "GatherBlockQuantized"})
"""Operators that look rows of a table up."""
_STATE_WEIGHTS = 2
"""Which operand of a recurrent layer has the weights that meet its state."""
_ACTIVATIONS = frozenset({"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid"})
_CONVOLUTIONS = frozenset({"Conv", "FusedConv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv", "NhwcConv"})
_CONVOLUTIONS_OF_BYTES = frozenset({"ConvInteger", "QLinearConv"})
_PRODUCTS_OF_BYTES = frozenset(
    {"MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul", "DynamicQuantizeMatMul", "QGemm"} | {"DynamicQuantizeLSTM"}
)
_PRODUCTS = _PRODUCTS_OF_BYTES | frozenset(
    {
        "Gemm",
        "MatMul",
        "FusedMatMul",
        "FusedGemm",
        "TransposeMatMul",
        "MatMulBnb4",
        "MatMulNBits",
        "Einsum",
        "CDist",
        "Attention",
        "MultiHeadAttention",
        "GroupQueryAttention",
    }
    | {"LinearAttention"}
    | EXPERTS
    | RECURRENT
)
_OF_BYTES = frozenset({"QLinearAdd", "QLinearMul", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QLinearConcat"})
_TRANSFORMS = frozenset({"DFT", "STFT"})
_POOLS = frozenset(
    {"MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"}
    | {"QLinearAveragePool", "QLinearGlobalAveragePool", "NhwcMaxPool"}
)
_NORMALIZE = frozenset(
    {"Softmax", "LogSoftmax", "LayerNormalization", "SkipLayerNormalization", "InstanceNormalization"}
    | {"RMSNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "MeanVarianceNormalization"}
    | {"LpNormalization", "GatedRMSNorm"}
)
_MOVES = frozenset(
    {"Transpose", "Concat", "Split", "Slice", "Pad", "Resize", "Upsample", "Gather", "GatherND", "Expand", "Tile", "DepthToSpace"}
    | {"SpaceToDepth", "ReverseSequence", "Where", "Cast"}
)
_KINDS = (
    (_TRANSFORMS, "transform"),
    (ESTIMATORS, "scalar"),
    (_POOLS, "pool"),
    (_NORMALIZE, "normalize"),
    (_MOVES, "move"),
    (_OF_BYTES, "elementwise_int8"),
)
_FREE = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Constant", "Dropout"})


def kind_of(graph: Graph, node: Node) -> str:
    """Return the kind of work that a node is."""
    if node.op in _CONVOLUTIONS:
        return _kind_of_convolution(graph, node)
    if node.op in _PRODUCTS:
        return _kind_of_product(graph, node)
    for ops, kind in _KINDS:
        if node.op in ops:
            return kind
    return "pool" if node.op.startswith("Reduce") else "elementwise"


def _kind_of_convolution(graph: Graph, node: Node) -> str:
    shape = _kernel_of(graph, node)
    if len(shape) < 3 or node.op == "ConvTranspose":
        return "conv"
    if _has_few_channels(node, shape):
        return "depthwise_int8" if node.op in _CONVOLUTIONS_OF_BYTES else "depthwise"
    if node.op in _CONVOLUTIONS_OF_BYTES:
        return "conv_int8"
    if shape[1] < FEW_CHANNELS:
        return "conv"
    return {1: "conv1x1", 3: "conv3x3"}.get(shape[-1], "conv") if len(set(shape[2:])) == 1 else "conv"


def _kernel_of(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return the shape of a convolution's weights [M, C / groups, ...]; none if it is not known."""
    operand = 3 if node.op == "QLinearConv" else 1
    weight = graph.types.get(node.inputs[operand]) if len(node.inputs) > operand else None
    return () if weight is None or weight.shape is None else weight.shape


def _has_few_channels(node: Node, kernel: tuple[int, ...]) -> bool:
    """Tell whether each of several groups of a convolution has few channels."""
    group = node.attributes.get("group", 1)
    return isinstance(group, int) and group > 1 and kernel[1] <= FEW_CHANNELS


def _kind_of_product(graph: Graph, node: Node) -> str:
    if node.op in _PRODUCTS_OF_BYTES:
        return "matmul_int8"
    made = graph.types[node.first_output].shape or (1, 1)
    rows = made[-2] if node.op in RECURRENT else prod(made[:-1])
    return "matvec" if rows <= FEW_ROWS else "matmul"
