"""Nodes of the further operators that run whole, and what the local pieces of the others look like."""

import numpy as np
import pytest

from bbgrap.graph.types import DType, TensorType
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl import granularity
from tests.bbgrap.tdl.quantized_cases import MICROSOFT
from tests.bbgrap.tdl.test_rule import described, integers
from tests.bbgrap.tdl.verifier import Case, Whole, check, check_numeric


def tensor(*shape, dtype=DType.FLOAT):
    return TensorType(dtype, shape)


MATRIX, CUBE, MAP, SCALAR = tensor(6, 8), tensor(2, 6, 8), tensor(2, 8, 6, 6), tensor()
HEADS = tensor(2, 4, 6, 8)
QKV, PACKED = (HEADS,) * 3, (CUBE,) * 3
FOUR_ROWS = (tensor(3, 4, 5), tensor(1, 8, 5), tensor(1, 8, 2))


@pytest.mark.parametrize(
    ("reason", "op", "inputs", "output", "options"),
    [
        ("batch first", "RNN", FOUR_ROWS, tensor(3, 4, 1, 2), {"attributes": {"layout": 1}}),
        ("a fourth output", "LSTM", FOUR_ROWS, tensor(3, 1, 4, 2), {"outputs": ("", "", "", "z")}),
        ("only the mean in use", "LayerNormalization", (MATRIX, tensor(8)), tensor(6, 1), {"outputs": ("", "mean")}),
        ("only the places in use", "MaxPool", (MAP,), MAP, {"outputs": ("", "places"), "attributes": {"kernel_shape": (1, 1)}}),
        ("scale along other axes", "LayerNormalization", (MATRIX, tensor(6, 8)), MATRIX, {}),
        ("nothing left to split", "LayerNormalization", (MATRIX, tensor(6, 8)), MATRIX, {"attributes": {"axis": 0}}),
        ("nothing left to split", "MeanVarianceNormalization", (MATRIX,), MATRIX, {"attributes": {"axes": (0, 1)}}),
        ("no axis", "LpNormalization", (SCALAR,), SCALAR, {}),
        ("no axis", "ArgMax", (SCALAR,), SCALAR, {}),
        ("no axis", "GatherElements", (SCALAR, SCALAR), SCALAR, {}),
        ("no axis", "ScatterElements", (SCALAR, SCALAR, SCALAR), SCALAR, {}),
        ("one matrix", "Det", (tensor(3, 3),), SCALAR, {}),
        ("nothing left to split", "TopK", (tensor(8), integers(2)), tensor(2), {}),
        ("how many is known at run time", "TopK", (MATRIX, SCALAR), MATRIX, {}),
        ("only the places in use", "TopK", (MATRIX, integers(2)), tensor(6, 2), {"outputs": ("", "places")}),
        ("axis known at run time", "CumSum", (MATRIX, SCALAR), MATRIX, {}),
        ("axis known at run time", "DFT", (tensor(2, 8, 1), None, SCALAR), tensor(2, 8, 2), {}),
        ("defaults of opset 17 and 20 differ", "DFT", (tensor(2, 3, 8, 1),), tensor(2, 3, 8, 2), {}),
        ("repeats known at run time", "Tile", (MATRIX, integers(1, 2)), tensor(6, 16), {}),
        ("diagonal known at run time", "Trilu", (MATRIX, SCALAR), MATRIX, {}),
        ("extents known at run time", "Col2Im", (tensor(2, 8, 4), integers(4, 4), integers(2, 2)), tensor(2, 2, 4, 4), {}),
        ("step known at run time", "STFT", (tensor(2, 32, 1), SCALAR, tensor(8)), tensor(2, 4, 5, 2), {}),
        ("an ellipsis is summed", "Einsum", (CUBE,), tensor(8), {"attributes": {"equation": "...i->i"}}),
        ("scales of another shape", "QuantizeLinear", (MATRIX, tensor(4)), MATRIX, {"attributes": {"axis": 1}}),
        ("zero points of another shape", "MatMulInteger", (MATRIX, tensor(8, 4), tensor(8)), tensor(6, 4), {}),
        ("probabilities in use", "Attention", QKV, HEADS, {"outputs": ("y", "", "", "qk")}),
    ],
)
def test_what_runs_whole(reason, op, inputs, output, options):
    assert described(op, inputs, output=output, **options) is None, reason


