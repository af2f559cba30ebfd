"""The 64-bit forms of onnxruntime's fused operators: an answer in 64 bits is there, and as near as 32 bits are."""

import numpy as np
import onnx
import pytest
from onnx import helper

from bbgrap.engine.double import double_answer
from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import read_model

RANDOM = np.random.default_rng(3)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


X, WORDS, SEGMENTS = floats(2, 5, 8), RANDOM.integers(0, 9, (2, 5)).astype(np.int32), np.zeros((2, 5), np.int32)
MASK = np.int32([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
QUERIES, KEYS, VALUES = floats(2, 3, 8), floats(2, 5, 8), floats(2, 5, 12)
TABLES = (floats(9, 8), floats(7, 8), floats(2, 8), floats(8), floats(8))
HEADS = {"num_heads": 2}

CASES = {
    "gelu": ("Gelu", [X], {}),
    "gelu of a sum": ("BiasGelu", [X, floats(8)], {}),
    "fast gelu": ("FastGelu", [X], {}),
    "fast gelu of a sum": ("FastGelu", [X, floats(8)], {}),
    "quick gelu": ("QuickGelu", [X], {"alpha": 1.5}),
    "attention": ("Attention", [X, floats(8, 24), floats(24)], HEADS),
    "causal attention": ("Attention", [X, floats(8, 24), floats(24)], HEADS | {"unidirectional": 1}),
    "masked attention": ("Attention", [X, floats(8, 24), floats(24), MASK], HEADS | {"scale": 0.3}),
    "attention masked word by word": ("Attention", [X, floats(8, 24), floats(24), np.stack([np.tri(5, dtype=np.int32)] * 2)], HEADS),
    "attention with scores": ("Attention", [X, floats(8, 24), floats(24), None, None, floats(2, 2, 5, 5)], HEADS),
    "attention of other widths": ("Attention", [X, floats(8, 20), floats(20)], HEADS | {"qkv_hidden_sizes": [4, 4, 12]}),
    "heads": ("MultiHeadAttention", [QUERIES, KEYS, VALUES], HEADS),
    "heads with bias": ("MultiHeadAttention", [QUERIES, KEYS, VALUES, floats(28)], HEADS),
    "masked heads": ("MultiHeadAttention", [QUERIES, KEYS, VALUES, None, MASK], HEADS),
    "heads with scores": ("MultiHeadAttention", [QUERIES, KEYS, VALUES, None, None, floats(2, 2, 3, 5)], HEADS),
    "causal heads": ("MultiHeadAttention", [X, KEYS, VALUES], HEADS | {"unidirectional": 1}),
    "embedding": ("EmbedLayerNormalization", [WORDS, SEGMENTS, *TABLES, MASK], {"epsilon": 1e-5}),
    "embedding without segments": ("EmbedLayerNormalization", [WORDS, None, *TABLES[:2], None, *TABLES[3:]], {"epsilon": 1e-5}),
    "skip": ("SkipLayerNormalization", [X, floats(2, 5, 8), floats(8), floats(8), floats(8)], {"epsilon": 1e-3}),
    "skip without biases": ("SkipLayerNormalization", [X, floats(5, 8), floats(8)], {"epsilon": 1e-3}),
    "simple skip": ("SkipSimplifiedLayerNormalization", [X, floats(2, 5, 8), floats(8), floats(8)], {"epsilon": 1e-3}),
}
SUMMED = ("y", "", "", "sum")
OUTPUTS = {"SkipLayerNormalization": SUMMED, "SkipSimplifiedLayerNormalization": SUMMED, "EmbedLayerNormalization": ("y", "counts", "sum")}


@pytest.mark.parametrize(("op", "operands", "attributes"), CASES.values(), ids=CASES.keys())
def test_a_fused_operator_has_an_answer_in_64_bits(op, operands, attributes, tmp_path):
    feeds = {f"i{place}": array for place, array in enumerate(operands) if array is not None}
    read = [f"i{place}" if array is not None else "" for place, array in enumerate(operands)]
    given = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    made = [onnx.ValueInfoProto(name=name) for name in OUTPUTS.get(op, ("y",)) if name]
    node = helper.make_node(op, read, OUTPUTS.get(op, ("y",)), domain="com.microsoft", **attributes)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(helper.make_graph([node], "g", given, made), opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    wanted = make_session(tmp_path / "m.onnx", threads=1).run(None, feeds)
    exact = double_answer(read_model(tmp_path / "m.onnx"), feeds)
    assert exact is not None
    assert len(exact) == len(wanted)
    for got, want in zip(exact, wanted, strict=True):
        assert got.dtype == (np.float64 if want.dtype == np.float32 else want.dtype)
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())


def test_what_is_not_considered_has_none(tmp_path):
    lengths = np.int32([3, 5])
    feeds = {"x": X, "w": floats(8, 24), "b": floats(24), "lengths": lengths}
    given = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    node = helper.make_node("Attention", list(feeds), ["y"], domain="com.microsoft", num_heads=2)
    graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    assert double_answer(read_model(tmp_path / "m.onnx"), feeds) is None
