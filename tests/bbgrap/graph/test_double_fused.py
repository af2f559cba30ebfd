"""The 64-bit forms of onnxruntime's fused operators: an answer in 64 bits is there, and as near as 32 bits are."""

import numpy as np
import pytest
from onnx import helper

from bbgrap.engine.double import double_answer
from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import read_model
from tests.onnx_models import write_model

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


def saved(folder, op, read, made, feeds, attributes):
    """A file of one fused operator with these inputs."""
    node = helper.make_node(op, read, made, domain="com.microsoft", **attributes)
    shapes = {name: array.shape for name, array in feeds.items()}
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    return write_model(folder / "m.onnx", [node], shapes, filter(None, made), kinds=kinds, domains={"com.microsoft": 1})


@pytest.mark.parametrize(("op", "operands", "attributes"), CASES.values(), ids=CASES.keys())
def test_a_fused_operator_has_an_answer_in_64_bits(op, operands, attributes, tmp_path):
    feeds = {f"i{place}": array for place, array in enumerate(operands) if array is not None}
    read = [f"i{place}" if array is not None else "" for place, array in enumerate(operands)]
    path = saved(tmp_path, op, read, OUTPUTS.get(op, ("y",)), feeds, attributes)
    wanted = make_session(path, threads=1).run(None, feeds)
    exact = double_answer(read_model(path), feeds)
    assert exact is not None
    assert len(exact) == len(wanted)
    for got, want in zip(exact, wanted, strict=True):
        assert got.dtype == (np.float64 if want.dtype == np.float32 else want.dtype)
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())


def test_what_is_not_considered_has_none(tmp_path):
    feeds = {"x": X, "w": floats(8, 24), "b": floats(24), "lengths": np.int32([3, 5])}
    path = saved(tmp_path, "Attention", list(feeds), ["y"], feeds, HEADS)
    assert double_answer(read_model(path), feeds) is None
