"""Dynamically quantized networks: both forms are planned, the faster one is taken, and the answers are onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.cluster.types import Link
from bbgrap.compiler.artifacts import Artifacts
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph, prepare_graph, prepare_like
from bbgrap.engine.reference import Reference
from bbgrap.graph import Array, Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.forms import forms_of
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Tile, whole_output
from tests.onnx_models import write_model

BRIEF = PlanOptions("auto", search_seconds=1.0)
CHANNELS = 48
SIDE = 96


def _convolution(number: int, random: np.random.Generator) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    """A convolution as the dynamic quantizer leaves it."""
    x, y = f"x{number}", f"x{number + 1}"
    weight = random.integers(0, 255, (CHANNELS, CHANNELS, 3, 3), endpoint=True).astype(np.uint8)
    arrays = {f"w{number}": weight, f"wz{number}": np.uint8(131), f"ws{number}": np.float32(0.002)}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", [x], [f"q{number}", f"s{number}", f"z{number}"]),
        helper.make_node("ConvInteger", [f"q{number}", f"w{number}", f"z{number}", f"wz{number}"], [f"i{number}"], pads=[1] * 4),
        helper.make_node("Cast", [f"i{number}"], [f"c{number}"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"s{number}", f"ws{number}"], [f"b{number}"]),
        helper.make_node("Mul", [f"c{number}", f"b{number}"], [f"m{number}"]),
        helper.make_node("Relu", [f"m{number}"], [y]),
    ]
    return nodes, arrays


def network(path: Path, layers: int = 4) -> Path:
    """Convolutions of bytes in a row; rows are free."""
    random = np.random.default_rng(3)
    nodes, weights, shape = list[onnx.NodeProto](), dict[str, Any](), [1, CHANNELS, "h", SIDE]
    for number in range(layers):
        made, held = _convolution(number, random)
        nodes += made
        weights |= held
    return write_model(path, nodes, {"x0": shape}, {f"x{layers}": shape}, weights)


def transformer(path: Path) -> Path:
    """Products of bytes whose readers are other products: some of them fused with their quantizer, some not."""
    random, width = np.random.default_rng(4), 64
    nodes, held, x = list[onnx.NodeProto](), dict[str, Any](), "x"
    for number in range(4):
        arrays = {"w": random.integers(-127, 127, (width, width)).astype(np.int8), "wz": np.int8(0), "ws": np.float32(0.01)}
        held |= {f"{name}{number}": array for name, array in arrays.items()}
        n = number
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [x], [f"q{n}", f"s{n}", f"z{n}"]),
            helper.make_node("MatMulInteger", [f"q{n}", f"w{n}", f"z{n}", f"wz{n}"], [f"i{n}"]),
            helper.make_node("Cast", [f"i{n}"], [f"c{n}"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"s{n}", f"ws{n}"], [f"b{n}"]),
            helper.make_node("Mul", [f"c{n}", f"b{n}"], [f"m{n}"]),
            helper.make_node("Add", [f"m{n}", x], [f"y{n}"]),
        ]
        x = f"y{n}"
    return write_model(path, nodes, {"x": [1, 96, width]}, {x: [1, 96, width]}, held)


def even(count: int, link: Link) -> Cluster:
    cluster = Cluster(tuple(NodeProfile(f"node{n}") for n in range(count)))
    return replace(cluster, network=replace(cluster.network, between=link))


def answer(artifacts: Artifacts, feeds: Sequence[Array]) -> Array:
    return simulate(artifacts, feeds, local_kernels(artifacts))[0]


def drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    random = np.random.default_rng(5)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


FAST, SLOW = Link(1e12, 0.0), Link(1e5, 0.1)
NET = {"x0": (1, CHANNELS, SIDE, SIDE)}
WORDS = {"x": (1, 96, 64)}
ASKED = [BRIEF, PlanOptions(), PlanOptions(split="channels"), PlanOptions(split="inputs"), PlanOptions("tofu")]


@pytest.mark.parametrize("nodes", [2, pytest.param(3, marks=pytest.mark.broad)])
@pytest.mark.parametrize("options", ASKED, ids=lambda options: f"{options.planner}-{options.split}")
@pytest.mark.parametrize(("made", "shapes"), [(network, NET), (transformer, WORDS)])
def test_every_form_answers_with_the_bits_of_plain_onnxruntime(tmp_path, made, shapes, options: PlanOptions, nodes: int) -> None:  # type: ignore[no-untyped-def]
    path, feeds = made(tmp_path / "m.onnx"), drawn(shapes)
    (want,) = Reference(path).run(feeds)
    graph = load_graph(path, shapes)
    both = forms_of(graph)
    assert len(both) == 2
    for form in both:  # the second has no other form, so that it is planned as it is
        forecast = plan_graph(form, even(nodes, FAST), options)
        got = answer(export(forecast.compiled.optimized), list(feeds.values()))
        np.testing.assert_array_equal(got, want)


def pieces_of_ranges(graph: Graph, tiles: Mapping[str, Sequence[object]]) -> set[int]:
    """In how many parts the ranges of what nodes make are looked for."""
    found = [node for node in graph.nodes if node.op in ("ReduceMin", "ReduceMax") and node.inputs[0] in graph.producers]
    return {len(tiles[node.name]) for node in found}


def test_ranges_are_looked_for_in_parts_where_rows_are_divided(tmp_path: Path) -> None:
    graph = load_graph(network(tmp_path / "m.onnx"), NET)
    forecast = plan_graph(graph, even(3, FAST), PlanOptions())
    plan = forecast.compiled.plan
    assert plan.graph == forms_of(graph)[1]
    assert pieces_of_ranges(plan.graph, plan.tiles) == {3}
    small = [node for node in plan.graph.nodes if node.op == "DynamicQuantizeLinear"]
    assert [len(plan.tiles[node.name]) for node in small[1:]] == [3] * 3, "every node computes scale and zero point for itself"
    assert forecast.graph_of_one is graph


@pytest.mark.usefixtures("without_a_clock")
def test_a_machine_that_has_the_whole_model_keeps_the_quantizers_of_the_file(tmp_path: Path) -> None:
    """The other form reads every map once more."""
    graph = load_graph(network(tmp_path / "m.onnx"), NET)
    for cluster, options in ((even(2, SLOW), BRIEF), (even(1, FAST), BRIEF), (even(2, FAST), PlanOptions("single"))):
        forecast = plan_graph(graph, cluster, options)
        assert len(forecast.compiled.plan.devices_used) == 1
        assert forecast.compiled.plan.graph is graph
    (_, plan), *others = prepare_graph(graph, even(2, FAST), BRIEF)
    assert plan.graph == forms_of(graph)[1]
    alone = [other for _, other in others if len(other.devices_used) == 1]
    assert [other.graph for other in alone] == [graph]


def test_a_node_alone_is_predicted_with_the_quantizers_of_the_file(tmp_path: Path) -> None:
    graph = load_graph(network(tmp_path / "m.onnx"), NET)
    divided = plan_graph(graph, even(2, FAST), PlanOptions())
    single = plan_graph(graph, even(2, FAST), PlanOptions("single"))
    assert divided.compiled.plan.graph is not graph
    assert divided.single_s == single.single_s
    assert min(single.single_s) < min(replace(divided, whole=None).single_s)


def test_another_size_is_cut_like_the_first_one_in_the_same_form(tmp_path: Path) -> None:
    path, cluster = network(tmp_path / "m.onnx"), even(2, FAST)
    sizes = {"x0": (1, CHANNELS, 2 * SIDE, SIDE)}
    first, other = (load_graph(path, shapes) for shapes in (NET, sizes))
    (_, plan), *_ = prepare_graph(first, cluster, PlanOptions())
    assert plan.graph == forms_of(first)[1]
    made = prepare_like(other, [(first, plan.tiles)], cluster, PlanOptions())
    feeds = drawn(sizes)
    np.testing.assert_array_equal(answer(made.artifacts, list(feeds.values())), Reference(path).run(feeds)[0])


def sums(graph: Graph, op: str) -> list[int]:
    """The operations that products of a kind are charged."""
    pieces = Pieces(graph, all_descriptions(graph))
    return [pieces.work(node, Tile(0, whole_output(graph, node))).flops for node in graph.nodes if node.op == op]


def test_a_product_with_its_quantizer_in_one_is_charged_for_its_sums(tmp_path: Path) -> None:
    """Else it would seem to cost nothing, and the form with its sums in the open would never be taken."""
    before, apart = forms_of(load_graph(transformer(tmp_path / "m.onnx"), WORDS))
    fused, alone = sums(before, "DynamicQuantizeMatMul"), sums(apart, "MatMulIntegerToFloat")
    assert fused
    rows, width = WORDS["x"][1:]
    assert min(*fused, *alone) >= 2 * rows * width * width
    assert max(fused) == pytest.approx(max(alone), rel=0.1)
