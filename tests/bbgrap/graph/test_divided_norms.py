"""Normalisations with statistics that are partial sums: as close to 64-bit floats as onnxruntime's own; nothing else is touched."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.graph import Array, DType, Graph, Node, TensorType, check_graph
from bbgrap.graph.divided_norms import LEAST_LINE, LEAST_LINES, LONG_LINE, with_divided_norms
from bbgrap.graph.weights import make_weight
from tests.examples import examples
from tests.partition import plain_outputs

EPSILON = 1e-5
MAP = (2, 6, 8, 7)
THREE = 3
"""What a distance to 64-bit floats may be of onnxruntime's (docs/answers.md)."""


def norm(shape: tuple[int, ...], groups: int | None, opset: int = 17, dtype: DType = DType.FLOAT, seed: int = 0) -> Graph:
    """Instance normalisation of x, or group normalisation as exporters write it; scales and biases are neither 1 nor 0."""
    random = np.random.default_rng(seed)
    count = shape[1] if groups is None else groups
    per_channel = (shape[1], *(1,) * (len(shape) - 2))
    middle = (shape[0], count, prod(shape[1:]) // max(count, 1))
    arrays = {"s": random.standard_normal(count), "b": random.standard_normal(count)}
    if groups is not None:
        arrays |= {"w": random.standard_normal(per_channel), "v": random.standard_normal(per_channel)}
    weights = {name: make_weight(name, array.astype(dtype.numpy)) for name, array in arrays.items()}
    kind = TensorType(dtype, shape)
    types = {"x": kind, "y": kind} | {name: weight.type for name, weight in weights.items()}
    if groups is None:
        nodes: tuple[Node, ...] = (Node("n", "InstanceNormalization", ("x", "s", "b"), ("y",), {"epsilon": EPSILON}),)
        return Graph("g", nodes, ("x",), ("y",), weights, types, {"": opset})
    weights |= {name: make_weight(name, np.array(extents, np.int64)) for name, extents in (("to", middle), ("back", shape))}
    types |= {name: weights[name].type for name in ("to", "back")}
    types |= {"r": TensorType(dtype, middle), "i": TensorType(dtype, middle), "j": kind, "m": kind}
    nodes = (
        Node("r", "Reshape", ("x", "to"), ("r",)),
        Node("n", "InstanceNormalization", ("r", "s", "b"), ("i",), {"epsilon": EPSILON}),
        Node("j", "Reshape", ("i", "back"), ("j",)),
        Node("m", "Mul", ("j", "w"), ("m",)),
        Node("a", "Add", ("m", "v"), ("y",)),
    )
    return Graph("g", nodes, ("x",), ("y",), weights, types, {"": opset})


def exact(graph: Graph, x: Array, groups: int) -> Array:
    """The same in 64-bit floats."""
    held = {name: weight.array.astype(np.float64) for name, weight in graph.weights.items()}
    parts = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    off = parts - parts.mean(-1, keepdims=True)
    made = off / np.sqrt((off**2).mean(-1, keepdims=True) + np.float32(EPSILON)) * held["s"][:, None] + held["b"][:, None]
    return made.reshape(x.shape) * held.get("w", 1.0) + held.get("v", 0.0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], int | None, int]:
    groups = draw(st.sampled_from([None, 1, 2, 6]))
    channels = 6 if groups != 1 else draw(st.integers(1, 6))
    rows = draw(st.lists(st.integers(1, 9), min_size=0 if groups == 1 else 1, max_size=2))
    count = channels if groups is None else groups
    if channels // count * prod(rows) >= LEAST_LINES:
        columns = draw(st.integers(LEAST_LINE, 19))
    elif draw(st.booleans()):
        rows, columns = [*rows[:-1], draw(st.integers(LEAST_LINES, 11))], draw(st.integers(LEAST_LINE, 19))
    else:
        rows, columns = rows[draw(st.integers(0, 1)) :], draw(st.integers(LONG_LINE, 5000))
    return (draw(st.integers(1, 3)), channels, *rows, columns), groups, draw(st.sampled_from([11, 17, 18]))


