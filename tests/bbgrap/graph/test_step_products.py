"""Products of training steps as others write them: divided, no momentum travels, and no map travels twice; nothing else is touched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bbgrap.cluster import Cluster
from bbgrap.compiler.direct import build_direct
from bbgrap.graph import DType, Graph, Node, TensorType, check_graph
from bbgrap.graph.state import with_state
from bbgrap.graph.step_products import with_step_products
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.forms import form_with, forms_of
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.registry import make_plan
from benchmarks.papers.graphs import between_agents
from tests.partition import assert_close, plain_outputs

BATCH, WIDE, NARROW = 8, 24, 16
FLOAT = np.dtype(np.float32).itemsize
SIZES = {"x": (BATCH, WIDE), "w": (WIDE, WIDE), "w.m": (WIDE, WIDE), "v": (WIDE, NARROW), "v.m": (WIDE, NARROW), "want": (BATCH, NARROW)}


def matrix(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT, shape)


def step(*, momentum: bool = True) -> Graph:
    """Two layers and their update, with transposed maps and weights as nodes, as onnxruntime loads it: sums with what is added in one."""
    nodes = [
        Node("y", "MatMul", ("x", "w"), ("y",)),
        Node("z", "MatMul", ("y", "v"), ("z",)),
        Node("dz", "Sub", ("z", "want"), ("dz",)),
        Node("dz2", "Mul", ("dz", "dz"), ("dz2",)),
        Node("loss", "ReduceSum", ("dz2",), ("loss",), {"keepdims": 0}),
        Node("vt", "Transpose", ("v",), ("vt",), {"perm": (1, 0)}),
        Node("dy", "MatMul", ("dz", "vt"), ("dy",)),
    ]
    types = {name: matrix(*shape) for name, shape in SIZES.items()} | {
        "y": matrix(BATCH, WIDE),
        "dy": matrix(BATCH, WIDE),
        "vt": matrix(NARROW, WIDE),
        "loss": matrix(),
        **dict.fromkeys(("z", "dz", "dz2"), matrix(BATCH, NARROW)),
    }
    for weight, read, gradient in (("w", "x", "dy"), ("v", "y", "dz")):
        kind = types[weight]
        turned = f"{read}t"
        nodes.append(Node(turned, "Transpose", (read,), (turned,), {"perm": (1, 0)}))
        types[turned] = matrix(*reversed(types[read].known_shape))
        if momentum:
            nodes.append(Node(f"{weight}.d", "Mul", (f"{weight}.m", "decay"), (f"{weight}.d",)))
            nodes.append(Node(f"{weight}.m.next", "Gemm", (turned, gradient, f"{weight}.d"), (f"{weight}.m.next",)))
        else:
            nodes.append(Node(f"{weight}.m.next", "MatMul", (turned, gradient), (f"{weight}.m.next",)))
        nodes.append(Node(f"{weight}.u", "Mul", (f"{weight}.m.next", "rate"), (f"{weight}.u",)))
        nodes.append(Node(f"{weight}.next", "Sub", (weight, f"{weight}.u"), (f"{weight}.next",)))
        types |= dict.fromkeys((f"{weight}.d", f"{weight}.m.next", f"{weight}.u", f"{weight}.next"), kind)
    state = ["w", "v", *(("w.m", "v.m") if momentum else ())]
    inputs = ("x", "want", *state)
    weights = {name: make_weight(name, np.array(value, np.float32)) for name, value in (("decay", 0.9), ("rate", 0.01))}
    used = {value for node in nodes for value in (*node.inputs, *node.outputs)}
    types = {name: kind for name, kind in (types | {name: w.type for name, w in weights.items()}).items() if name in used}
    weights = {name: weight for name, weight in weights.items() if name in used}
    graph = Graph("step", tuple(nodes), inputs, ("loss", *(f"{name}.next" for name in state)), weights, types, {"": 17})
    return with_state(graph, {name: f"{name}.next" for name in state})


def moved(graph: Graph, planner: str) -> int:
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, Cluster.even(2), PlanOptions(planner=planner), descriptions)  # type: ignore[arg-type]
    return between_agents(build_direct(plan, Pieces(graph, descriptions)))


@pytest.mark.parametrize("momentum", [True, False])
def test_both_forms_answer_the_same(momentum):
    graph = step(momentum=momentum)
    apart = with_step_products(graph, ())
    check_graph(apart)
    assert {node.op for node in apart.nodes} == {"MatMul", "Gemm", "Sub", "Mul", "ReduceSum"} | ({"Add"} if momentum else set())
    random = np.random.default_rng(0)
    feeds = [random.standard_normal(graph.types[name].known_shape).astype(np.float32) for name in graph.inputs]
    for name, got, want in zip(graph.outputs, plain_outputs(apart, feeds), plain_outputs(graph, feeds), strict=True):
        assert_close(got, want, name)
    assert forms_of(graph) == (graph, apart)
    assert form_with(graph, apart.node_by_name) == apart


def test_no_momentum_travels():
    """What travels are gradients to be summed and new weights, and a part of the loss."""
    weights = FLOAT * (WIDE * WIDE + WIDE * NARROW)
    graph, apart = forms_of(step())
    assert moved(apart, "data-parallel") == 2 * weights + FLOAT
    assert moved(graph, "data-parallel") == 3 * weights + FLOAT


def test_a_map_that_is_gathered_is_not_gathered_transposed_too():
    """Divided by features the second layer reads all of y, and so does its gradient."""
    graph, apart = forms_of(step(momentum=False))
    assert moved(apart, "soybean") < moved(graph, "soybean")


def test_only_products_of_models_with_state_in_which_bits_do_not_count_are_touched():
    graph = step()
    assert with_step_products(replace(graph, state={}), ()).nodes == graph.nodes
    assert with_step_products(graph, graph.node_by_name) is graph
    assert with_step_products(replace(graph, opsets={"": 9}), ()).opsets == {"": 9}
    scaled = replace(graph, nodes=tuple(replace(n, attributes={"beta": 0.5}) if n.op == "Gemm" else n for n in graph.nodes))
    assert not any(node.op == "Add" for node in with_step_products(scaled, ()).nodes)
    as_it_is = replace(graph, nodes=tuple(replace(n, attributes={"perm": (0, 1)}) if n.op == "Transpose" else n for n in graph.nodes))
    assert sum(node.op == "Transpose" for node in with_step_products(as_it_is, ()).nodes) == 3
