"""A plan for other shapes: cut alike, as legal, and its answers are right; or it is refused."""

import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import prepare_graph, prepare_like
from bbgrap.engine.reload import ReloadedModel
from bbgrap.errors import BbgrapError, PlanError
from bbgrap.graph import Graph, Node, TensorType
from bbgrap.graph.types import DType
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, Tile, verify_plan, whole_output
from bbgrap.planners.registry import make_plan
from bbgrap.planners.scale import scaled
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap
from bbgrap.tdl import Part, part_unit, reducible
from bbgrap.zoo import build
from bbgrap.zoo.vit import vit
from tests.examples import examples
from tests.free_models import other_shapes, save_free
from tests.partition import all_values, run_checked
from tests.program_laws import compile_checked
from tests.random_models import clusters, networks, plan_options, plans, random_feeds


def loaded(graph, *shapes):
    """The graphs of a network for its own shapes and for these; None where it has none for these."""
    with tempfile.TemporaryDirectory() as folder:
        path = save_free(graph, Path(folder) / "m.onnx")
        model = ReloadedModel(path)
        found = [model.graph(path, {name: graph.types[name].known_shape for name in graph.inputs})]
        for one in shapes:
            try:
                found.append(model.graph(path, one))
            except BbgrapError:  # too small for a window
                found.append(None)
            else:
                if any(kind.shape is None for kind in found[-1].types.values()):
                    found[-1] = None
        return found


def assert_right(plan):
    descriptions = all_descriptions(plan.graph)
    verify_plan(plan, descriptions)
    feeds = random_feeds(plan.graph)
    run_checked(compile_checked(plan, descriptions).optimized, feeds, all_values(plan.graph, feeds))


def scaled_to(plan, graph):
    return scaled(plan, graph, all_descriptions(graph))


@settings(max_examples=examples(40))
@given(networks(), st.data())
def test_any_plan_scales_to_one_that_answers_right_or_not_at_all(network, data):
    (graph, other) = loaded(network, data.draw(other_shapes(network)))
    plan = data.draw(plans(graph))
    assert scaled_to(plan, graph) == plan
    assume(other is not None)
    try:
        made = scaled_to(plan, other)
        verify_plan(made, all_descriptions(other))
    except PlanError:
        return
    assert_right(made)


@settings(max_examples=examples(40))
@given(networks(), clusters(), plan_options(), st.data())
def test_planned_ones_scale_and_answer_right(network, cluster, options, data):
    (graph, other) = loaded(network, data.draw(other_shapes(network)))
    plan = make_plan(graph, cluster, options)
    assert scaled_to(plan, graph) == plan
    assume(other is not None)
    assert_right(scaled_to(plan, other))


@pytest.mark.parametrize("shape", [(1, 3, 96, 80), (1, 3, 40, 64), (2, 3, 64, 64)])
@pytest.mark.parametrize("options", [PlanOptions(), PlanOptions(split="columns"), PlanOptions(planner="fewer-exchanges")], ids=str)
def test_overlaps_and_shares_stay(options, shape):
    """What neighbours both compute is as wide, and everyone has the same part of every map, to the row."""
    cluster = Cluster(tuple(NodeProfile(f"node{n}", share=share) for n, share in enumerate((1, 3, 2))))
    graph, other = loaded(build("tiny"), {"input": shape})
    plan = make_plan(graph, cluster, options)
    made = scaled_to(plan, other)
    assert_right(made)
    for node in graph.nodes:
        axes = zip(whole_output(graph, node).shape, whole_output(other, node).shape, strict=True)
        for axis, (old, new) in enumerate(axes):
            before, after = _spans(plan, node, axis), _spans(made, node, axis)
            if len(after) == len(before) and all(0 < a < b for a, b in before[1:-1]):
                for ((_, a), (b, _)), ((_, c), (d, _)) in zip(pairwise(before), pairwise(after), strict=True):
                    assert a - b == c - d or c == new or d == 0, (node.name, axis, before, after)
                    assert abs((a + b) / 2 / old - (c + d) / 2 / new) <= 1.5 / min(old, new)


def _spans(plan, node, axis):
    return sorted({(tile.region.axes[axis].hull.start, tile.region.axes[axis].hull.stop) for tile in plan.tiles[node.name]})


