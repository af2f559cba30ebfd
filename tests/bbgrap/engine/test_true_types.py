"""Known shapes are those that onnxruntime makes, and models of which onnx infers other ones agree with it in every partition."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.reload import ReloadedModel
from bbgrap.engine.sessions import make_session, open_session, session_options
from bbgrap.graph import Graph
from bbgrap.graph.onnx_io import write_graph
from bbgrap.planners.inspection import inspect_graph
from bbgrap.planners.options import SPLITS, PlanOptions
from tests.examples import examples
from tests.onnx_models import model_of, write_model
from tests.value_models import same

PLANNERS = ("widest", "tofu", "fewer-exchanges", "fused-tiles", "pipeline", "equal-chop")
OPTIONS = [*(PlanOptions(split=split) for split in SPLITS), *(PlanOptions(planner=planner) for planner in PLANNERS)]
F = TensorProto.FLOAT


def made_shapes(graph: Graph, feed: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all values as a run makes them."""
    inner = [name for node in graph.nodes for name in node.outputs if name]
    asked = Graph(graph.name, graph.nodes, graph.inputs, tuple(inner), graph.weights, graph.types, graph.opsets, graph.ir_version)
    options = session_options(threads=1)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = open_session(write_graph(asked, weights="inline").data, options, {})
    return {name: array.shape for name, array in zip(inner, session.run(None, feed), strict=True)}


def save(folder: Path, nodes: list[NodeProto], shape: list[int], weights: dict[str, Any] | None = None) -> Path:
    return write_model(folder / "model.onnx", nodes, {"x": shape}, {"y": None}, weights, opset=19)


@st.composite
def odd_nodes(draw: st.DrawFn) -> tuple[NodeProto, dict[str, Any]]:
    op = draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool", "Resize", "ConvTranspose"]))
    if op == "Resize":
        scales = [1, 1, *draw(st.tuples(*[st.floats(0.4, 3).map(np.float32)] * 2))]
        return helper.make_node(op, ["x", "", "scales"], ["p"], mode=draw(st.sampled_from(["nearest", "linear"]))), {
            "scales": np.array(scales, np.float32)
        }
    kernel = draw(st.lists(st.integers(1, 4), min_size=2, max_size=2))
    strides = draw(st.lists(st.integers(1, 4), min_size=2, max_size=2))
    if op == "ConvTranspose":
        extra = [draw(st.integers(0, stride - 1)) for stride in strides]
        padding = draw(st.sampled_from([{"auto_pad": "SAME_LOWER"}, {"auto_pad": "SAME_UPPER"}, {"pads": [0, 0, 0, 0]}]))
        weights = {"w": np.ones((3, 2, *kernel), np.float32)}
        return helper.make_node(op, ["x", "w"], ["p"], strides=strides, output_padding=extra, **padding), weights
    pads = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    dilations = draw(st.lists(st.integers(1, 2), min_size=2, max_size=2))
    return helper.make_node(op, ["x"], ["p"], kernel_shape=kernel, strides=strides, pads=pads, ceil_mode=1, dilations=dilations), {}


@settings(max_examples=examples(60), deadline=None)
@given(odd_nodes(), st.tuples(st.integers(3, 11), st.integers(3, 11)))
def test_known_shapes_are_those_that_a_run_makes(tmp_path_factory: pytest.TempPathFactory, odd: Any, extents: tuple[int, int]) -> None:
    node, weights = odd
    nodes = [helper.make_node("Relu", ["x"], ["r"]), node, helper.make_node("Transpose", ["p"], ["t"], perm=[0, 2, 3, 1])]
    node.input[0] = "r"
    nodes.append(helper.make_node("Sigmoid", ["t"], ["y"]))
    path = save(tmp_path_factory.mktemp("odd"), nodes, [2, 3, *extents], weights)
    feed = {"x": np.ones((2, 3, *extents), np.float32)}
    try:
        session = make_session(path, threads=1)
        (want,) = session.run(None, feed)
    except Exception:
        return
    graph = load_graph(path, {})
    assert {name: kind.shape for name, kind in graph.types.items() if name in graph.producers} == made_shapes(graph, feed)
    assert graph.types["y"].shape == want.shape


