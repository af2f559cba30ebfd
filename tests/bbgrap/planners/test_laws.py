"""Plans of models at the edge: products of vectors, tiles in padding, pieces with gaps, sequences: what once crashed planners."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from bbgrap.cluster import Cluster
from bbgrap.cluster.types import Link, Network
from bbgrap.cluster.wires import Wire, Wiring
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.reference import Reference
from bbgrap.graph import Array
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import SPLITS, PlanOptions
from bbgrap.planners.placements import Levels
from bbgrap.planners.plan import Plan, Tile, check_plan
from bbgrap.planners.registry import PLANNERS
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap
from bbgrap.tdl import Part, can_make
from bbgrap.zoo.builder import Builder
from tests.onnx_models import model_of
from tests.partition import assert_close
from tests.program_laws import compile_checked

OPTIONS = [*(PlanOptions(split=split) for split in SPLITS), *(PlanOptions(planner=name) for name in PLANNERS if name != "bbgrap")]
RANDOM = np.random.default_rng(11)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def saved(path: Path, nodes: list[onnx.NodeProto], shape: list[int], **weights: Array) -> Path:
    model = model_of(nodes, {"x": shape}, {"y": None}, weights, opset=18)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def assert_all_agree(path: Path, shape: tuple[int, ...], devices: int) -> None:
    feed = normal(*shape)
    (want,) = Reference(path).run({"x": feed})
    graph = load_graph(path, {"x": shape})
    for options in OPTIONS:
        artifacts = export(plan_graph(graph, Cluster.even(devices), options).compiled.optimized)
        (got,) = simulate(artifacts, [feed], local_kernels(artifacts))
        assert_close(got, want, f"{options.planner} {options.split}")


@pytest.mark.parametrize("devices", [2, 3])
def test_a_product_of_two_vectors_has_no_features_to_cut(devices: int, tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    assert_all_agree(saved(tmp_path / "m.onnx", nodes, [12], w=normal(12), b=normal(3)), (12,), devices)


def test_a_partial_tile_that_reads_only_padding_has_nothing_to_fetch(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[3, 0, 3, 0], name="conv")]
    path = saved(tmp_path / "m.onnx", nodes, [1, 4, 2, 5], w=normal(3, 4, 2, 1))
    feed = normal(1, 4, 2, 5)
    (want,) = Reference(path).run({"x": feed})
    graph = load_graph(path, {"x": feed.shape})
    descriptions = all_descriptions(graph)
    (conv,) = graph.nodes
    whole = ShapeMap.full((1, 3, 7, 5))
    rows = [whole.replace(2, IntervalSet.of(each)) for each in ((0, 2), (2, 7))]
    parts = [Part("ci", Interval(0, 2)), Part("ci", Interval(2, 4))]
    tiles = tuple(Tile(2 * r + p, region, part) for r, region in enumerate(rows) for p, part in enumerate(parts))
    plan = Plan("by hand", graph, Cluster.even(4), {conv.name: tiles})
    assert check_plan(plan, descriptions) == ()
    artifacts = export(compile_checked(plan, descriptions).optimized)
    (got,) = simulate(artifacts, [feed], local_kernels(artifacts))
    assert_close(got, want, "conv")


def rolled(tmp_path: Path) -> Path:
    """A convolution whose rows are rolled: what is needed of a part of the result has a gap in the convolution's rows."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Slice", ["c", "from", "end", "axis"], ["low"]),
        helper.make_node("Slice", ["c", "zero", "from", "axis"], ["high"]),
        helper.make_node("Concat", ["low", "high"], ["r"], axis=2),
        helper.make_node("Conv", ["r", "v"], ["y"], pads=[1, 1, 1, 1]),
    ]
    integers = {"from": np.array([7]), "end": np.array([9]), "zero": np.array([0]), "axis": np.array([2])}
    return saved(tmp_path / "m.onnx", nodes, [1, 3, 9, 8], w=normal(4, 3, 3, 3), v=normal(2, 4, 3, 3), **integers)


def test_an_operator_that_slides_makes_no_piece_with_gaps(tmp_path: Path) -> None:
    graph = load_graph(rolled(tmp_path), {"x": (1, 3, 9, 8)})
    descriptions = all_descriptions(graph)
    conv = graph.node_by_name["conv"]
    whole = ShapeMap.full((1, 4, 9, 8))
    gaps = whole.replace(2, IntervalSet.of((0, 2), (6, 9)))
    assert not can_make(graph, conv, descriptions["conv"], gaps)
    assert can_make(graph, conv, descriptions["conv"], whole.replace(1, IntervalSet.of((0, 1), (3, 4))))
    tiles = {"conv": (Tile(0, gaps), Tile(1, whole.replace(2, IntervalSet.of((2, 6)))))}
    others = {node.name: (Tile(0, ShapeMap.full(graph.types[node.outputs[0]].known_shape)),) for node in graph.nodes if node != conv}
    (fault,) = check_plan(Plan("by hand", graph, Cluster.even(2), tiles | others), descriptions)
    assert "makes no piece with gaps" in fault


@pytest.mark.parametrize("devices", [2, 3])
def test_rolled_maps_agree_in_every_plan(devices: int, tmp_path: Path) -> None:
    assert_all_agree(rolled(tmp_path), (1, 3, 9, 8), devices)


@pytest.mark.parametrize(("shape", "before"), [((1, 24, 4), ["Transpose"]), ((1, 4, 24), []), ((1, 4, 24), ["Relu"])])
def test_rows_are_what_windows_slide_over_though_it_comes_transposed(tmp_path: Path, shape: tuple[int, ...], before: list[str]) -> None:
    perm = {"Transpose": {"perm": [0, 2, 1]}}
    nodes = [helper.make_node(op, ["x"], ["maps"], **perm.get(op, {})) for op in before]
    nodes.append(helper.make_node("Conv", ["maps" if before else "x", "w"], ["c"], name="conv", pads=[1, 1]))
    nodes.append(helper.make_node("ConvTranspose", ["c", "u"], ["y"], name="up", strides=[2]))
    path = saved(tmp_path / "vocoder.onnx", nodes, list(shape), w=normal(6, 4, 3), u=normal(6, 2, 4))
    graph = load_graph(path, {"x": shape})
    plan = plan_graph(graph, Cluster.even(2), PlanOptions(split="rows")).compiled.plan
    assert [[len(tile.region.axes[2]) for tile in plan.tiles[name]] for name in ("conv", "up")] == [[12, 12], [25, 25]]
    assert_all_agree(path, shape, 2)


def test_a_device_with_two_tiles_of_a_node_breaks_a_law() -> None:
    builder = Builder("two", (1, 2, 6, 4))
    graph = builder.graph(builder.act("Relu", "input", "relu"))
    whole = ShapeMap.full((1, 2, 6, 4))
    halves = tuple(Tile(0, whole.replace(2, IntervalSet.of(rows))) for rows in ((0, 3), (3, 6)))
    (fault,) = check_plan(Plan("test", graph, Cluster.even(2), {"relu": halves}))
    assert fault == "node 'relu' (Relu): a device has two tiles"


def test_neighbours_on_a_line_are_no_subtrees() -> None:
    """Each end and its neighbour would be two equal parts, but the neighbours are as near to each other."""
    line = ("node0", "node2", "node3", "node1")
    wires = tuple(Wire(f"wire{n}", ends, Link(1e9, 1e-5)) for n, ends in enumerate(pairwise(line)))
    assert Levels.of(Cluster(Cluster.even(4).nodes, Network(coordinator_on="node0", wiring=Wiring(wires)))).devices == (0, 1, 2, 3)
