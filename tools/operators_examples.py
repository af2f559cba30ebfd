"""One representative node per operator, for the page of operators: extents are small, distinct where that helps, and mean nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bbgrap.graph.divided_experts import CHOSEN_EXPERTS, OWN_DOMAIN
from bbgrap.graph.types import Attribute
from bbgrap.tdl.operators import elementwise, estimators, quantized, reductions

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A node: names and extents of its output's axes, its inputs (None: absent), constants by position."""

    axes: str
    output: Shape
    inputs: tuple[Shape | None, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    constants: Mapping[int, object] = field(default_factory=dict)


MAP = (2, 8, 16, 16)
ROWS = (2, 12, 8)
NCHW, BSE = "n c y x", "b s e"
S: Shape = ()
WINDOW: dict[str, Attribute] = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
QKV = ((2, 4, 12, 8),) * 3
PARAMETERS = (S, S)
TABLE = (12, 6)


def _like(axes: str, shape: Shape, *others: Shape | None, **attributes: Attribute) -> Example:
    """Return a node whose output has the shape of its first input."""
    return Example(axes, shape, (shape, *others), attributes)


_UNARY = _like(NCHW, MAP)
_BINARY = _like(NCHW, MAP, MAP)
_WEIGHTS = (8, 8, 3, 3)
_PRODUCT = Example("i j", (12, 8), ((12, 16), (16, 8)))
_SLICES = {1: [2], 2: [10], 3: [2], 4: [1]}
_RECURRENT = Example("t d b h", (12, 2, 4, 8), ((12, 4, 6), (2, 32, 6), (2, 32, 8)), {"hidden_size": 8, "direction": "bidirectional"})

STANDARD: dict[str, Example] = {
    **dict.fromkeys((*elementwise.UNARY, "Clip"), _UNARY),
    **dict.fromkeys(elementwise.BROADCASTING, _BINARY),
    **{op: Example("n 1 y x", (2, 1, 16, 16), (MAP, (1,)), {}, {1: [1]}) for op in reductions.KINDS},
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _like(BSE, ROWS)),
    "AffineGrid": Example("n y x e", (2, 16, 16, 2), ((2, 2, 3), (4,)), {}, {1: [2, 1, 16, 16]}),
    **dict.fromkeys(("ArgMax", "ArgMin"), Example("n 1 y x", (2, 1, 16, 16), (MAP,), {"axis": 1})),
    "Attention": Example("b h s e", QKV[0], QKV),
    "BatchNormalization": _like(NCHW, MAP, *((8,),) * 4),
    "Col2Im": Example(NCHW, MAP, ((2, 32, 64), (2,), (2,)), {"strides": (2, 2)}, {1: [16, 16], 2: [2, 2]}),
    "Concat": Example(NCHW, MAP, ((2, 3, 16, 16), (2, 5, 16, 16)), {"axis": 1}),
    "ConstantOfShape": Example(NCHW, MAP, ((4,),), {}, {0: [2, 8, 16, 16]}),
    "Conv": Example(NCHW, MAP, (MAP, _WEIGHTS, (8,)), WINDOW),
    "ConvInteger": Example(NCHW, MAP, (MAP, _WEIGHTS), WINDOW),
    "ConvTranspose": Example(NCHW, (2, 8, 33, 33), (MAP, _WEIGHTS), {"kernel_shape": (3, 3), "strides": (2, 2)}),
    **dict.fromkeys(("CumSum", "CumProd"), Example("a j", (6, 8), ((6, 8), S), {}, {1: 1})),
    "DFT": Example("b f 2", (4, 16, 2), ((4, 16, 1), None, S), {}, {2: 1}),
    "DeformConv": Example(NCHW, MAP, ((2, 8, 18, 18), _WEIGHTS, (2, 18, 16, 16)), {"kernel_shape": (3, 3)}),
    "DepthToSpace": Example(NCHW, MAP, ((2, 32, 8, 8),), {"blocksize": 2}),
    "Det": Example("a b", (2, 4), ((2, 4, 3, 3),)),
    "DynamicQuantizeLinear": _like("i j", (12, 8)),
    "Einsum": Example("b i j", (2, 12, 8), ((2, 12, 16), (2, 16, 8)), {"equation": "bik,bkj->bij"}),
    "Expand": Example("a b", (6, 8), ((1, 8), (2,)), {}, {1: [6, 8]}),
    "EyeLike": _like("i j", (8, 8)),
    "Flatten": Example("a b", (2, 2048), (MAP,)),
    "Gather": Example("j e", (12, 8), ((100, 8), (12,))),
    "GatherElements": _like("j e", (12, 8), (12, 8)),
    "GatherND": Example("j e", (12, 8), ((20, 8), (12, 1))),
    "Gemm": _PRODUCT,
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), Example("n c 1 1", (2, 8, 1, 1), (MAP,))),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), Example(NCHW, MAP, (MAP,), WINDOW)),
    "GridSample": Example(NCHW, MAP, ((2, 8, 10, 10), (2, 16, 16, 2))),
    "InstanceNormalization": _like(NCHW, MAP, (8,), (8,)),
    "LRN": _like(NCHW, MAP, size=3),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _RECURRENT),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _like(BSE, ROWS, (8,))),
    "LpNormalization": _like(BSE, ROWS),
    "MatMul": _PRODUCT,
    "MatMulInteger": _PRODUCT,
    "MaxRoiPool": Example("r c y x", (5, 8, 3, 3), (MAP, (5, 5))),
    "MeanVarianceNormalization": _like(NCHW, MAP),
    "OneHot": Example("a d", (6, 5), ((6,), S, (2,)), {}, {1: 5}),
    "Pad": Example(NCHW, (2, 8, 18, 18), (MAP, (8,)), {}, {1: [0, 0, 1, 1, 0, 0, 1, 1]}),
    "QLinearConv": Example(NCHW, MAP, (MAP, *PARAMETERS, _WEIGHTS, *PARAMETERS, *PARAMETERS), WINDOW),
    "QLinearMatMul": Example("i j", (12, 8), ((12, 16), *PARAMETERS, (16, 8), *PARAMETERS, *PARAMETERS)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _like(NCHW, MAP, (8,), (8,), axis=1)),
    "Range": Example("i", (9,), (S, S, S), {}, {0: 0, 1: 9, 2: 1}),
    "Reshape": Example("a b", (2, 2048), (MAP, (2,)), {}, {1: [2, 2048]}),
    "Resize": Example(NCHW, (2, 8, 32, 32), (MAP, None, (4,)), {"mode": "linear"}, {2: [1.0, 1.0, 2.0, 2.0]}),
    "ReverseSequence": _like("t b e", (12, 4, 8), (4,)),
    "RoiAlign": Example("r c y x", (5, 8, 3, 3), (MAP, (5, 4), (5,))),
    "RotaryEmbedding": _like("b h s e", QKV[0], (2, 12, 4), (2, 12, 4)),
    "STFT": Example("b f w 2", (4, 13, 9, 2), ((4, 64, 1), S, (16,)), {}, {1: 4}),
    "ScatterElements": _like("j e", (12, 8), (5, 8), (5, 8)),
    "ScatterND": _like("j e", (12, 8), (5, 1), (5, 8)),
    "Shape": Example("i", (4,), (MAP,)),
    "Slice": Example(NCHW, (2, 8, 8, 16), (MAP, (1,), (1,), (1,), (1,)), {}, _SLICES),
    "SpaceToDepth": Example("n k y x", (2, 32, 8, 8), (MAP,), {"blocksize": 2}),
    "Squeeze": Example("a b", (6, 8), ((6, 1, 8), (1,)), {}, {1: [1]}),
    "TensorScatter": _like("b s e", ROWS, (2, 3, 8), (2,)),
    "Tile": Example("a b", (6, 16), ((6, 8), (2,)), {}, {1: [1, 2]}),
    "TopK": Example("b j", (12, 4), ((12, 64), (1,)), {}, {1: [4]}),
    "Transpose": Example("a b", (8, 6), ((6, 8),)),
    "Trilu": _like("i j", (8, 8)),
    "Unsqueeze": Example("a 1 b", (6, 1, 8), ((6, 8), (1,)), {}, {1: [1]}),
}

