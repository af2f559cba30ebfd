"""Control flow as exporters write it: decided branches become nodes that split, the rest runs whole, answers are onnxruntime's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError
from bbgrap.graph import Graph
from bbgrap.graph.onnx_io import with_input_shapes
from bbgrap.graph.onnx_read import read_model
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, Tile, whole_output
from tests.light_control_flow import node, normal, speech_like, untyped
from tests.onnx_models import model_of
from tests.value_models import same

F, I64, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
MAP = [1, 4, 8, 8]
OPTIONS = [
    PlanOptions(),
    PlanOptions(split="channels"),
    PlanOptions(planner="tofu"),
    PlanOptions(planner="widest"),
    PlanOptions(planner="auto", search_seconds=0.5),
]


def value(name: str, kind: int, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], free: bool = False) -> onnx.ModelProto:
    return model_of(nodes, {"x": ["N", 4, "H", "W"] if free else MAP}, ["y"], weights, opset=18)


def conv(x: str, y: str) -> onnx.NodeProto:
    return node("Conv", f"{x} w", y, pads=[1, 1, 1, 1])


def decided_by_a_shape() -> onnx.ModelProto:
    """The branch is known once the input's shape is: a small map is processed as it is, a large one is pooled first."""
    small = helper.make_graph([node("Relu", "a", "s0"), conv("s0", "s")], "small", [], [untyped("s")])
    large = helper.make_graph([node("MaxPool", "a", "l0", kernel_shape=[2, 2]), conv("l0", "l")], "large", [], [untyped("l")])
    nodes = [
        conv("x", "a"),
        node("Shape", "x", "shape"),
        node("Gather", "shape two", "rows"),
        node("Less", "rows bound", "is_small"),
        node("If", "is_small", "b", then_branch=small, else_branch=large),
        conv("b", "y"),
    ]
    return model(nodes, {"w": normal(1, 4, 4, 3, 3), "two": np.int64(2), "bound": np.int64(100)}, free=True)


def branch_in_a_branch() -> onnx.ModelProto:
    inner = [helper.make_graph([node(op, "a", f"{op}i")], op, [], [untyped(f"{op}i")]) for op in ("Neg", "Abs")]
    outer = helper.make_graph(
        [node("If", "c2", "i", then_branch=inner[0], else_branch=inner[1]), conv("i", "o")], "outer", [], [untyped("o")]
    )
    other = helper.make_graph([node("Identity", "a", "p")], "other", [], [untyped("p")])
    nodes = [
        conv("x", "a"),
        node("ReduceMax", "a", "m", keepdims=0),
        node("Greater", "m zero", "c1"),
        node("Less", "m zero", "c2"),
        node("If", "c1", "b", then_branch=outer, else_branch=other),
        conv("b", "y"),
    ]
    return model(nodes, {"w": normal(2, 4, 4, 3, 3), "zero": np.float32(0)})


def a_loop_that_reads_outside() -> onnx.ModelProto:
    body = helper.make_graph(
        [conv("s", "t"), node("Add", "t a", "u"), node("Mul", "u half", "so"), node("Identity", "ci", "co")],
        "body",
        [value("i", I64, []), value("ci", B, []), value("s", F, MAP)],
        [value("co", B, []), value("so", F, MAP)],
    )
    nodes = [conv("x", "a"), node("Loop", "n true a", "b", body=body), conv("b", "y")]
    return model(nodes, {"w": normal(3, 4, 4, 3, 3), "half": np.float32(0.1), "n": np.int64(3), "true": np.array(True)})