def test_partial_sums_scale_with_what_is_summed():
    """A mean over rows that two devices add up: the ranges of rows move with the cuts."""
    graph, other = loaded(build("tiny"), {"input": (1, 3, 96, 64)})
    plan = make_plan(graph, Cluster.even(2), PlanOptions())
    parts = {node: [tile.part.interval for tile in tiles if tile.part is not None] for node, tiles in plan.tiles.items()}
    assert any(parts.values())
    made = scaled_to(plan, other)
    moved = {node: [tile.part.interval for tile in tiles if tile.part is not None] for node, tiles in made.tiles.items()}
    assert {node: len(found) for node, found in moved.items()} == {node: len(found) for node, found in parts.items()}
    assert moved != parts
    assert_right(made)


SUMS = {
    "Gemm": (((3, None), (None, 5), (5,)), (3, 5), {"beta": 0.5}),
    "MatMul": (((2, 3, None), (None, 5)), (2, 3, 5), {}),
    "MatMulInteger": (((3, None), (None, 5)), (3, 5), {}),
    "Einsum": (((3, None), (None, 5)), (3, 5), {"equation": "ab,bc->ac"}),
    "ReduceMax": (((3, None),), (3,), {"axes": (1,), "keepdims": 0}),
    "ReduceMean": (((3, None),), (3, 1), {"axes": (1,)}),
    "GlobalMaxPool": (((2, 3, None, 5),), (2, 3, 1, 1), {}),
    "GlobalAveragePool": (((2, 3, None, 5),), (2, 3, 1, 1), {}),
}
"""What is read, with None where it is summed (maximised), what is made, and attributes."""


def graph_of_sum(op, extent):
    shapes, out, attributes = SUMS[op]
    read, made = (DType.UINT8, DType.INT32) if op == "MatMulInteger" else (DType.FLOAT, DType.FLOAT)
    types = {f"x{k}": TensorType(read, tuple(extent if size is None else size for size in shape)) for k, shape in enumerate(shapes)}
    node = Node("n", op, tuple(types), ("y",), attributes)
    return Graph("g", (node,), tuple(types), ("y",), {}, types | {"y": TensorType(made, out)}, {"": 17})