MICROSOFT: dict[str, Example] = {
    "Attention": Example(BSE, ROWS, (ROWS, (8, 24), (24,)), {"num_heads": 2}),
    **dict.fromkeys(("BiasGelu", "FastGelu"), _like(BSE, ROWS, (8,))),
    **dict.fromkeys(("Gelu", "QuickGelu"), _like(BSE, ROWS)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), STANDARD["QuantizeLinear"]),
    "CDist": Example("n m", (12, 8), (TABLE, (8, 6))),
    "CausalConvWithState": _like("b c t", (2, 8, 12), (8, 1, 4)),
    "LinearAttention": _like(BSE, ROWS, ROWS, ROWS, None, (2, 12, 2), (2, 12, 2), q_num_heads=2, kv_num_heads=2),
    "GatedAdd": _like(BSE, ROWS, ROWS, (2, 12, 1)),
    "EmbedLayerNormalization": Example(BSE, ROWS, ((2, 12), (2, 12), (100, 8), (12, 8), (2, 8), (8,), (8,), (2, 12))),
    "GatedRMSNorm": _like(BSE, ROWS, (4,), ROWS),
    "GatherBlockQuantized": Example("j e", (12, 64), ((100, 64), (12,), (100, 2)), {"bits": 8, "block_size": 32}, {0: [[0] * 64] * 100}),
    "LinearAttentionGate": _like("b t h", (2, 12, 4), (4,), (4,)),
    "MRotaryEmbedding": _like("b h s e", QKV[0], (3, 2, 12), (16, 4), (16, 4)),
    "MoE": _like("n e", (12, 8), (12, 4), (4, 16, 8), None, (4, 8, 16), k=2),
    "QMoE": _like("n e", (12, 8), (12, 4), (4, 16, 8), (4, 16), None, (4, 8, 16), (4, 8), k=2),
    "DynamicQuantizeLSTM": Example("t d b h", (12, 2, 4, 8), ((12, 4, 6), (2, 6, 32), (2, 8, 32)), {"direction": "bidirectional"}),
    "DynamicQuantizeMatMul": Example("i j", (12, 8), ((12, 16), (16, 8), S)),
    "FusedConv": STANDARD["Conv"],
    "GroupQueryAttention": Example(BSE, ROWS, (ROWS, *((2, 12, 4),) * 2, None, None, (2,), S), {"num_heads": 4, "kv_num_heads": 2}),
    **dict.fromkeys(("FusedGemm", "FusedMatMul", "TransposeMatMul"), _PRODUCT),
    "MatMulIntegerToFloat": Example("i j", (12, 8), ((12, 16), (16, 8), S, S)),
    "NhwcMaxPool": Example("n y x c", (2, 16, 16, 8), ((2, 16, 16, 8),), WINDOW),
    "MatMulBnb4": Example("i j", (12, 8), ((12, 64), (256,), (16,)), {"N": 8, "K": 64, "block_size": 32}),
    "MatMulNBits": Example("i j", (12, 8), ((12, 64), (8, 2, 16), (8, 2)), {"N": 8, "K": 64, "bits": 4, "block_size": 32}),
    "MultiHeadAttention": Example(BSE, ROWS, (ROWS,) * 3, {"num_heads": 2}),
    "QGemm": Example("i j", (12, 8), ((12, 16), *PARAMETERS, (16, 8), *PARAMETERS, None, *PARAMETERS)),
    "QLinearAveragePool": Example(NCHW, MAP, (MAP, *PARAMETERS, *PARAMETERS), WINDOW),
    "QLinearConcat": Example(NCHW, MAP, (*PARAMETERS, (2, 3, 16, 16), *PARAMETERS, (2, 5, 16, 16), *PARAMETERS), {"axis": 1}),
    "QLinearConv": STANDARD["QLinearConv"],
    "QLinearGlobalAveragePool": Example("n c 1 1", (2, 8, 1, 1), (MAP, *PARAMETERS, *PARAMETERS)),
    "QLinearSoftmax": _like(BSE, ROWS, *PARAMETERS, *PARAMETERS, opset=13),
    **{op: _like(NCHW, MAP, *PARAMETERS, *PARAMETERS) for op in quantized.QLINEAR_ELEMENTWISE},
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), _like(NCHW, MAP, *PARAMETERS, MAP, *PARAMETERS, *PARAMETERS)),
    "QLinearWhere": Example(NCHW, MAP, (MAP, MAP, *PARAMETERS, MAP, *PARAMETERS, *PARAMETERS)),
    "RotaryEmbedding": _like("b h s e", QKV[0], (2, 12), (16, 4), (16, 4)),
    "SkipLayerNormalization": _like(BSE, ROWS, ROWS, (8,), (8,)),
    "SkipSimplifiedLayerNormalization": _like(BSE, ROWS, ROWS, (8,)),
}

