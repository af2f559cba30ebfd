"""Random calls of quantized operators and of onnxruntime's fused products."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from hypothesis import strategies as st

from bbgrap.graph.types import Array, Attribute
from tests.bbgrap.tdl.layer_cases import floats
from tests.bbgrap.tdl.other_cases import broadcast, gemm
from tests.bbgrap.tdl.verifier import Case
from tests.bbgrap.tdl.window_cases import Draw, conv, pool, random_of, whole_numbers
from tests.strategies import shapes

MICROSOFT = "com.microsoft"
Cases = dict[str, Callable[[], st.SearchStrategy[Case]]]


def _bytes(draw: Draw, *shape: int, dtype: type = np.uint8) -> Array:
    return random_of(draw).integers(0, 100, shape).astype(dtype)


def _scale(value: float = 0.5) -> Array:
    return np.array(value, np.float32)


def _zero(value: int = 3, dtype: type = np.uint8) -> Array:
    return np.array(value, dtype)


def _scales(draw: Draw, count: int) -> tuple[Array, Array]:
    """Return scale and zero point, of the tensor or per channel."""
    if draw(st.booleans()):
        return _scale(), _zero()
    return random_of(draw).choice([0.25, 0.5, 1.0], count).astype(np.float32), _bytes(draw, count)


@st.composite
def _quantization(draw: Draw, op: str, domain: str = "") -> Case:
    shape = draw(shapes(least=2, most=3, extent=4))
    axis = draw(st.integers(0, len(shape) - 1))
    dequantize = op == "DequantizeLinear"
    x = _bytes(draw, *shape) if dequantize else whole_numbers(random_of(draw), *shape, low=0, high=90)
    attributes: dict[str, Attribute] = {"axis": axis}
    if not domain and draw(st.integers(0, 2)) == 0:
        size = draw(st.integers(1, 3))
        blocks = tuple(-(-e // size) if a == axis else e for a, e in enumerate(shape))
        scales: tuple[Array, Array] = (random_of(draw).choice([0.5, 1.0], blocks).astype(np.float32), _bytes(draw, *blocks))
        attributes["block_size"] = size
    else:
        scales = _scales(draw, shape[axis])
    return Case(op, (x, *scales), attributes, opset=21, exact=False, loose=None, domain=domain)


@st.composite
def dynamic_quantization(draw: Draw) -> Case:
    """DynamicQuantizeLinear: one piece, which is the whole."""
    shape = draw(shapes(least=1, most=3, extent=4))
    x = whole_numbers(random_of(draw), *shape, low=-90, high=90)
    return Case("DynamicQuantizeLinear", (x,), loose=None, further=(1, 2))


@st.composite
def conv_integer(draw: Draw) -> Case:
    """ConvInteger: what Conv does, on bytes."""
    case = draw(conv())
    x, w = (np.asarray(a).astype(np.uint8) for a in case.operands[:2])
    return Case("ConvInteger", (x, w, _zero()), case.attributes, loose=None, several_ranges=case.several_ranges)


@st.composite
def _qlinear_conv(draw: Draw, domain: str = "") -> Case:
    case = draw(conv())
    x, w = (np.asarray(a).astype(np.uint8) for a in case.operands[:2])
    scale, zero = _scales(draw, len(w))
    if zero.ndim:
        zero = np.full(len(w), 3, np.uint8)  # onnxruntime wants equal ones
    bias = (np.asarray(case.operands[2]).astype(np.int32),) if len(case.operands) > 2 else ()
    operands = (x, _scale(), _zero(), w, scale, zero, _scale(9), _zero(), *bias)
    parameters = frozenset((1, 2, 4, 5, 6, 7))
    found = Case("QLinearConv", operands, case.attributes, parameters, loose=None, several_ranges=case.several_ranges, domain=domain)
    return _channels_last(draw, found) if domain else found


def _channels_last(draw: Draw, case: Case, *, always: bool = False) -> Case:
    """Return a call on maps of four axes with its channels behind rows and columns, or as it is."""
    x = case.operands[0]
    assert x is not None
    if x.ndim != 4 or not (always or draw(st.booleans())):
        return case
    operands = (np.ascontiguousarray(np.moveaxis(x, 1, -1)), *case.operands[1:])
    several = None if case.several_ranges is None else frozenset(3 if axis == 1 else axis for axis in case.several_ranges)
    attributes = {**case.attributes, **({} if case.op.startswith("Nhwc") else {"channels_last": 1})}
    return replace(case, operands=operands, attributes=attributes, several_ranges=several)


@st.composite
def nhwc_max_pool(draw: Draw) -> Case:
    """NhwcMaxPool: what MaxPool does, on bytes with their channels last."""
    case = draw(pool("MaxPool").filter(lambda c: np.ndim(c.operands[0]) == 4))
    data = np.asarray(case.operands[0]).astype(np.uint8)
    of_bytes = Case("NhwcMaxPool", (data,), case.attributes, loose=None, several_ranges=case.several_ranges, domain=MICROSOFT)
    return _channels_last(draw, of_bytes, always=True)


@st.composite
def fused_conv(draw: Draw) -> Case:
    """FusedConv: a Conv with an activation."""
    case = draw(conv())
    attributes = {**case.attributes, "activation": "Relu"}
    return Case("FusedConv", case.operands, attributes, loose=None, several_ranges=case.several_ranges, domain=MICROSOFT)


def _matrices(draw: Draw) -> tuple[Array, Array]:
    m, k, n = draw(st.tuples(*[st.integers(1, 5)] * 3))
    batch = draw(shapes(most=2, extent=3))
    return _bytes(draw, *batch, m, k), _bytes(draw, k, n)


@st.composite
def matmul_integer(draw: Draw) -> Case:
    """MatMulInteger with and without zero points, of b per column too."""
    a, b = _matrices(draw)
    zeros = ((), (_zero(),), (_zero(), _zero()), (_zero(), _bytes(draw, b.shape[1])))
    return Case("MatMulInteger", (a, b, *draw(st.sampled_from(zeros))), loose=None)


@st.composite
def qlinear_matmul(draw: Draw) -> Case:
    """QLinearMatMul, b per tensor or per column."""
    a, b = _matrices(draw)
    scale, zero = _scales(draw, b.shape[1])
    operands = (a, _scale(), _zero(), b, scale, zero, _scale(40), _zero())
    return Case("QLinearMatMul", operands, {}, frozenset((1, 2, 4, 5, 6, 7)), loose=None)


@st.composite
def matmul_integer_to_float(draw: Draw) -> Case:
    """MatMulIntegerToFloat, b per tensor or per column."""
    a, b = _matrices(draw)
    scale, zero = _scales(draw, b.shape[1])
    bias = (whole_numbers(random_of(draw), b.shape[1]),) if draw(st.booleans()) else ()
    operands = (a, b, _scale(), scale, _zero(), zero, *bias)
    return Case("MatMulIntegerToFloat", operands, {}, exact=False, loose=None, domain=MICROSOFT)


@st.composite
def dynamic_quantize_matmul(draw: Draw) -> Case:
    """DynamicQuantizeMatMul: rows stay whole."""
    a, b = _matrices(draw)
    scale, zero = _scales(draw, b.shape[1])
    operands = (a.astype(np.float32), b, scale, zero)
    return Case("DynamicQuantizeMatMul", operands, {}, exact=False, loose=None, domain=MICROSOFT)


@st.composite
def dynamic_quantize_lstm(draw: Draw) -> Case:
    """DynamicQuantizeLSTM of one direction or both: the batch stays whole."""
    length, batch, size, hidden = draw(st.tuples(*[st.integers(1, 4)] * 4))
    direction = draw(st.sampled_from(("forward", "reverse", "bidirectional")))
    ways, random = 1 + (direction == "bidirectional"), random_of(draw)
    columns = (ways, 4 * hidden) if draw(st.booleans()) else (ways,)
    weights = [random.integers(-127, 128, (ways, rows, 4 * hidden)).astype(np.int8) for rows in (size, hidden)]
    scales = [random.uniform(0.005, 0.02, columns).astype(np.float32) for _ in range(2)]
    zero = np.zeros(columns, np.int8)
    bias = floats(draw, ways, 8 * hidden) if draw(st.booleans()) else None
    lengths = random.integers(1, length + 1, batch).astype(np.int32) if draw(st.booleans()) else None
    states = [floats(draw, ways, batch, hidden) if draw(st.booleans()) else None for _ in range(2)]
    operands = (floats(draw, length, batch, size), *weights, bias, lengths, *states, None, scales[0], zero, scales[1], zero)
    attributes: dict[str, Attribute] = {"hidden_size": hidden, "direction": direction}
    options = {"loose": None, "domain": MICROSOFT, "position": draw(st.integers(0, 2)), "below": {4: length}}
    return Case("DynamicQuantizeLSTM", operands, attributes, exact=False, **options)


@st.composite
def qgemm(draw: Draw) -> Case:
    """QGemm with transposed operands and a bias."""
    m, k, n = draw(st.tuples(*[st.integers(1, 5)] * 3))
    swap_a, swap_b = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    a, b = _bytes(draw, *((k, m) if swap_a else (m, k))), _bytes(draw, *((n, k) if swap_b else (k, n)))
    scale, zero = _scales(draw, n)
    bias = _bytes(draw, n, dtype=np.int32) if draw(st.booleans()) else None
    operands = (a, _scale(), _zero(), b, scale, zero, bias, _scale(40), _zero())
    attributes: dict[str, Attribute] = {"transA": swap_a, "transB": swap_b}
    return Case("QGemm", operands, attributes, frozenset((1, 2, 4, 5, 7, 8)), loose=None, domain=MICROSOFT)


@st.composite
def matmul_nbits(draw: Draw) -> Case:
    """MatMulNBits of 4 bits, scales in rows or flat, with and without zero points, of what is read as floats or as bytes."""
    rows, columns, blocks = draw(st.tuples(st.integers(1, 4), st.integers(1, 11), st.integers(1, 4)))
    size, random = draw(st.sampled_from((16, 64))), random_of(draw)
    batch = draw(st.integers(1, 2)) if rows % 2 == 0 else 1
    leading = draw(st.sampled_from(((batch, rows), (rows,), ())))
    a = random.uniform(-1, 1, (*leading, blocks * size)).astype(np.float32)
    b = random.integers(0, 256, (columns, blocks, size // 2)).astype(np.uint8)
    flat = draw(st.booleans())
    scales = random.uniform(0.005, 0.01, (columns * blocks,) if flat else (columns, blocks)).astype(np.float32)
    packed = -(-blocks // 2)
    zeros = random.integers(0, 256, (columns * packed,) if flat else (columns, packed)).astype(np.uint8)
    operands = (a, b, scales, zeros) if draw(st.booleans()) else (a, b, scales)
    attributes: dict[str, Attribute] = {"N": columns, "K": blocks * size, "bits": 4, "block_size": size}
    in_bytes = draw(st.booleans())  # then what follows may round, and bits count
    attributes["accuracy_level"] = 4 if in_bytes else 0
    parameters = frozenset((1, 2, 3))
    several = frozenset((0,)) if len(leading) == 2 else frozenset[int]()
    return Case("MatMulNBits", operands, attributes, parameters, exact=in_bytes, loose=None, several_ranges=several, domain=MICROSOFT)


@st.composite
def matmul_bnb4(draw: Draw) -> Case:
    """MatMulBnb4 whose blocks end with each column, or go on."""
    rows, columns, blocks = draw(st.tuples(st.integers(1, 4), st.integers(1, 11), st.integers(1, 4)))
    random, depth = random_of(draw), 16 * blocks if draw(st.booleans()) else 16 * blocks + 8
    leading = draw(st.sampled_from(((2, rows), (rows,))))
    a = random.uniform(-1, 1, (*leading, depth)).astype(np.float32)
    b = random.integers(0, 256, (columns * depth // 2,)).astype(np.uint8)
    scales = random.uniform(0.005, 0.01, (-(-columns * depth // 16),)).astype(np.float32)
    attributes: dict[str, Attribute] = {"N": columns, "K": depth, "block_size": 16, "quant_type": draw(st.integers(0, 1))}
    return Case("MatMulBnb4", (a, b, scales), attributes, frozenset((1, 2)), exact=False, loose=None, domain=MICROSOFT)


@st.composite
def _qlinear_elementwise(draw: Draw, op: str) -> Case:
    shape = draw(shapes(least=1, most=3, extent=4))
    a = (_bytes(draw, *shape), _scale(), _zero())
    attributes: dict[str, Attribute] = {"alpha": 0.5} if op == "QLinearLeakyRelu" else {}
    if op in ("QLinearAdd", "QLinearMul"):
        b = (_bytes(draw, *broadcast(draw, shape)), _scale(0.25), _zero())
        operands: tuple[Array, ...] = (*a, *b, _scale(2), _zero())
    elif op == "QLinearWhere":
        chosen = random_of(draw).integers(0, 2, broadcast(draw, shape)).astype(np.bool_)
        operands = (chosen, *a, _bytes(draw, *broadcast(draw, shape)), _scale(0.25), _zero(), _scale(2), _zero())
    else:
        operands = (*a, _scale(), _zero())
    data = {k for k, array in enumerate(operands) if array.ndim}
    return Case(op, operands, attributes, frozenset(range(len(operands))) - data, loose=None, domain=MICROSOFT)


@st.composite
def qlinear_concat(draw: Draw) -> Case:
    """QLinearConcat of 1 to 3 operands, each with its own scale."""
    shape = draw(shapes(least=1, most=3, extent=4))
    axis = draw(st.integers(0, len(shape) - 1))
    triples: list[Array] = []
    for k in range(draw(st.integers(1, 3))):
        own = tuple(draw(st.integers(1, 3)) if a == axis else e for a, e in enumerate(shape))
        triples += [_bytes(draw, *own), _scale(0.5 * (k + 1)), _zero(k)]
    operands = (_scale(), _zero(), *triples)
    parameters = frozenset(range(len(operands))) - set(range(2, len(operands), 3))
    return Case("QLinearConcat", operands, {"axis": axis}, parameters, loose=None, domain=MICROSOFT)


@st.composite
def qlinear_average_pool(draw: Draw) -> Case:
    """QLinearAveragePool: what AveragePool does, on bytes."""
    case = draw(pool("AveragePool").filter(lambda c: set(c.attributes["dilations"]) == {1}))  # type: ignore[arg-type]
    attributes = {k: v for k, v in case.attributes.items() if k != "dilations"}
    operands = (np.asarray(case.operands[0]).astype(np.uint8), _scale(), _zero(), _scale(), _zero())
    several = case.several_ranges
    found = Case("QLinearAveragePool", operands, attributes, frozenset(range(1, 5)), loose=None, several_ranges=several, domain=MICROSOFT)
    return _channels_last(draw, found)


@st.composite
def qlinear_global_pool(draw: Draw) -> Case:
    """QLinearGlobalAveragePool."""
    operands = (_bytes(draw, *draw(st.tuples(*[st.integers(1, 4)] * 4))), _scale(), _zero(), _scale(), _zero())
    attributes: dict[str, Attribute] = {"channels_last": draw(st.integers(0, 1))}
    return Case("QLinearGlobalAveragePool", operands, attributes, frozenset(range(1, 5)), loose=None, domain=MICROSOFT)


@st.composite
def qlinear_softmax(draw: Draw) -> Case:
    """QLinearSoftmax along an axis."""
    shape = draw(shapes(least=2, most=3, extent=4))
    attributes: dict[str, Attribute] = {"axis": draw(st.integers(0, len(shape) - 1)), "opset": 13}
    operands = (_bytes(draw, *shape), _scale(), _zero(), _scale(1 / 256), _zero(0))
    return Case("QLinearSoftmax", operands, attributes, frozenset(range(1, 5)), loose=None, domain=MICROSOFT)


@st.composite
def _fused_matmul(draw: Draw, op: str) -> Case:
    m, k, n = draw(st.tuples(*[st.integers(1, 5)] * 3))
    batch, swap_a, swap_b = draw(shapes(most=2, extent=3)), draw(st.integers(0, 1)), draw(st.integers(0, 1))
    a = whole_numbers(random_of(draw), *batch, *((k, m) if swap_a else (m, k)))
    b = whole_numbers(random_of(draw), *batch, *((n, k) if swap_b else (k, n)))
    attributes = {"transA": swap_a, "transB": swap_b, "alpha": 0.5}
    if op == "FusedMatMul" and batch:
        attributes |= {"transBatchA": draw(st.integers(0, 1)), "transBatchB": draw(st.integers(0, 1))}
        a, b = (
            np.ascontiguousarray(np.moveaxis(x, -2, 0)) if attributes[name] else x for x, name in ((a, "transBatchA"), (b, "transBatchB"))
        )
    return Case(op, (a, b), attributes, domain=MICROSOFT)


@st.composite
def fused_gemm(draw: Draw) -> Case:
    """FusedGemm: a Gemm with an activation."""
    case = draw(gemm())
    return Case("FusedGemm", case.operands, {**case.attributes, "activation": "LeakyRelu", "activation_alpha": 0.5}, domain=MICROSOFT)


@st.composite
def _gelu(draw: Draw, op: str) -> Case:
    shape = draw(shapes(least=1, most=3, extent=4))
    x = random_of(draw).uniform(-1, 1, shape).astype(np.float32)
    bias = (x[..., 0, :].reshape(-1)[-shape[-1] :] if len(shape) > 1 else x,)
    with_bias = op == "BiasGelu" or (op == "FastGelu" and draw(st.booleans()))
    return Case(op, (x, *(bias if with_bias else ())), exact=False, loose=None, domain=MICROSOFT)


EQUATIONS = (
    "ij,jk->ik", "ij,jk", "bij,bjk->bik", "ij->ji", "ij->j", "ii->i", "i,i->", "...ij,...jk->...ik",
    "bhqd,bhkd->bhqk", "i,j->ij", "ij,ij,ij->i", "b i d, b j d -> b i j", "...i->...", "aij,jk->aik",
)  # fmt: skip


@st.composite
def einsum(draw: Draw) -> Case:
    """Einsum: products, transpositions, diagonals, ellipses, spaces, implicit outputs."""
    equation = draw(st.sampled_from(EQUATIONS))
    terms = equation.partition("->")[0].replace(" ", "").split(",")
    extents = {letter: draw(st.integers(1, 4)) for letter in sorted(set("".join(terms)) - {"."})}
    dots = draw(shapes(most=2, extent=3))
    operands = []
    for term in terms:
        before, ellipsis, after = term.partition("...")
        shape = (*(extents[c] for c in before), *(dots if ellipsis else ()), *(extents[c] for c in after))
        operands.append(whole_numbers(random_of(draw), *shape))
    return Case("Einsum", tuple(operands), {"equation": equation}, loose=None)


QUANTIZED: Cases = {
    "ConvInteger": conv_integer,
    "DynamicQuantizeLinear": dynamic_quantization,
    "Einsum": einsum,
    "MatMulInteger": matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
    **{op: partial(_quantization, op) for op in ("DequantizeLinear", "QuantizeLinear")},
}
MICROSOFT_QUANTIZED: Cases = {
    "DynamicQuantizeLSTM": dynamic_quantize_lstm,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "MatMulBnb4": matmul_bnb4,
    "MatMulNBits": matmul_nbits,
    "NhwcMaxPool": nhwc_max_pool,
    "QGemm": qgemm,
    "QLinearAveragePool": qlinear_average_pool,
    "QLinearConcat": qlinear_concat,
    "QLinearConv": partial(_qlinear_conv, MICROSOFT),
    "QLinearGlobalAveragePool": qlinear_global_pool,
    "QLinearSoftmax": qlinear_softmax,
    **{op: partial(_quantization, op, MICROSOFT) for op in ("DequantizeLinear", "QuantizeLinear")},
    **{op: partial(_fused_matmul, op) for op in ("FusedMatMul", "TransposeMatMul")},
    **{op: partial(_gelu, op) for op in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")},
    **{op: partial(_qlinear_elementwise, op) for op in ("QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QLinearWhere")},
}