@pytest.mark.parametrize(
    ("reason", "op", "inputs", "output", "attributes"),
    [
        ("batches of a matrix", "FusedMatMul", (MATRIX, tensor(8, 4)), tensor(6, 4), {"transBatchA": 1}),
        ("a vector", "FusedMatMul", (tensor(8), tensor(8, 4)), tensor(4), {}),
        ("axes as one", "QLinearSoftmax", (MATRIX, *(SCALAR,) * 4), MATRIX, {"opset": 12}),
        ("scales per channel", "QLinearAdd", (MATRIX, tensor(8), *(SCALAR,) * 6), MATRIX, {}),
        ("a batch of B", "DynamicQuantizeMatMul", (CUBE, tensor(2, 8, 4), SCALAR), tensor(2, 6, 4), {}),
        ("a flat B", "MatMulNBits", (MATRIX, tensor(7), tensor(4)), tensor(6, 4), {"N": 4, "K": 8, "block_size": 16}),
        ("scales of another shape", "QGemm", (MATRIX, SCALAR, SCALAR, tensor(8, 4), tensor(3), *(SCALAR,) * 4), tensor(6, 4), {}),
        ("queries, keys and values in one", "MultiHeadAttention", (tensor(2, 6, 4, 3, 8),), CUBE, {"num_heads": 4}),
        ("keys by head beside values in a row", "MultiHeadAttention", (CUBE, HEADS, CUBE), CUBE, {"num_heads": 4}),
        ("lengths in one row", "MultiHeadAttention", (*PACKED, None, tensor(8)), CUBE, {"num_heads": 4}),
        ("lengths in one row", "Attention", (CUBE, tensor(8, 24), tensor(24), tensor(4)), CUBE, {"num_heads": 4}),
        ("a past", "Attention", (CUBE, tensor(8, 24), tensor(24), None, HEADS), CUBE, {"num_heads": 4}),
        ("batches in one", "RotaryEmbedding", (CUBE, tensor(2, 6), MATRIX, MATRIX), CUBE, {"is_packed_batching": 1}),
    ],
)
def test_what_of_onnxruntime_runs_whole(reason, op, inputs, output, attributes):
    assert described(op, inputs, output=output, attributes=attributes, domain=MICROSOFT) is None, reason


def test_a_single_constant_index_reads_only_its_place():
    """The first token of a sequence: nobody fetches the others."""
    case = Case("Gather", (np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.array(-2)), {"axis": 1}, frozenset((1,)))
    local = Whole(case).localize(ShapeMap.of((0, 1), (0, 4)))
    assert local.reads == (ShapeMap.of((0, 1), (1, 2), (0, 4)), None)


def test_frames_that_constant_indices_gather_are_windows_with_a_halo():
    """As torch writes `unfold`: frame f is the words from 2 f to 2 f + 3."""
    frames = 2 * np.arange(4)[:, None] + np.arange(4)
    whole = Whole(Case("Gather", (np.arange(20, dtype=np.float32).reshape(2, 10), frames), {"axis": 1}, frozenset((1,))))
    region = ShapeMap.of((0, 2), (2, 4), (0, 4))
    local = whole.localize(region)
    assert local.reads == (ShapeMap.of((0, 2), (4, 10)), None)
    check_numeric(whole, region, local)


@pytest.mark.parametrize("indices", [np.array([2, 0]), np.array(-1)])
def test_texts_behind_the_axis_of_a_gather_stay_together(indices):
    """Of them onnxruntime copies the first alone, wherever a piece begins."""
    texts = np.array([f"text {k}" for k in range(24)], object).reshape(2, 3, 4)
    whole = Whole(Case("Gather", (texts, indices), {"axis": 1}, frozenset((1,))))
    assert whole.describe().splittable_axes == tuple(range(indices.ndim + 1))
    for number in range(2):
        region = ShapeMap.full(whole.output.shape).replace(0, IntervalSet.of((number, number + 1)))
        check_numeric(whole, region, whole.localize(region))