@st.composite
def einsums(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """Draw products of two operands, each of which may have extents of 1 where the other has more."""
    equation = draw(st.sampled_from(["bij,bjk->bik", "ij,jk->ki", "bij,bij->bi", "...ij,...jk->...ik", "abc,cb->a"]))
    extents = {letter: draw(st.integers(1, 5)) for letter in "abcijk."}
    terms = equation.split("->")[0].replace("...", ".").split(",")
    kept = st.sampled_from([True, True, False])
    return equation, [tuple(extents[letter] if draw(kept) else 1 for letter in term) for term in terms]


@settings(max_examples=examples(40), deadline=None)
@given(einsums())
def test_an_einsum_broadcasts_as_onnxruntime_does(tmp_path_factory: pytest.TempPathFactory, drawn: Any) -> None:
    equation, (first, second) = drawn
    weight = np.random.default_rng(0).standard_normal(second).astype(np.float32)
    nodes = [
        helper.make_node("Tanh", ["x"], ["r"]),
        helper.make_node("Einsum", ["r", "w"], ["p"], equation=equation),
        helper.make_node("Exp", ["p"], ["y"]),
    ]
    path = save(tmp_path_factory.mktemp("einsum"), nodes, list(first), {"w": weight})
    x = np.random.default_rng(1).standard_normal(first).astype(np.float32)
    (want,) = make_session(path, threads=1).run(None, {"x": x})
    graph = load_graph(path, {})
    assert graph.types["y"].shape == want.shape
    for options in (PlanOptions(split="batch"), PlanOptions(split="inputs"), PlanOptions(planner="tofu")):
        artifacts = export(plan_graph(graph, Cluster.even(3), options).compiled.optimized)
        (got,) = simulate(artifacts, [x], local_kernels(artifacts))
        assert same(got, want), f"{equation}, {first}, {second}, {options.planner}, {options.split}"


SLOPE = np.linspace(-1, 2, 6, dtype=np.float32)


@pytest.mark.parametrize(
    ("node", "weights"),
    [
        (helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[1, 2], dilations=[1, 2], auto_pad="SAME_UPPER"), {}),
        (helper.make_node("AveragePool", ["r"], ["p"], kernel_shape=[3, 3], strides=[4, 2], dilations=[2, 1], auto_pad="SAME_LOWER"), {}),
        (helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[1, 2], strides=[5, 4], pads=[0, 1, 0, 1], ceil_mode=1), {}),
        (helper.make_node("PRelu", ["r", "s"], ["p"]), {"s": SLOPE[:1].reshape(1, 1, 1, 1, 1)}),
        (helper.make_node("PRelu", ["r", "s"], ["p"]), {"s": SLOPE.reshape(2, 1, 3, 1, 1)}),
    ],
)
@pytest.mark.parametrize("after", [pytest.param("Tanh", marks=pytest.mark.broad), "GlobalAveragePool"])
def test_what_onnxruntime_does_otherwise_agrees_in_pieces(node: NodeProto, weights: dict[str, Any], after: str, tmp_path: Path) -> None:
    path = save(tmp_path, [helper.make_node("Neg", ["x"], ["r"]), node, helper.make_node(after, ["p"], ["y"])], [2, 3, 9, 11], weights)
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 11)).astype(np.float32)
    (want,) = make_session(path, threads=1).run(None, {"x": x})
    graph = load_graph(path, {})
    for options, devices in product(OPTIONS, (2, 5)):
        artifacts = export(plan_graph(graph, Cluster.even(devices), options).compiled.optimized)
        (got,) = simulate(artifacts, [x], local_kernels(artifacts))
        assert same(got, want), f"{options.planner}, {options.split}, {devices} devices"


def test_shapes_that_depend_on_values_stay_unknown(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1),
        helper.make_node("NonZero", ["p"], ["n"]),
        helper.make_node("Cast", ["n"], ["y"], to=F),
    ]
    graph = load_graph(save(tmp_path, nodes, [1, 1, 9, 9]), {})
    assert graph.types["p"].shape == (1, 1, 3, 3)
    assert graph.types["n"].shape is None
    assert graph.types["y"].shape is None