@settings(max_examples=examples(60))
@given(cases(), st.sampled_from([0.0, 1.0, 1e3, 1e5]), st.integers(0, 1000))
def test_answers_are_as_close_to_64_bit_floats_as_those_of_onnxruntime(
    case: tuple[tuple[int, ...], int | None, int], mean: float, seed: int
) -> None:
    """Also where the mean is large and the deviation small."""
    shape, groups, opset = case
    graph = norm(shape, groups, opset, seed=seed)
    apart = with_divided_norms(graph, ())
    assert "InstanceNormalization" not in {node.op for node in apart.nodes}
    assert not check_graph(apart)
    x = (np.random.default_rng(seed).standard_normal(shape) + mean).astype(np.float32)
    true = exact(graph, x, shape[1] if groups is None else groups)
    (ours,), (theirs,) = plain_outputs(apart, [x]), plain_outputs(graph, [x])
    assert ours.shape == theirs.shape
    rounding = 16 * np.finfo(np.float32).eps * max(np.abs(true).max(), np.abs(graph.weights["s"].array).max())
    assert np.abs(ours - true).max() <= max(THREE * np.abs(theirs - true).max(), rounding)


@pytest.mark.parametrize(("shape", "groups"), [((1, 4, 16, 16), 2), ((1, 4, 3199), 4)])
def test_a_map_of_one_number_is_its_bias(shape: tuple[int, ...], groups: int) -> None:
    graph = norm(shape, groups)
    (made,) = plain_outputs(with_divided_norms(graph, ()), [np.full(shape, 1234.567, np.float32)])
    want = exact(graph, np.zeros(shape), groups)
    np.testing.assert_allclose(made, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("groups", [None, 1, 2, 6])
def test_all_of_a_normalisation_is_replaced_and_its_ends_are_kept(groups: int | None) -> None:
    graph = norm(MAP, groups)
    apart = with_divided_norms(graph, ())
    means = [node for node in apart.nodes if node.op == "ReduceMean"]
    assert len(means) == 4
    assert apart.nodes[-1].name == graph.nodes[-1].name
    assert not {"r", "i", "j", "m", "to", "s"} & apart.types.keys()
    assert not {"to", "s", "w"} & apart.weights.keys()
    assert with_divided_norms(apart, ()) is apart


def test_axes_that_move_are_told_of_what_is_added() -> None:
    moving = dict.fromkeys(("x", "r", "i", "j", "m", "y"), frozenset({0})) | {"x": frozenset({0, 2}), "y": frozenset({0, 2})}
    apart = with_divided_norms(replace(norm(MAP, 2), moving=moving), ())
    found = {node.name: apart.moving.get(node.first_output, frozenset()) for node in apart.nodes}
    assert found["a.apart"] == found["a.near"] == {0, 3}
    assert found["a.mean"] == found["a.factor"] == {0}
    assert found["a"] == {0, 2}


def with_output(graph: Graph, name: str) -> Graph:
    return replace(graph, outputs=(*graph.outputs, name))


def fed(graph: Graph, name: str) -> Graph:
    """The graph with one of its weights as an input."""
    return replace(graph, inputs=(*graph.inputs, name), weights={n: w for n, w in graph.weights.items() if n != name})


LEFT = {
    "a name that is to be kept": (norm(MAP, 1), {"n"}),
    "a scale that comes with the request": (fed(norm(MAP, 2), "s"), ()),
    "64-bit floats": (norm(MAP, 1, dtype=DType.DOUBLE), ()),
    "short lines": (norm((1, 6, 9, LEAST_LINE - 1), 1), ()),
    "few lines": (norm((1, 6, LEAST_LINES - 1, 9), None), ()),
    "one line that is not long": (norm((1, 6, LONG_LINE - 1), None), ()),
    "nothing": (norm((0, 6, 9, 9), 1), ()),
    "groups that are answered": (with_output(norm(MAP, 1), "i"), ()),
}


@pytest.mark.parametrize("case", LEFT)
def test_it_is_left_alone(case: str) -> None:
    graph, kept = LEFT[case]
    assert with_divided_norms(graph, kept) is graph


@pytest.mark.parametrize("name", ["j", "m"])
def test_what_is_read_elsewhere_is_still_made(name: str) -> None:
    graph = with_output(norm(MAP, 2), name)
    apart = with_divided_norms(graph, ())
    assert apart is not graph
    x = np.random.default_rng(1).standard_normal(MAP).astype(np.float32)
    for got, want in zip(plain_outputs(apart, [x]), plain_outputs(graph, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
