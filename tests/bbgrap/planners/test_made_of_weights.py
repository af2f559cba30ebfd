"""Dequantized weights are made where they are read: no request waits for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.reference import Reference
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import PLANNERS
from bbgrap.program.statistics import statistics_of
from tests.partition import assert_close

F = TensorProto.FLOAT
UNEVEN = Cluster(tuple(NodeProfile(f"node{n}", share=share) for n, share in enumerate((3.0, 1.0, 2.0))))


def two_products(path: Path) -> Path:
    """Two products of words by weights in bytes, one of which is turned when it is dequantized, with a bias of both."""
    random = np.random.default_rng(3)
    numbers = {"v": random.integers(-90, 90, (16, 24)), "w": random.integers(-90, 90, (12, 24)), "b": random.integers(-9, 9, (12,))}
    weights = [numpy_helper.from_array(array.astype(np.int8), name) for name, array in numbers.items()]
    weights.append(numpy_helper.from_array(np.float32(0.01), "s"))
    nodes = [
        helper.make_node("DequantizeLinear", ["v", "s"], ["fv"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["fw"]),
        helper.make_node("DequantizeLinear", ["b", "s"], ["fb"]),
        helper.make_node("Transpose", ["fw"], ["tw"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "fv"], ["h"]),
        helper.make_node("Tanh", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "tw"], ["p"]),
        helper.make_node("Add", ["p", "fb"], ["y"]),
    ]
    x, y = helper.make_tensor_value_info("x", F, [1, 30, 16]), helper.make_tensor_value_info("y", F, [1, 30, 12])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.mark.parametrize("planner", ["bbgrap", "fewer-exchanges"])
@pytest.mark.parametrize("split", ["rows", "channels", "inputs"])
def test_dequantized_weights_are_made_where_they_are_read(planner, split, tmp_path: Path) -> None:
    path = two_products(tmp_path / "model.onnx")
    graph = load_graph(path, {})
    compiled = plan_graph(graph, UNEVEN, PlanOptions(planner, split)).compiled
    dequantizers = [node for node in graph.nodes if node.op == "DequantizeLinear"]
    tiles = [compiled.plan.tiles[node.name] for node in dequantizers]
    assert [[tile.device for tile in each] for each in tiles] == [[0, 1, 2]] * 3
    if split == "rows":
        assert statistics_of(compiled.optimized).bytes == 0
    if (planner, split) == ("bbgrap", "channels"):
        sizes = [int(np.prod(graph.types[node.first_output].known_shape)) for node in dequantizers]
        assert [sum(tile.region.size for tile in each) for each in tiles] == sizes
    x = np.random.default_rng(5).standard_normal((1, 30, 16)).astype(np.float32)
    artifacts = export(compiled.optimized)
    (got,) = simulate(artifacts, [x], local_kernels(artifacts))
    (want,) = Reference(path).run({"x": x})
    assert_close(got, want, split)


@pytest.mark.parametrize("cluster", [Cluster.even(2), UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("planner", PLANNERS)
def test_no_planner_sends_what_is_made_of_weights(planner: str, cluster: Cluster, tmp_path: Path) -> None:
    path = two_products(tmp_path / "model.onnx")
    graph = load_graph(path, {})
    compiled = plan_graph(graph, cluster, PlanOptions(planner)).compiled
    sent = statistics_of(compiled.optimized).bytes_by_operator
    assert {op: sent.get(op, 0) for op in ("DequantizeLinear", "Transpose")} == {"DequantizeLinear": 0, "Transpose": 0}
    x = np.random.default_rng(5).standard_normal((1, 30, 16)).astype(np.float32)
    artifacts = export(compiled.optimized)
    (got,) = simulate(artifacts, [x], local_kernels(artifacts))
    (want,) = Reference(path).run({"x": x})
    assert_close(got, want, planner)


@pytest.mark.parametrize("read", ["as an output", "in a body"])
def test_what_others_read_stays_on_one_machine(read: str, tmp_path: Path) -> None:
    """An output is gathered once; a body runs on one machine, with all that it reads."""
    model = onnx.load(two_products(tmp_path / "model.onnx"))
    if read == "as an output":
        model.graph.output.append(helper.make_tensor_value_info("fb", F, [12]))
    else:
        bodies = [
            helper.make_graph([helper.make_node(op, ["fb"], [op])], op, [], [helper.make_empty_tensor_value_info(op)])
            for op in ("Neg", "Abs")
        ]
        nodes = [helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0), helper.make_node("Cast", ["m"], ["q"], to=TensorProto.BOOL)]
        model.graph.node.extend([*nodes, helper.make_node("If", ["q"], ["z"], then_branch=bodies[0], else_branch=bodies[1])])
        model.graph.output.append(helper.make_tensor_value_info("z", F, [12]))
    path = tmp_path / "more.onnx"
    onnx.save(model, path)
    graph = load_graph(path, {})
    compiled = plan_graph(graph, UNEVEN, PlanOptions("bbgrap", "rows")).compiled
    assert len(compiled.plan.tiles[graph.producers["fb"].name]) == 1
    x = np.random.default_rng(5).standard_normal((1, 30, 16)).astype(np.float32)
    artifacts = export(compiled.optimized)
    for got, want in zip(simulate(artifacts, [x], local_kernels(artifacts)), Reference(path).run({"x": x}), strict=True):
        assert_close(got, want, read)


@pytest.mark.parametrize("planner", ["tensor-parallel", "model-parallel", "hypar", "soybean", "one-weird-trick"])
def test_products_by_dequantized_weights_are_divided_as_those_by_weights(planner: str, tmp_path: Path) -> None:
    """They were no layers: machines computed them whole, or one of them did."""
    path = two_products(tmp_path / "model.onnx")
    graph = load_graph(path, {})
    compiled = plan_graph(graph, Cluster.even(2), PlanOptions(planner)).compiled
    for made in ("fv", "fw"):
        tiles = compiled.plan.tiles[graph.producers[made].name]
        assert {tile.device: 2 * tile.region.size for tile in tiles} == dict.fromkeys((0, 1), int(np.prod(graph.types[made].known_shape)))
    artifacts = export(compiled.optimized)
    x = np.random.default_rng(5).standard_normal((1, 30, 16)).astype(np.float32)
    (got,) = simulate(artifacts, [x], local_kernels(artifacts))
    (want,) = Reference(path).run({"x": x})
    assert_close(got, want, planner)