def test_what_follows_of_no_image_has_the_shape_of_a_run(tmp_path: Path) -> None:
    pool = helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1)
    path = save(tmp_path, [pool, helper.make_node("Relu", ["p"], ["y"])], [-1, 1, 9, 9])
    for images in (0, 2):
        assert load_graph(path, {"x": (images, 1, 9, 9)}).types["y"].shape == (images, 1, 3, 3)


@pytest.mark.parametrize(("op", "axes"), [("ReduceMean", [-3]), ("ReduceMax", [0, -2]), ("ReduceSum", [0, -2]), ("ReduceL2", [-1])])
def test_what_is_made_of_nothing_agrees_in_pieces(op: str, axes: list[int], tmp_path: Path) -> None:
    node = helper.make_node(op, ["x", "axes"], ["p"], keepdims=0)
    path = save(tmp_path, [node, helper.make_node("Relu", ["p"], ["y"])], [-1, 6, 8], {"axes": np.array(axes)})
    x = np.zeros((0, 6, 8), np.float32)
    (want,) = make_session(path, threads=1).run(None, {"x": x})
    graph = load_graph(path, {"x": x.shape})
    for options in OPTIONS:
        artifacts = export(plan_graph(graph, Cluster.even(3), options).compiled.optimized)
        (got,) = simulate(artifacts, [x], local_kernels(artifacts))
        assert same(got, want), f"{op}, {options.planner}, {options.split}"


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8])
def test_shapes_are_known_whatever_the_numbers(kind: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=kind),
        helper.make_node("MaxPool", ["c"], ["p", "places"], kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1),
        helper.make_node("Cast", ["p"], ["y"], to=F),
        helper.make_node("Neg", ["places"], ["unread"]),
    ]
    path = save(tmp_path, nodes, [1, 1, 9, 9])
    assert load_graph(path, {}).types["y"].shape == (1, 1, 3, 3)


