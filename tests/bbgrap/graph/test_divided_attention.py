"""Attention that computes its queries, keys and values itself, taken apart: the answers of the first form, and what stays as it is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.graph.divided_attention import _ORDER, with_attention_apart
from bbgrap.graph.types import DType, Node, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import make_plan
from tests.partition import plain_outputs

MICROSOFT = "com.microsoft"


def fused(
    heads=4, head=8, values=8, batch=2, words=6, *, mask=(), scores_bias=(), features=20, attributes=None, outputs=("y",), biased=True
) -> Graph:
    """A graph of one attention; the mask and what is added to scores are inputs of the model."""
    random = np.random.default_rng(heads + words)
    widths = (heads * head, heads * head, heads * values)
    weights = {"w": (random.standard_normal((features, sum(widths))) / 4).astype(np.float32)}
    if biased:
        weights["b"] = random.standard_normal(sum(widths)).astype(np.float32)
    known = {"x": TensorType(DType.FLOAT, (batch, words, features)), "y": TensorType(DType.FLOAT, (batch, words, widths[2]))}
    known |= {"m": TensorType(DType.INT32, mask)} if mask else {}
    known |= {"s": TensorType(DType.FLOAT, scores_bias)} if scores_bias else {}
    known |= {name: TensorType(DType.FLOAT, array.shape) for name, array in weights.items()}
    known |= {name: TensorType(DType.FLOAT, (2, batch, heads, words, head)) for name in outputs[1:]}
    operands = ("x", "w", "b" if biased else "", "m" if mask else "", "", "s" if scores_bias else "")
    said = {"num_heads": heads} | ({"qkv_hidden_sizes": widths} if values != head else {}) | (attributes or {})
    node = Node("attention", "Attention", operands, outputs, said, MICROSOFT)
    held = {name: make_weight(name, array) for name, array in weights.items()}
    inputs = tuple(name for name in ("x", "m", "s") if name in known)
    return Graph("g", (node,), inputs, ("y",), held, known, {"": 17, MICROSOFT: 1})


@settings(max_examples=60)
@given(st.data())
def test_it_answers_as_the_first_form(data: st.DataObject) -> None:
    batch, words, heads = (data.draw(st.integers(1, most)) for most in (3, 7, 4))
    mask = data.draw(st.sampled_from(((), (batch,), (batch, words), (batch, words, words))))
    scores_bias = data.draw(st.sampled_from(((), (1, heads, words, words), (batch, heads, words, words)))) if not mask else ()
    attributes = data.draw(st.sampled_from(({}, {"unidirectional": 1}, {"scale": 0.2}, {"mask_filter_value": -50.0})))
    sizes = {"batch": batch, "words": words, "heads": heads, "values": data.draw(st.sampled_from((8, 4)))}
    graph = fused(**sizes, mask=mask, scores_bias=scores_bias, attributes=attributes)
    apart = with_attention_apart(graph, ())
    assert {node.op for node in apart.nodes} >= {"MatMul", "Slice", "MultiHeadAttention"}
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    feeds = [random.standard_normal(graph.types["x"].known_shape).astype(np.float32)]
    if len(mask) == 1:
        feeds.append(random.integers(1, words + 1, mask, np.int32))
    elif mask:
        feeds.append(np.concatenate([np.ones((*mask[:-1], 1), np.int32), random.integers(0, 2, (*mask[:-1], words - 1), np.int32)], -1))
    if scores_bias:
        feeds.append(random.standard_normal(scores_bias).astype(np.float32))
    (mine,), (expected,) = plain_outputs(apart, feeds), plain_outputs(graph, feeds)
    np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)
    if mask or "unidirectional" in attributes:
        np.testing.assert_array_equal(mine, expected)
        assert with_attention_apart(graph, {"attention"}) == apart
    else:
        assert with_attention_apart(graph, {"attention"}) is graph


def with_past(graph: Graph, length: int) -> Graph:
    """The same graph with keys and values of earlier words; what it answers of all words is its second output."""
    (node,), (batch, words, _) = (graph.nodes[-1],), graph.types["x"].known_shape
    heads, place = node.attributes["num_heads"], _ORDER[node.op].index("past")
    inputs = (*(*node.inputs, *[""] * place)[:place], "past", *node.inputs[place + 1 :])
    kinds = {"past": TensorType(DType.FLOAT, (2, batch, heads, length, 8))}
    kinds |= {"present": TensorType(DType.FLOAT, (2, batch, heads, length + words, 8))}
    nodes = (*graph.nodes[:-1], replace(node, inputs=inputs, outputs=("y", "present")))
    return replace(graph, nodes=nodes, inputs=(*graph.inputs, "past"), outputs=("y", "present"), types={**graph.types, **kinds})


@pytest.mark.parametrize("length", [0, 5])
@pytest.mark.parametrize("form", ["plain", "unidirectional", "masked", "of bytes"])
def test_with_a_past_it_answers_with_the_same_bits(form: str, length: int) -> None:
    mask = (2, length + 6) if form == "masked" else ()
    said = {"unidirectional": int(form == "unidirectional")}
    graph = with_past(quantized() if form == "of bytes" else fused(mask=mask, attributes=said), length)
    apart = with_attention_apart(graph, {"attention"})
    assert [node.op for node in apart.nodes[-4:]] == ["MultiHeadAttention", "Unsqueeze", "Unsqueeze", "Concat"]
    random = np.random.default_rng(3)
    feeds = [
        random.standard_normal(graph.types[name].known_shape).astype(np.float32)
        if name != "m"
        else np.tile((np.arange(mask[1]) != 1).astype(np.int32), (2, 1))
        for name in graph.inputs
    ]
    for mine, expected in zip(plain_outputs(apart, feeds), plain_outputs(graph, feeds), strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_tensor_parallelism_keeps_what_answers_of_all_words_where_their_heads_are() -> None:
    graph = with_attention_apart(with_past(fused(), 5), ())
    tiles = make_plan(graph, Cluster.even(2), PlanOptions("tensor-parallel"), all_descriptions(graph)).tiles
    (joined,) = (node for node in graph.nodes if node.op == "Concat")
    assert [(tile.device, str(tile.region.axes[2])) for tile in tiles[joined.name]] == [(0, "0:2"), (1, "2:4")]


def quantized(*, mask=(), per_column=False, signed=True, unidirectional=0) -> Graph:
    """A graph of one attention of bytes, behind the quantizer of its input."""
    random, dtype = np.random.default_rng(3), np.int8 if signed else np.uint8
    batch, words, features, heads = 2, 6, 20, 4
    width = 3 * heads * 8
    columns = (width,) if per_column else ()
    held = {
        "w": random.integers(0 if not signed else -127, 127, (features, width)).astype(dtype),
        "b": random.standard_normal(width).astype(np.float32),
        "ws": np.asarray(0.01 * random.random(columns) + 0.01, np.float32),
        "wz": np.full(columns, 0 if signed else 60, dtype),
    }
    weights = {name: make_weight(name, array) for name, array in held.items()}
    types = {name: weight.type for name, weight in weights.items()}
    types |= {"x": TensorType(DType.FLOAT, (batch, words, features)), "q": TensorType(DType.UINT8, (batch, words, features))}
    types |= {"s": TensorType(DType.FLOAT, ()), "z": TensorType(DType.UINT8, ()), "y": TensorType(DType.FLOAT, (batch, words, width // 3))}
    types |= {"m": TensorType(DType.INT32, mask)} if mask else {}
    operands = ("q", "w", "b", "s", "ws", "m" if mask else "", "z", "wz")
    nodes = (
        Node("quantizer", "DynamicQuantizeLinear", ("x",), ("q", "s", "z")),
        Node("attention", "QAttention", operands, ("y",), {"num_heads": heads, "unidirectional": unidirectional}, MICROSOFT),
    )
    return Graph("g", nodes, ("x", "m") if mask else ("x",), ("y",), weights, types, {"": 17, MICROSOFT: 1})


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_of_bytes_it_answers_as_the_first_form(per_column: bool, signed: bool, unidirectional: int, masked: bool) -> None:
    graph = quantized(mask=(2, 6) if masked else (), per_column=per_column, signed=signed, unidirectional=unidirectional)
    apart = with_attention_apart(graph, ())
    assert {node.op for node in apart.nodes} >= {"MatMulIntegerToFloat", "Slice", "MultiHeadAttention"}
    feeds = [np.random.default_rng(5).standard_normal((2, 6, 20)).astype(np.float32)]
    if masked:
        feeds.append(np.array([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]], np.int32))
    (mine,), (expected,) = plain_outputs(apart, feeds), plain_outputs(graph, feeds)
    np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)
    if masked or unidirectional:
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize(
    "graph",
    [
        fused(mask=(4,)),
        fused(mask=(8,)),
        fused(biased=False),
        fused(outputs=("y", "present")),
        with_past(fused(mask=(2,)), 5),
        fused(attributes={"do_rotary": 1}),
        fused(attributes={"of a later version": 1}),
        replace(fused(), nodes=(replace(fused().nodes[0], domain=""),)),
    ],
    ids=[
        "begins and ends",
        "begins and ends of both",
        "no bias",
        "present",
        "ends with a past",
        "rotary",
        "unknown attribute",
        "of the standard",
    ],
)
def test_what_has_no_second_form(graph: Graph) -> None:
    assert with_attention_apart(graph, ()) is graph
