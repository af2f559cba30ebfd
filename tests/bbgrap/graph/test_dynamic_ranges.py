"""Dynamic quantizers with their ranges apart: the same bits as onnxruntime's own operators, and nothing else is touched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from bbgrap.graph import Array, DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.planners.forms import form_with, forms_of
from tests.examples import examples
from tests.partition import plain_outputs

F, U8 = DType.FLOAT, DType.UINT8
MICROSOFT = "com.microsoft"
NUMBERS = st.floats(width=32, allow_nan=False)
"""Infinities, zeros of both signs and numbers below the normal ones among them."""


def quantizer(shape: tuple[int, ...] | None, dtype: DType = F) -> Graph:
    """DynamicQuantizeLinear of x: its codes, its scale, its zero point."""
    types = {"x": TensorType(dtype, shape), "y": TensorType(U8, shape), "s": TensorType(F, ()), "z": TensorType(U8, ())}
    return Graph("g", (Node("q", "DynamicQuantizeLinear", ("x",), ("y", "s", "z")),), ("x",), ("y", "s", "z"), {}, types, {"": 17})


def product(x: Array, *operands: Array | None) -> Graph:
    """DynamicQuantizeMatMul of x and weights, then scale, zero point and bias."""
    names = tuple("" if array is None else f"w{number}" for number, array in enumerate(operands))
    weights = {name: make_weight(name, array) for name, array in zip(names, operands, strict=True) if array is not None}
    columns = weights["w0"].type.known_shape[-1]
    types = {"x": TensorType(F, x.shape), "y": TensorType(F, (*x.shape[:-1], columns))}
    types |= {name: weight.type for name, weight in weights.items()}
    node = Node("p", "DynamicQuantizeMatMul", ("x", *names), ("y",), domain=MICROSOFT)
    return Graph("g", (node,), ("x",), ("y",), weights, types, {"": 17, MICROSOFT: 1})


def assert_equal_bits(graph: Graph, x: Array) -> None:
    before, apart = forms_of(graph)
    assert before is graph
    assert forms_of(apart) == (apart,)
    assert apart.opsets == graph.opsets
    for want, got in zip(plain_outputs(graph, [x]), plain_outputs(apart, [x]), strict=True):
        assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())


@settings(max_examples=examples(200))
@given(arrays(np.float32, array_shapes(max_dims=4, max_side=9), elements=NUMBERS))
def test_codes_scale_and_zero_point_have_the_same_bits(x: Array) -> None:
    assume(x.size > 2)
    assert_equal_bits(quantizer(x.shape), x)


@settings(max_examples=examples(100))
@given(st.integers(0, 2**32 - 1), st.integers(-44, 37), st.sampled_from([np.asarray, np.abs, lambda x: -np.abs(x), np.zeros_like]))
def test_so_have_those_of_large_tensors_of_any_scale_and_sign(seed: int, exponent: int, of: np.ufunc) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(int(size) for size in random.integers(2, 40, random.integers(2, 4)))
    x = of(random.standard_normal(shape) * 10.0**exponent).astype(np.float32)
    assert_equal_bits(quantizer(shape), x)


def test_codes_of_a_product_move_as_what_is_quantized_and_ranges_do_not() -> None:
    graph = product(np.zeros((2, 6, 8), np.float32), np.zeros((8, 3), np.int8), np.ones((), np.float32))
    moving = {name: frozenset({0, 1}) for name in ("x", "y")}
    apart = forms_of(replace(graph, moving=moving))[1]
    assert dict(apart.moving) == moving | {"p.codes": frozenset({0, 1})}


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("has_zero", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_of_integers_has_the_same_bits(kind: type[np.generic], per_column: bool, has_zero: bool, has_bias: bool) -> None:
    random = np.random.default_rng(1)
    for shape in ((1, 8), (3, 5, 33), (40, 16)):
        x = random.standard_normal(shape).astype(np.float32)
        weight = random.integers(np.iinfo(kind).min, np.iinfo(kind).max, (shape[-1], 7), endpoint=True).astype(kind)
        size = (7,) if per_column else ()
        scale = np.asarray(random.uniform(0.01, 0.1, size), np.float32)
        zero = np.asarray(random.integers(0, 9, size), kind) if has_zero else None
        bias = random.standard_normal(7).astype(np.float32) if has_bias else None
        assert_equal_bits(product(x, weight, scale, zero, bias), x)


@pytest.mark.parametrize("graph", [quantizer(()), quantizer((1, 2)), quantizer(None), quantizer((0, 3)), quantizer((2, 3), DType.FLOAT16)])
def test_what_is_hardly_more_than_its_range_and_what_is_not_known_is_left(graph: Graph) -> None:
    assert forms_of(graph) == (graph,)


def test_operators_of_other_domains_are_left() -> None:
    graph = quantizer((2, 3))
    foreign = replace(graph, nodes=(replace(graph.nodes[0], domain="com.example"),))
    assert forms_of(foreign) == (foreign,)


def test_names_that_are_taken_are_not_used_again() -> None:
    graph = quantizer((2, 3))
    nodes = (*graph.nodes, Node("q.low", "Relu", ("x",), ("q.high",)))
    graph = replace(graph, nodes=nodes, outputs=(*graph.outputs, "q.high"), types={**graph.types, "q.high": TensorType(F, (2, 3))})
    assert_equal_bits(graph, np.array([[1, 2, 3], [4, -5, 6]], np.float32))
    apart = forms_of(graph)[1]
    assert len(apart.node_by_name) == len(apart.nodes) == 6


def test_a_form_is_found_by_the_names_of_its_nodes() -> None:
    graph, apart = forms_of(quantizer((2, 3)))
    assert form_with(graph, apart.node_by_name) == apart
    assert form_with(graph, graph.node_by_name) is graph
    assert form_with(graph, ["other"]) is graph