def test_a_file_that_declares_wrong_shapes_is_not_believed(tmp_path: Path) -> None:
    path = save(tmp_path, [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Transpose", ["a"], ["y"])], [2, 3])
    proto = onnx.load(path)
    proto.graph.value_info.append(helper.make_tensor_value_info("a", F, [7, 7]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, ["K", -1]))
    onnx.save(proto, path)
    graph = load_graph(path, {})
    assert graph.types["a"].shape == (2, 3)
    assert graph.types["y"].shape == (3, 2)


@pytest.mark.parametrize(
    ("what", "places", "stays"),
    [
        ("every element", np.moveaxis(np.indices((3, 4)), 0, -1), False),
        ("every row", np.arange(3).reshape(3, 1), False),
        ("rows the other way round", np.arange(3)[::-1].reshape(3, 1), True),
        ("counted from the end", np.arange(-3, 0).reshape(3, 1), False),
        ("one row twice", np.array([[0], [1], [1]]), True),
    ],
)
def test_what_overwrites_everything_is_what_it_writes(what: str, places: np.ndarray, stays: bool, tmp_path: Path) -> None:
    """As exporters write an assignment to all places: it cannot be cut itself."""
    nodes = [
        helper.make_node("Relu", ["x"], ["old"]),
        helper.make_node("Neg", ["x"], ["new"]),
        helper.make_node("ScatterND", ["old", "places", "new"], ["z"]),
        helper.make_node("Exp", ["z"], ["y"]),
    ]
    path = save(tmp_path, nodes, [3, 4], {"places": places.astype(np.int64)})
    assert (load_graph(path, {}).nodes[-2].op == "ScatterND") is stays, what


def grid(*axes: range) -> np.ndarray:
    """Places of a box, in order."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1)


@pytest.mark.parametrize(
    ("places", "size"),
    [
        (grid(range(2, 5)), (3, 6, 8)),
        (grid(range(5), range(1, 4)), (5, 3, 8)),
        (grid(range(5), range(-2, 0), range(2, 4)), (5, 2, 2)),
        (grid(range(1, 4), range(6), range(5, 8)), (3, 6, 3)),
        (grid(range(3), range(4, 6), range(8)), (3, 2, 8)),
        (grid(range(5), range(6), range(1, 8, 2)), (5, 6, 4)),
        (grid(range(0, 5, 2), range(1, 4)), (3, 3, 8)),
        (grid(range(2, 4), range(0, 6, 3), range(1, 7)), (2, 2, 6)),
    ],
)
@pytest.mark.parametrize("blank", [False, True])
def test_an_assignment_to_a_slice_is_cut_along_every_axis(places: np.ndarray, size: tuple[int, ...], blank: bool, tmp_path: Path) -> None:
    """As PyTorch's exporters write it, into a map or a new one; a `ScatterND` is whole along all axes that its places are of."""
    weights = {"places": places.astype(np.int64), "from": [0, 0, 0], "to": size, "blank": np.zeros((5, 6, 8), np.float32)}
    nodes = [
        helper.make_node("Exp", ["x"], ["old"]),
        helper.make_node("Slice", ["x", "from", "to"], ["new"]),
        helper.make_node("ScatterND", ["blank" if blank else "old", "places", "new"], ["z"]),
        helper.make_node("Neg", ["z"], ["y"]),
    ]
    path = save(tmp_path, nodes, [5, 6, 8], weights)
    feed = np.random.default_rng(3).standard_normal((5, 6, 8)).astype(np.float32)
    (want,) = make_session(path.read_bytes(), threads=1).run(None, {"x": feed})
    graph = load_graph(path, {})
    layers = inspect_graph(graph)["layers"]
    assert all(layer["splits_along"] == [0, 1, 2] for layer in layers if layer["operator"] != "Slice")
    assert "ScatterND" not in {layer["operator"] for layer in layers}
    for split in SPLITS:
        artifacts = export(plan_graph(graph, Cluster.even(3), PlanOptions(split=split)).compiled.optimized)
        np.testing.assert_array_equal(simulate(artifacts, [feed], local_kernels(artifacts))[0], want)


def test_places_of_constants_are_counted_when_a_model_is_read(tmp_path: Path) -> None:
    """As PyTorch's older exporter counts up to a size: onnxruntime does not fold that, and all behind it would be of unknown shape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Slice", ["sizes", "first", "second"], ["words"]),
        helper.make_node("ConstantOfShape", ["words"], ["ones"], value=helper.make_tensor("one", TensorProto.INT64, [1], [1])),
        helper.make_node("NonZero", ["ones"], ["row"]),
        helper.make_node("Transpose", ["row"], ["places"]),
        helper.make_node("Gather", ["x", "places"], ["y"]),
    ]
    graph = load_graph(save(tmp_path, nodes, [5, 3], {"first": [0], "second": [1]}), {})
    assert [node.op for node in graph.nodes] == ["Gather"]
    assert graph.types["y"].shape == (5, 1, 3)


@pytest.mark.parametrize(("step", "last", "taken"), [(3, 27, True), (5, 45, True), (3, 26, False)])
def test_frames_that_are_cut_one_by_one_are_taken_at_once(step: int, last: int, taken: bool, tmp_path: Path) -> None:
    """As PyTorch's older exporter writes `unfold`: planning thousands of slices takes long."""
    starts = [*range(0, 9 * step, step), last]
    weights: dict[str, Any] = {"axis": [1]} | {f"from {k}": [start] for k, start in enumerate(starts)}
    weights |= {f"to {k}": [start + 4] for k, start in enumerate(starts)}
    nodes = [helper.make_node("Slice", ["x", f"from {k}", f"to {k}", "axis"], [f"part {k}"]) for k in range(10)]
    nodes += [helper.make_node("Unsqueeze", [f"part {k}", "axis"], [f"frame {k}"]) for k in range(10)]
    nodes += [helper.make_node("Concat", [f"frame {k}" for k in range(10)], ["frames"], axis=1), helper.make_node("Neg", ["frames"], ["y"])]
    path = save(tmp_path, nodes, [2, 50], weights)
    feed = np.random.default_rng(3).standard_normal((2, 50)).astype(np.float32)
    (want,) = make_session(path.read_bytes(), threads=1).run(None, {"x": feed})
    graph = load_graph(path, {})
    assert ([node.op for node in graph.nodes] == ["Gather", "Neg"]) is taken
    artifacts = export(plan_graph(graph, Cluster.even(3), PlanOptions(split="channels")).compiled.optimized)
    np.testing.assert_array_equal(simulate(artifacts, [feed], local_kernels(artifacts))[0], want)


def test_a_dimension_of_minus_one_is_free(tmp_path: Path) -> None:
    path = save(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], [-1, 3])
    assert load_graph(path, {"x": (5, 3)}).types["y"].shape == (5, 3)


def test_sizes_follow_through_operators_that_onnx_and_shapes_that_onnxruntime_does_not_follow(tmp_path):
    """Quantized decoders of any length: their heads are split by sizes that are asked of an input, between operators of onnxruntime's."""
    nodes = [
        helper.make_node("FusedMatMul", ["x", "w"], ["features"], domain="com.microsoft"),
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "one"], ["words"]),
        helper.make_node("Concat", ["one", "words", "heads"], ["split"], axis=0),
        helper.make_node("Reshape", ["features", "split"], ["each"]),
        helper.make_node("FusedMatMul", ["each", "v"], ["mixed"], domain="com.microsoft"),
        helper.make_node("Concat", ["one", "words", "rest"], ["join"], axis=0),
        helper.make_node("Reshape", ["mixed", "join"], ["y"]),
    ]
    random = np.random.default_rng(0)
    weights = {"w": random.random((8, 12), np.float32), "v": random.random((3, 3), np.float32), "one": np.array([1])}
    weights |= {"heads": np.array([4, -1]), "rest": np.array([-1])}
    model = model_of(nodes, {"x": [1, "words", 8]}, {"y": None}, weights, opset=19, domains={"com.microsoft": 1})
    onnx.save(model, tmp_path / "m.onnx")
    graph = ReloadedModel(tmp_path / "m.onnx").open_graph({"x": (1, 5, 8)}, {"x": frozenset({1})})
    assert [graph.types[name].shape for name in ("features", "each", "mixed", "y")] == [(1, 5, 12), (1, 5, 4, 3), (1, 5, 4, 3), (1, 5, 12)]