ESTIMATORS: dict[str, Example] = {
    **dict.fromkeys(estimators.ESTIMATORS, Example("n e", (12, 4), (TABLE,))),
    **dict.fromkeys(("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"), Example("n", (12,), (TABLE,))),
    **dict.fromkeys(("Binarizer", "CategoryMapper", "LabelEncoder", "Normalizer"), _like("n c", TABLE)),
    "Imputer": _like("n c", TABLE, imputed_value_floats=(0.0,) * 6),
    "Scaler": _like("n c", TABLE, offset=(0.0,) * 6, scale=(1.0,) * 6),
    "ArrayFeatureExtractor": Example("n k", (12, 3), (TABLE, (3,)), {}, {1: [0, 2, 5]}),
    "FeatureVectorizer": Example("n c", (12, 9), (TABLE, (12, 3)), {"inputdimensions": (6, 3)}),
    "OneHotEncoder": Example("n k", (12, 3), ((12,),), {"cats_int64s": (0, 1, 2)}),
}

EXAMPLES = {("", op): example for op, example in STANDARD.items()} | {("com.microsoft", op): e for op, e in MICROSOFT.items()}
EXAMPLES |= {(OWN_DOMAIN, CHOSEN_EXPERTS): Example("n j e", (12, 2, 8), ((12, 8), (12, 2), (4, 16, 8), None, (4, 8, 16)), {"k": 1})}
EXAMPLES |= {(estimators.DOMAIN, op): example for op, example in ESTIMATORS.items()}
