"""Partial results: over any ranges of any reducible index, the parts add up to what onnxruntime computes at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.errors import PlanError
from bbgrap.graph import Attribute, DType, Graph, Node, TensorType
from bbgrap.graph.divided_experts import CHOSEN_EXPERTS, OWN_DOMAIN
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.plan import Plan, Tile, check_plan
from bbgrap.shapemap import Interval, ShapeMap
from bbgrap.tdl import Part, localize_part, part_unit, reducible
from bbgrap.tdl.partial import partial_operators
from tests.bbgrap.tdl.verifier import Case, run_local
from tests.examples import examples
from tests.partition import all_values, assert_close, run_checked
from tests.program_laws import compile_checked

Shapes = tuple[tuple[int, ...], ...]
DEVICES = 3
CASES: dict[tuple[str, str], tuple[Shapes, tuple[int, ...], Mapping[str, Attribute]]] = {
    ("", "Conv"): (((2, 6, 7, 5), (4, 6, 3, 3), (4,)), (2, 4, 7, 5), {"pads": (1, 1, 1, 1)}),
    ("", "Gemm"): (((3, 8), (5, 8), (5,)), (3, 5), {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("", "MatMul"): (((2, 3, 8), (8, 5)), (2, 3, 5), {}),
    ("", "Einsum"): (((3, 4, 5), (5, 4, 6)), (3, 6), {"equation": "abc,cbd->ad"}),
    ("", "MatMulInteger"): (((3, 22), (22, 5)), (3, 5), {}),
    ("com.microsoft", "FusedMatMul"): (((3, 2, 8), (2, 8, 5)), (2, 3, 5), {"alpha": 0.5, "transBatchA": 1}),
    ("com.microsoft", "MatMulNBits"): (
        ((2, 3, 144), (5, 9, 8), (5, 9), (5, 5), (), (5,)),
        (2, 3, 5),
        {"K": 144, "N": 5, "bits": 4, "block_size": 16},
    ),
    ("", "ReduceSum"): (((4, 6, 5),), (4, 1, 1), {"keepdims": 1}),
    ("", "ReduceMean"): (((4, 6, 5),), (4,), {"keepdims": 0}),
    ("", "ReduceMax"): (((4, 6, 5),), (4, 1, 1), {}),
    ("", "ReduceMin"): (((4, 6, 5),), (4, 1, 1), {}),
    ("", "GlobalAveragePool"): (((2, 3, 7, 5),), (2, 3, 1, 1), {}),
    ("", "Gather"): (((4, 9, 5), (2, 3)), (4, 2, 3, 5), {"axis": 1}),
    ("", "GlobalMaxPool"): (((2, 3, 7, 5),), (2, 3, 1, 1), {}),
    ("com.microsoft", "GatherBlockQuantized"): (
        ((9, 16), (2, 3), (9, 2), (9, 1)),
        (2, 3, 32),
        {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": 4},
    ),
}


def graph_of(domain: str, op: str) -> Graph:
    shapes, out, attributes = CASES[domain, op]
    kind, result = (DType.UINT8, DType.INT32) if op == "MatMulInteger" else (DType.FLOAT, DType.FLOAT)
    types = {f"i{k}": TensorType(kind, shape) for k, shape in enumerate(shapes)}
    weights, inputs = {}, tuple(types)
    names = inputs
    if op.startswith("Reduce") and op in ("ReduceSum",):
        names = (*inputs, "axes")
        weights["axes"] = make_weight("axes", np.array([1, 2]))
        types["axes"] = weights["axes"].type
    elif op.startswith("Reduce"):
        attributes = {**attributes, "axes": (1, 2)}
    if op == "MatMulNBits":
        random = np.random.default_rng(1)
        weights = {f"i{k}": make_weight(f"i{k}", random.integers(0, 256, shapes[k]).astype(np.uint8)) for k in (1, 3)}
        weights |= {f"i{k}": make_weight(f"i{k}", random.uniform(0.1, 0.2, shapes[k]).astype(np.float32)) for k in (2, 5)}
        types |= {name: weight.type for name, weight in weights.items()}
        names, inputs = ("i0", "i1", "i2", "i3", "", "i5"), ("i0",)
        del types["i4"]
    if op == "GatherBlockQuantized":
        random = np.random.default_rng(1)
        weights = {f"i{k}": make_weight(f"i{k}", random.integers(0, 256, shapes[k]).astype(np.uint8)) for k in (0, 3)}
        weights["i2"] = make_weight("i2", random.uniform(0.1, 0.2, shapes[2]).astype(np.float32))
        types |= {name: weight.type for name, weight in weights.items()} | {"i1": TensorType(DType.INT64, shapes[1])}
        inputs = ("i1",)
    if op == "Gather":
        weights["i0"] = make_weight("i0", np.random.default_rng(1).standard_normal(shapes[0]).astype(np.float32))
        types["i1"], inputs = TensorType(DType.INT64, shapes[1]), ("i1",)
    types |= {"y": TensorType(result, out), "z": TensorType(result, out)}
    after = Node("after", "Abs", ("y",), ("z",))
    return Graph(
        "g", (Node("n", op, names, ("y",), attributes, domain), after), inputs, ("z",), weights, types, {"": 17, "com.microsoft": 1}
    )


def test_every_operator_with_partial_results_has_a_case() -> None:
    of_plans = {(OWN_DOMAIN, CHOSEN_EXPERTS)}  # its parts: tests/bbgrap/graph/test_divided_experts.py
    assert set(CASES) | of_plans == set(partial_operators())


@pytest.mark.parametrize(("domain", "op"), sorted(CASES))
@settings(max_examples=examples(8))
@given(data=st.data())
def test_parts_add_up(domain: str, op: str, data: st.DataObject) -> None:
    graph = graph_of(domain, op)
    descriptions = all_descriptions(graph)
    index = data.draw(st.sampled_from([i for i in reducible(graph, graph.nodes[0], descriptions["n"]) if i.extent > 1]))
    unit = part_unit(graph.nodes[0])
    cuts = sorted(unit * cut for cut in data.draw(st.sets(st.integers(1, (index.extent - 1) // unit), min_size=1, max_size=DEVICES - 1)))
    whole = ShapeMap.full(graph.types["y"].known_shape)
    parts = [Part(index.name, Interval(a, b)) for a, b in pairwise([0, *cuts, index.extent])]
    tiles = {"n": tuple(Tile(d, whole, part) for d, part in enumerate(parts)), "after": (Tile(DEVICES - 1, whole),)}
    plan = Plan("parts", graph, Cluster.even(DEVICES), tiles)
    assert not check_plan(plan, descriptions)
    random = np.random.default_rng(3)
    feeds = [
        random.integers(0, 50, kind.known_shape).astype(kind.dtype.numpy)
        if kind.dtype is DType.UINT8
        else random.integers(-9, 9, kind.known_shape)
        if kind.dtype is DType.INT64
        else random.standard_normal(kind.known_shape).astype(np.float32)
        for kind in (graph.types[name] for name in graph.inputs)
    ]
    values = all_values(graph, feeds)
    (got,) = run_checked(compile_checked(plan, descriptions).optimized, feeds, values)
    assert_close(got, values["z"], op)


@pytest.mark.parametrize(
    ("op", "dtype", "attributes"),
    [("ReduceProd", DType.FLOAT, {}), *((op, kind, {}) for op in ("ReduceSum", "ReduceProd") for kind in (DType.INT32, DType.INT64))]
    + [("Einsum", kind, {"equation": "ab->"}) for kind in (DType.INT32, DType.INT64)],
)
def test_what_parts_would_make_otherwise_has_none(op: str, dtype: DType, attributes: Mapping[str, Attribute]) -> None:
    """As onnxruntime answers over one range and over two: products too large or nothing in the middle, sums that are cut off."""
    keeps: Mapping[str, Attribute] = attributes or {"keepdims": 0}
    types = {"x": TensorType(dtype, (2, 2)), "y": TensorType(dtype, ())}
    graph = Graph("g", (Node("n", op, ("x",), ("y",), keeps),), ("x",), ("y",), {}, types, {"": 17})
    assert reducible(graph, graph.nodes[0], all_descriptions(graph)["n"]) == ()
    large = 1e20 if dtype is DType.FLOAT else np.iinfo(dtype.numpy).max
    small = -1 if op != "ReduceProd" else 1e-30 if dtype is DType.FLOAT else 2
    x = np.array([[large, large], [small, small]]).astype(dtype.numpy)
    whole, *parts = (
        all_values(replace(graph, types={**types, "x": TensorType(dtype, rows.shape)}), [rows])["y"] for rows in (x, x[:1], x[1:])
    )
    with np.errstate(all="ignore"):
        combined = (np.multiply if op == "ReduceProd" else np.add)(*parts)
    assert not np.array_equal(whole, combined)


def test_parts_of_nothing_are_refused() -> None:
    graph = graph_of("", "Gemm")
    whole, bounds = ShapeMap.full((3, 5)), (0, 0, 8, 8)
    tiles = tuple(Tile(d, whole, Part("k", Interval(a, b))) for d, (a, b) in enumerate(pairwise(bounds)))
    (fault,) = check_plan(Plan("parts", graph, Cluster.even(DEVICES), {"n": tiles, "after": (Tile(0, whole),)}))
    assert "do not divide 0:8" in fault


def test_a_node_without_partial_results_is_refused() -> None:
    graph = graph_of("", "Conv")
    after = graph.node_by_name["after"]
    description = all_descriptions(graph)["after"]
    assert description is not None
    with pytest.raises(PlanError, match="no partial results along 'ci'"):
        localize_part(graph, after, description, ShapeMap.full(description.shape), Part("ci", Interval(0, 2)))


def test_an_index_that_no_part_of_a_table_has_is_refused_by_all() -> None:
    graph = graph_of("", "Gather")
    node, whole = graph.nodes[0], ShapeMap.full((4, 2, 3, 5))
    description = all_descriptions(graph)["n"]
    assert description is not None
    for part, wrong in product((Interval(0, 4), Interval(4, 9)), (9, -10)):
        local = localize_part(graph, node, description, whole, Part("k", part))
        table = graph.weights["i0"].array
        case = Case("Gather", (table, np.full((2, 3), wrong)), node.attributes, frozenset((0,)))
        with pytest.raises(Exception, match="indices element out of data bounds"):
            run_local(case, local)