@pytest.mark.parametrize("read_inside", [False, True])
def test_an_element_type_that_nobody_infers_is_as_the_file_declares_it(read_inside: bool, tmp_path: Path) -> None:
    """Scores of an attention, which speech recognisers put out to align words: onnxruntime believes what the file says of their type."""
    nodes = [helper.make_node("MultiHeadAttention", ["x", "x", "x"], ["y", "", "", "scores"], domain="com.microsoft", num_heads=2)]
    last = "weights" if read_inside else "scores"
    nodes += [helper.make_node("Softmax", ["scores"], ["weights"])] if read_inside else []
    values = {name: helper.make_tensor_value_info(name, F, shape) for name, shape in (("x", [2, 5, 8]), ("y", None), ("scores", None))}
    outputs = [values["y"], helper.make_tensor_value_info(last, F, None)]
    graph = helper.make_graph(nodes, "g", [values["x"]], outputs, value_info=[values["scores"]] if read_inside else [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((2, 5, 8), np.float32)
    want = make_session(tmp_path / "m.onnx", threads=1).run(None, {"x": x})
    loaded = load_graph(tmp_path / "m.onnx", {})
    artifacts = export(plan_graph(loaded, Cluster.even(2), PlanOptions()).compiled.optimized)
    got = simulate(artifacts, [x], local_kernels(artifacts))
    assert all(same(mine, plain) for mine, plain in zip(got, want, strict=True))


def test_a_scalar_is_one_behind_a_quantizer_of_onnxruntimes_own(tmp_path: Path) -> None:
    """It declares a scalar like a tensor of unknown rank; quantizers of 16 bits are its own, and scale the products of attention."""
    read = {"x": ["b", 8], "s": []}
    nodes = [
        helper.make_node("QuantizeLinear", ["s", "step", "zero"], ["s_q"], domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["s_q", "step", "zero"], ["s_d"], domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["factor", "step", "zero"], ["f"], domain="com.microsoft"),
        helper.make_node("Mul", ["x", "s_d"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "f"], ["y"]),
    ]
    stored = {"step": np.array(0.01, np.float32), "zero": np.array(3, np.int16), "factor": np.array(700, np.int16)}
    path = write_model(tmp_path / "m.onnx", nodes, read, {"y": None}, stored, domains={"com.microsoft": 1})
    graph = load_graph(path, {"x": (6, 8), "s": ()})
    assert {graph.types[name].shape for name in ("s_q", "s_d", "f")} == {()}
    assert not [layer for layer in inspect_graph(graph)["layers"] if layer["whole_because"]]