def a_scan_that_reads_outside() -> onnx.ModelProto:
    row = [4, 8]
    body = helper.make_graph(
        [node("Add", "state part", "t"), node("Mul", "t scale", "state2"), node("Relu", "state2", "made")],
        "body",
        [value("state", F, row), value("part", F, row)],
        [value("state2", F, row), value("made", F, row)],
    )
    nodes = [
        conv("x", "a"),
        node("Squeeze", "a zero", "rows"),
        node("ReduceMean", "a", "scale", keepdims=0),
        node("Scan", "start rows", "last all", body=body, num_scan_inputs=1, scan_input_axes=[1]),
        node("Unsqueeze", "all zero", "b"),
        node("Transpose", "b", "c", perm=[0, 2, 1, 3]),
        conv("c", "y"),
    ]
    return model(nodes, {"w": normal(4, 4, 4, 3, 3), "zero": np.array([0]), "start": np.zeros(row, np.float32)})


def functions_in_functions() -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    twice = helper.make_function("own", "Twice", ["p"], ["q"], [node("Add", "p p", "q")], imports)
    block = helper.make_function(
        "own",
        "Block",
        ["p", "v"],
        ["q"],
        [helper.make_node("Twice", ["p"], ["t"], domain="own"), helper.make_node("Conv", ["t", "v"], ["q"], pads=[1, 1, 1, 1])],
        imports,
    )
    calls = [helper.make_node("Block", [x, "w"], [y], domain="own") for x, y in (("x", "a"), ("a", "b"))]
    proto = model([*calls, node("Relu", "b", "y")], {"w": normal(5, 4, 4, 3, 3)})
    proto.functions.extend([twice, block])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


def compared(path: Path, feed: dict[str, np.ndarray]) -> Graph:
    """Compare every partition with plain onnxruntime, and return the graph."""
    want = make_session(path, threads=1).run(None, feed)
    graph = load_graph(path, {name: array.shape for name, array in feed.items()})
    for options, devices in product(OPTIONS, (2, 3)):
        artifacts = export(plan_graph(graph, Cluster.even(devices), options).compiled.optimized)
        got = simulate(artifacts, [feed[name] for name in graph.inputs], local_kernels(artifacts))
        assert all(map(same, got, want)), f"{options.planner}, {options.split}, {devices} devices"
    return graph