@pytest.mark.parametrize("op", SUMS)
@settings(max_examples=examples(20))
@given(data=st.data())
def test_whoever_has_nothing_to_sum_up_is_not_there(op, data):
    """Down to sums of one element; where parts must begin at multiples of four, they are refused or do."""
    old, new = data.draw(st.integers(2, 24)), data.draw(st.integers(1, 12))
    before, after = graph_of_sum(op, old), graph_of_sum(op, new)
    (index, *_) = reducible(before, before.nodes[0], all_descriptions(before)["n"])
    unit = part_unit(before.nodes[0])
    cuts = sorted(unit * cut for cut in data.draw(st.sets(st.integers(1, max(1, (old - 1) // unit)), min_size=1, max_size=3)))
    assume(cuts[-1] < old)
    parts = [Part(index.name, Interval(start, stop)) for start, stop in pairwise([0, *cuts, old])]
    tiles = tuple(Tile(device, whole_output(before, before.nodes[0]), part) for device, part in enumerate(parts))
    plan = Plan("p", before, Cluster.even(4), {"n": tiles})
    descriptions = all_descriptions(after)
    verify_plan(plan, all_descriptions(before))
    made = scaled_to(plan, after)
    if any(tile.part is not None and tile.part.interval.start % unit for tile in made.tiles["n"]):
        with pytest.raises(PlanError, match="multiple"):
            verify_plan(made, descriptions)
        return
    verify_plan(made, descriptions)
    feeds = [(10 * x).astype(after.types["x0"].dtype.numpy) for x in map(np.abs, random_feeds(after))] if unit > 1 else random_feeds(after)
    run_checked(compile_checked(made, descriptions).optimized, feeds, all_values(after, feeds))


@pytest.mark.parametrize("op", ["Gemm", "MatMul", "Einsum"])
def test_a_sum_of_nothing_is_whole(op):
    before, after = graph_of_sum(op, 8), graph_of_sum(op, 0)
    whole = whole_output(before, before.nodes[0])
    tiles = tuple(Tile(device, whole, Part("k0" if op == "Einsum" else "k", Interval(4 * device, 4 * device + 4))) for device in range(2))
    made = scaled_to(Plan("p", before, Cluster.even(2), {"n": tiles}), after)
    assert made.tiles["n"] == (Tile(0, whole),)
    assert_right(made)


def test_a_cut_stays_behind_the_one_before_it():
    """The first cut of the product is near the first one of the model, and follows it; the second is not near the second one."""

    def graph_of(extent):
        kinds = {"x": (3, extent), "w": (extent, 5), "a": (3, extent), "y": (3, 5)}
        nodes = (Node("a", "Relu", ("x",), ("a",)), Node("n", "MatMul", ("a", "w"), ("y",)))
        return Graph("g", nodes, ("x", "w"), ("y",), {}, {name: TensorType(DType.FLOAT, shape) for name, shape in kinds.items()}, {"": 17})

    def pieces(*cuts):
        return [Interval(start, stop) for start, stop in pairwise((0, *cuts, 100))]

    columns = tuple(Tile(d, ShapeMap((IntervalSet.full(3), IntervalSet.of(piece)))) for d, piece in enumerate(pieces(50, 60)))
    parts = tuple(Tile(d, ShapeMap.full((3, 5)), Part("k", piece)) for d, piece in enumerate(pieces(40, 42)))
    made = scaled_to(Plan("p", graph_of(100), Cluster.even(3), {"a": columns, "n": parts}), graph_of(1000))
    assert [str(tile.part) for tile in made.tiles["n"]] == ["k 0:490", "k 490:1000"]
    assert_right(made)


def rows_of_three(rows):
    kind = TensorType(DType.FLOAT, (rows, 3))
    return Graph("g", (Node("n", "Relu", ("x",), ("y",)),), ("x",), ("y",), {}, {"x": kind, "y": kind}, {"": 17})


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 100])
def test_few_rows_leave_some_without_any(size):
    """Four nodes on fewer rows: whoever has none is not there, and nothing is lost."""
    before, after = rows_of_three(8), rows_of_three(size)
    tiles = tuple(Tile(d, ShapeMap.of((2 * d, 2 * d + 2), (0, 3))) for d in range(4))
    made = scaled_to(Plan("p", before, Cluster.even(4), {"n": tiles}), after)
    if size:
        assert all(not tile.region.is_empty for tile in made.tiles["n"])
        assert_right(made)
    else:
        with pytest.raises(PlanError, match="it needs one tile"):
            verify_plan(made)


def test_tiles_with_gaps_or_inside_others_are_refused():
    before, after = rows_of_three(8), rows_of_three(12)
    whole, columns = ShapeMap.of((0, 8), (0, 3)), IntervalSet.of((0, 3))
    gaps = ShapeMap((IntervalSet((Interval(0, 2), Interval(6, 8))), columns))
    middle = ShapeMap.of((2, 6), (0, 3))
    for tiles in ((gaps, middle), (whole, middle)):
        plan = Plan("p", before, Cluster.even(2), {"n": tuple(Tile(d, region) for d, region in enumerate(tiles))})
        verify_plan(plan, all_descriptions(before))
        with pytest.raises(PlanError, match="cannot be cut alike"):
            scaled_to(plan, after)


def graph_of_lines(lines, columns, more=0):
    """Lines of columns; the columns of all lines one after another, and those of some further lines after them."""
    count, further = lines * columns, 2 * more
    kinds = {"x": (lines, columns, 2), "a": (lines, columns, 2), "b": (count, 2), "c": (count, 2)}
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("b", "Reshape", ("a", "to b"), ("b",)),
        Node("c", "Sigmoid", ("b",), ("c",)),
    ]
    weights = {"to b": np.array([count, 2])}
    if more:
        kinds |= {"z": (2, more, 2), "p": (2, more, 2), "q": (further, 2), "e": (count + further, 2)}
        nodes += [
            Node("p", "Relu", ("z",), ("p",)),
            Node("q", "Reshape", ("p", "to q"), ("q",)),
            Node("e", "Concat", ("c", "q"), ("e",), {"axis": 0}),
        ]
        weights["to q"] = np.array([further, 2])
    made = {name: make_weight(name, array) for name, array in weights.items()}
    types = {name: TensorType(DType.FLOAT, shape) for name, shape in kinds.items()} | {name: w.type for name, w in made.items()}
    inputs, outputs = (("x", "z"), ("e",)) if more else (("x",), ("c",))
    return Graph("g", tuple(nodes), inputs, outputs, made, types, {"": 17})


def halves_of_columns(graph):
    """Two devices have half of the columns of each line each, wherever lines are."""

    def ranges(lines, columns, half, offset=0):
        start, stop = (0, columns // 2) if half == 0 else (columns // 2, columns)
        return [(offset + line * columns + start, offset + line * columns + stop) for line in range(lines)]

    def region(node, half):
        lines, columns, _ = graph.types["x"].shape
        match node:
            case "a":
                return ShapeMap.of((0, lines), ranges(1, columns, half)[0], (0, 2))
            case "b" | "c":
                return ShapeMap((IntervalSet.of(*ranges(lines, columns, half)), IntervalSet.full(2)))
        _, more, _ = graph.types["z"].shape
        match node:
            case "p":
                return ShapeMap.of((0, 2), ranges(1, more, half)[0], (0, 2))
            case "q":
                return ShapeMap((IntervalSet.of(*ranges(2, more, half)), IntervalSet.full(2)))
        assert node == "e"
        both = (*ranges(lines, columns, half), *ranges(2, more, half, lines * columns))
        return ShapeMap((IntervalSet.of(*both), IntervalSet.full(2)))

    return {node.name: tuple(Tile(half, region(node.name, half)) for half in (0, 1)) for node in graph.nodes}


@pytest.mark.parametrize("more", [0, 6])
@pytest.mark.parametrize("was", [(3, 8), (1, 8)])
@pytest.mark.parametrize(("lines", "columns"), [(3, 12), (5, 8), (5, 12), (2, 12), (1, 14), (6, 4)])
def test_columns_of_lines_that_follow_one_another_are_cut_within_each_line(lines, columns, was, more):
    before, after = graph_of_lines(*was, more), graph_of_lines(lines, columns, 2 * more)
    plan = Plan("p", before, Cluster.even(2), halves_of_columns(before))
    assert scaled_to(plan, before) == plan
    made = scaled_to(plan, after)
    assert made.tiles == halves_of_columns(after)
    assert_right(made)


def test_a_cut_within_lines_that_no_operand_has_is_refused():
    before, after = graph_of_lines(3, 8), graph_of_lines(3, 12)
    rows = (ShapeMap.of((0, 2), (0, 8), (0, 2)), ShapeMap.of((2, 3), (0, 8), (0, 2)))
    tiles = halves_of_columns(before) | {"a": tuple(Tile(device, region) for device, region in enumerate(rows))}
    with pytest.raises(PlanError, match="they do not follow one another"):
        scaled_to(Plan("p", before, Cluster.even(2), tiles), after)


def test_a_model_with_other_nodes_is_refused():
    graph, other = build("tiny"), build("mobilenet_v2")
    with pytest.raises(PlanError, match="it has other nodes"):
        scaled_to(make_plan(graph, Cluster.even(2), PlanOptions()), other)


def test_a_transformer_that_is_other_nodes_with_another_batch_is_refused():
    graph, other = loaded_batch(vit("small", depth=1, width=16, heads=2, size=16, patch=8, classes=3), 2)
    plan = make_plan(graph, Cluster.even(2), PlanOptions())
    with pytest.raises(PlanError, match=r"it has other nodes|cannot be split there"):
        verify_plan(scaled_to(plan, other), all_descriptions(other))


def loaded_batch(graph, batch):
    with tempfile.TemporaryDirectory() as folder:
        path = save_free(graph, Path(folder) / "m.onnx", (0,))
        shapes = [(size, *graph.types["input"].known_shape[1:]) for size in (1, batch)]
        return [load_graph(path, {"input": shape}) for shape in shapes]


@pytest.mark.parametrize("name", ["tiny", "tiny_int8"])
def test_prepared_like_another(name):
    """What a planner's process makes of a plan for other shapes says from which it is, and is refused where one node is as fast."""
    cluster, options = Cluster.even(2), PlanOptions()
    graph, other, small = loaded(build(name), {"input": (1, 3, 1024, 1024)}, {"input": (1, 3, 8, 8)})
    fast = replace(cluster, network=replace(cluster.network, between=replace(cluster.network.between, latency_s=0.0)))
    (_, plan), *_ = prepare_graph(graph, fast, options)
    made = prepare_like(other, [(graph, plan.tiles)], fast, options)
    assert made.report["scaled_from"] == [[1, 3, 32, 32]]
    slow = replace(cluster, network=replace(cluster.network, between=replace(cluster.network.between, latency_s=1.0)))
    with pytest.raises(PlanError, match="one node is expected to be as fast"):
        prepare_like(small, [(graph, plan.tiles)], slow, options)
    tight = replace(fast, nodes=tuple(replace(node, memory_bytes=1000) for node in fast.nodes))
    with pytest.raises(PlanError, match="does not fit the memory"):
        prepare_like(other, [(graph, plan.tiles)], tight, options)