def test_heads_that_share_keys_are_computed_together():
    queries, keys = np.ones((1, 3, 24), np.float32), np.ones((1, 5, 12), np.float32)
    whole = Whole(Case("Attention", (queries, keys, keys), {"q_num_heads": 4, "kv_num_heads": 2}, opset=23, exact=False))
    assert granularity(whole.describe(), 2) == 12
    aligned, inside = (whole.localize(ShapeMap.of((0, 1), (0, 3), columns)) for columns in ((12, 24), (3, 9)))
    assert [node.op for node in aligned.nodes] == ["Attention"]
    assert aligned.nodes[0].attributes == {"q_num_heads": 2, "kv_num_heads": 1}
    assert [str(read) for read in aligned.reads if read] == ["[0:1, 0:3, 12:24]", "[0:1, 0:5, 6:12]", "[0:1, 0:5, 6:12]"]
    assert [node.op for node in inside.nodes] == ["Attention", "Slice"]


@pytest.mark.parametrize("attributes", [{"is_causal": 1}, {"left_window_size": 2}, {"right_window_size": 0}])
def test_a_query_that_must_know_its_place_is_not_split(attributes):
    assert described("Attention", QKV, output=HEADS, attributes=attributes).splittable_axes == (0, 1)


def test_frames_of_a_signal_are_windows_with_a_halo():
    signal, window = np.ones((1, 32, 1), np.float32), np.ones(8, np.float32)
    whole = Whole(Case("STFT", (signal, np.array(4), window), {}, frozenset((1,)), 17, exact=False))
    local = whole.localize(ShapeMap.of((0, 1), (2, 4), (0, 5), (0, 2)))
    assert str(local.reads[0]) == "[0:1, 8:20, 0:1]"


def test_a_quantized_group_cut_in_two_takes_its_own_scales():
    """Channels 1 to 4 of two groups of two: one convolution per group, each with the scales and biases of its channels."""
    x, w, scales = np.ones((1, 4, 5), np.uint8), np.ones((4, 2, 1), np.uint8), np.arange(1, 5, dtype=np.float32)
    zero, one = np.array(0, np.uint8), np.array(1, np.float32)
    operands = (x, one, zero, w, scales, np.zeros(4, np.uint8), one, zero, np.arange(4, dtype=np.int32))
    whole = Whole(Case("QLinearConv", operands, {"group": 2}, frozenset((1, 2, 4, 5, 6, 7, 8))))
    local = whole.localize(ShapeMap.of((0, 1), (1, 4), (0, 5)))
    assert [n.op for n in local.nodes].count("QLinearConv") == 2
    assert str(local.reads[4]) == "[1:4]"


def test_one_quantized_window_of_several_does_not_become_a_global_pool():
    """1 and 0, less 3, halved, average to -1.25, a tie: the global pool would round it to 1."""
    one = np.array(0.5, np.float32), np.array(3, np.uint8)
    case = Case("QLinearAveragePool", (np.array([[[3, 1, 0]]], np.uint8), *one, *one), {"kernel_shape": (2,)}, loose=None, domain=MICROSOFT)
    whole = Whole(case)
    check(whole, ShapeMap.of((0, 1), (0, 1), (1, 2)))


def test_heads_of_one_element_are_counted():
    x = np.ones((1, 2, 3), np.float32)
    whole = Whole(Case("MultiHeadAttention", (x, x, x), {"num_heads": 3}, exact=False, domain=MICROSOFT))
    assert whole.localize(ShapeMap.of((0, 1), (0, 2), (1, 2))).nodes[0].attributes["num_heads"] == 1


def test_channels_of_a_quantized_convolution_that_is_almost_depthwise_stay_together():
    x, w = (np.ones(shape, np.uint8) for shape in ((1, 4, 5, 5), (8, 1, 3, 3)))
    step, zero = np.array(0.5, np.float32), np.array(3, np.uint8)
    case = Case("QLinearConv", (x, step, zero, w, step, zero, step, zero), {"group": 4}, frozenset(range(1, 8)))
    assert Whole(case).describe().splittable_axes == (0, 2, 3)
    depthwise = Case("QLinearConv", (x, step, zero, w[:4], step, zero, step, zero), {"group": 4}, frozenset(range(1, 8)))
    assert Whole(depthwise).describe().splittable_axes == (0, 1, 2, 3)