@pytest.mark.parametrize(
    ("make", "whole"),
    [
        (decided_by_a_shape, set()),
        (branch_in_a_branch, {"If"}),
        (a_loop_that_reads_outside, {"Loop"}),
        (a_scan_that_reads_outside, {"Scan"}),
        (functions_in_functions, set()),
    ],
)
def test_control_flow_agrees_with_onnxruntime(make: Callable[[], onnx.ModelProto], whole: set[str], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(make(), path)
    graph = compared(path, {"x": normal(9, *MAP)})
    assert {item.op for item in graph.nodes} & {"If", "Loop", "Scan", "Block", "Twice"} == whole
    assert graph.types["y"].shape == tuple(MAP) or whole & {"If", "Loop"}  # of these, nobody knows shapes before the run


def test_bodies_read_what_has_no_elements(tmp_path: Path) -> None:
    """No image: what a loop begins with and its body reads is empty, and so is what no branch makes."""
    body = helper.make_graph(
        [node("Add", "s a", "so"), node("Identity", "ci", "co")],
        "body",
        [value("i", I64, []), value("ci", B, []), helper.make_tensor_value_info("s", F, ["N", 4, "H", "W"])],
        [value("co", B, []), untyped("so")],
    )
    branches = [helper.make_graph([node(op, "x", f"{op}x")], op, [], [untyped(f"{op}x")]) for op in ("Neg", "Abs")]
    nodes = [
        conv("x", "a"),
        node("Loop", "n true a", "b", body=body),
        node("ReduceSum", "b", "sum", keepdims=0),
        node("Greater", "sum zero", "positive"),
        node("If", "positive", "c", then_branch=branches[0], else_branch=branches[1]),
        node("Add", "b c", "d"),
        conv("d", "y"),
    ]
    weights = {"w": normal(7, 4, 4, 3, 3), "n": np.int64(2), "true": np.array(True), "zero": np.float32(0)}
    onnx.save(model(nodes, weights, free=True), tmp_path / "model.onnx")
    for images in (0, 2):
        compared(tmp_path / "model.onnx", {"x": normal(8, images, 4, 8, 8)})


def test_the_branch_follows_the_shape(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(decided_by_a_shape(), path)
    small, large = (load_graph(path, {"x": (1, 4, rows, 8)}) for rows in (8, 200))
    assert "MaxPool" not in {item.op for item in small.nodes}
    assert "MaxPool" in {item.op for item in large.nodes}


def test_a_branch_that_the_sizes_contradict_is_never_told_them(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(speech_like(), path)
    feed = {"sound": normal(6, 1, 64), "state": np.zeros((2, 1, 8), np.float32), "rate": np.array(16000)}
    told = with_input_shapes(read_model(path), {name: array.shape for name, array in feed.items()})
    with pytest.raises(ModelError, match="onnxruntime"):
        make_session(told.detached()[0], weights=told.weights, threads=1)
    assert compared(path, feed).hides_sizes


def test_a_branch_that_an_empty_input_contradicts_is_never_told_it(tmp_path: Path) -> None:
    """A state that is empty at first: the branch for later requests adds to it what has elements."""
    later = helper.make_graph([node("Add", "state w", "later")], "later", [], [untyped("later")])
    first = helper.make_graph([node("Abs", "w", "first")], "first", [], [untyped("first")])
    nodes = [
        node("Shape", "state", "sizes", start=0, end=1),
        node("Equal", "sizes none", "is_first"),
        node("If", "is_first", "out", then_branch=first, else_branch=later),
    ]
    weights = {"w": normal(3, 2, 3), "none": np.array([0])}
    onnx.save(model_of(nodes, {"state": ["N", 3]}, ["out"], weights), tmp_path / "model.onnx")
    assert compared(tmp_path / "model.onnx", {"state": np.zeros((0, 3), np.float32)}).hides_sizes
    assert not compared(tmp_path / "model.onnx", {"state": normal(4, 2, 3)}).hides_sizes


def test_pieces_of_one_have_the_shape_that_onnxruntime_makes(tmp_path: Path) -> None:
    """As torch writes `unbind`: with a `split`, onnx infers that the axis stays; onnxruntime leaves it out if it is told to."""
    nodes = [
        node("NonZero", "x", "where"),
        node("SplitToSequence", "where one", "parts", axis=0, keepdims=0),
        node("SequenceAt", "parts zero", "rows"),
        node("Gather", "w rows", "taken", axis=0),
        node("Shape", "taken", "sizes"),
        node("ReduceProd", "sizes", "count", keepdims=0),
        node("Greater", "count zero", "any"),
        node("If", "any", "y", then_branch=branch("Neg"), else_branch=branch("Abs")),
    ]
    weights = {"w": normal(5, 4, 3), "one": np.array(1), "zero": np.array(0)}
    onnx.save(model_of(nodes, {"x": [4]}, ["y"], weights), tmp_path / "model.onnx")
    graph = compared(tmp_path / "model.onnx", {"x": np.array([0, 1, 0, 2], np.float32)})
    assert graph.types["sizes"].shape == (2,)


def branch(op: str) -> onnx.GraphProto:
    return helper.make_graph([node(op, "taken", f"{op}_taken")], op, [], [untyped(f"{op}_taken")])


def a_loop_over_boxes(*, scales: bool) -> onnx.ModelProto:
    """As detectors paste their masks: the body scales one to each of as many boxes as were found, or reads an optional value."""
    nodes = [
        node("OptionalGetElement", "perhaps", "boxes_there"),
        node("Gather", "boxes i", "box", axis=0),
        node("Gather", "box two", "right"),
        node("Unsqueeze", "right first", "width"),
        node("Concat", "width one", "widths", axis=0),
        node("ReduceMax", "widths", "side", keepdims=0),
        node("Unsqueeze", "side first", "sides"),
        node("Shape", "mask", "all"),
        node("Slice", "all first two_long first", "head"),
        node("Concat", "head sides sides", "sizes", axis=0),
        helper.make_node("Resize", ["mask", "", "", "sizes"], ["scaled"], mode="linear")
        if scales
        else node("Cast", "boxes_there", "scaled", to=F),
        node("ReduceSum", "scaled", "total", keepdims=0),
        node("Unsqueeze", "total first", "added"),
        node("Add", "sum added", "sum_out"),
        node("Identity", "go", "go_out"),
    ]
    stored = {"first": np.array([0]), "one": np.array([1]), "two": np.array(2), "two_long": np.array([2])}
    weights = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    ends = ([value("i", I64, []), value("go", B, []), value("sum", F, [1])], [value("go_out", B, []), value("sum_out", F, [1])])
    body = helper.make_graph(nodes, "paste", *ends, weights)
    outer = [
        node("NonZero", "x", "found"),
        node("Squeeze", "found axis", "places"),
        node("Gather", "table places", "boxes", axis=0),
        node("Optional", "boxes", "perhaps"),
        node("Shape", "boxes", "extents"),
        node("Gather", "extents zero", "count"),
        helper.make_node("Loop", ["count", "yes", "start"], ["y"], body=body, name="loop"),
    ]
    table = np.arange(12).reshape(3, 4) + 2
    given = {"axis": np.array([0]), "zero": np.array(0), "yes": np.array(True), "start": np.zeros(1, np.float32), "table": table}
    return model_of(outer, {"x": [3], "mask": [1, 1, 4, 4]}, ["y"], given)


@pytest.mark.parametrize("scales", [True, False])
def test_a_body_is_told_the_rank_of_what_comes_from_another_device(scales: bool, tmp_path: Path) -> None:
    """onnxruntime infers a size for the `Resize` that it refuses, where it does not know that the boxes are a matrix.

    Of an optional value it tells the shape of what is in it: that is no tensor all the same.
    """
    path = tmp_path / "model.onnx"
    onnx.save(a_loop_over_boxes(scales=scales), path)
    feed = {"x": np.array([1, 0, 2], np.float32), "mask": normal(3, 1, 1, 4, 4)}
    graph = compared(path, feed)
    assert graph.ranks["boxes"] == 2
    tiles = {item.name: (Tile(int(item.op == "Loop"), whole_output(graph, item)),) for item in graph.nodes}
    artifacts = export(compile_plan(Plan("by hand", graph, Cluster.even(2), tiles), all_descriptions(graph)).optimized)
    (got,) = simulate(artifacts, [feed[name] for name in graph.inputs], local_kernels(artifacts))
    assert same(got, make_session(path, threads=1).run(None, feed)[0])


def test_a_branch_is_told_the_shape_of_what_is_in_an_optional_value(tmp_path: Path) -> None:
    """onnxruntime takes sizes that a `Resize` reads out of one for none, where it does not know that there are four."""
    reads = node("OptionalGetElement", "perhaps", "sizes")
    scales = helper.make_node("Resize", ["hidden", "", "", "sizes"], ["scaled"], mode="nearest")
    branches = {
        "then_branch": helper.make_graph([reads, scales], "scale", [], [untyped("scaled")]),
        "else_branch": helper.make_graph([node("Relu", "hidden", "kept")], "keep", [], [untyped("kept")]),
    }
    outer = [
        node("Conv", "x w", "hidden"),
        node("Optional", "four", "perhaps"),
        helper.make_node("If", ["large"], ["chosen"], name="if", **branches),
        node("Relu", "chosen", "y"),
    ]
    weights = {"w": normal(1, 2, 3, 1, 1), "four": np.array([1, 2, 16, 16])}
    path = tmp_path / "model.onnx"
    onnx.save(model_of(outer, {"x": [1, 3, 8, 8], "large": []}, ["y"], weights, kinds={"large": B}), path)
    for large in (False, True):
        graph = compared(path, {"x": normal(2, 1, 3, 8, 8), "large": np.array(large)})
        assert {item.op for item in graph.nodes} >= {"Optional", "If"}
