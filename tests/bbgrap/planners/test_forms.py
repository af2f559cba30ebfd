"""The forms of a model: normalisations are cut by rows, fused attention by heads, and not where a jump that counts follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bbgrap.cluster import Cluster
from bbgrap.cluster.types import Link, Network
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.prepare import plan_graph
from bbgrap.graph import DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.planners.forms import form_with, forms_of
from bbgrap.planners.options import PlanOptions
from bbgrap.program.steps import Receive
from tests.bbgrap.graph.test_divided_attention import fused
from tests.bbgrap.graph.test_divided_norms import norm
from tests.partition import plain_outputs

SHAPE = (1, 32, 64, 64)
SOUND = (1, 32, 3199)


def sound(groups: int | None) -> Graph:
    """A convolution in time of as many channels, which are normalised."""
    graph = norm(SOUND, groups)
    kernel = make_weight("kernel", np.random.default_rng(1).standard_normal((*SOUND[1:2] * 2, 1)).astype(np.float32))
    conv = Node("conv", "Conv", ("sound", "kernel"), ("x",))
    types = {**graph.types, "sound": graph.types["x"], "kernel": kernel.type}
    return replace(graph, inputs=("sound",), nodes=(conv, *graph.nodes), types=types, weights={**graph.weights, "kernel": kernel})


@pytest.mark.parametrize(
    ("graph", "exchanges"), [*((norm(SHAPE, groups), 1) for groups in (None, 1, 4)), *((sound(groups), 2) for groups in (None, 8, 32))]
)
@pytest.mark.parametrize("nodes", [2, 3])
def test_rows_are_divided_with_exchanges_of_a_few_numbers(graph: Graph, exchanges: int, nodes: int) -> None:
    """Statistics go to every node, which computes the factors of all channels itself; before them, means of lines that are cut."""
    plain, apart = forms_of(graph)
    assert plain is graph
    compiled = plan_graph(apart, Cluster.even(nodes), PlanOptions()).compiled
    assert {len(compiled.plan.tiles[node.name]) for node in apart.nodes} == {nodes}
    for device in compiled.optimized.devices[:nodes]:
        received = [step for step in device.steps if isinstance(step, Receive)]
        between = [step for step in received if step.source < nodes]
        assert len(between) == exchanges * (nodes - 1)
        assert len(received) - len(between) == 1, "its rows of the input"
    x = np.random.default_rng(2).standard_normal(graph.types[graph.inputs[0]].known_shape).astype(np.float32)
    artifacts = export(compiled.optimized)
    np.testing.assert_allclose(simulate(artifacts, [x], local_kernels(artifacts))[0], plain_outputs(graph, [x])[0], rtol=1e-4, atol=1e-5)


def test_one_node_keeps_the_kernel_of_onnxruntime() -> None:
    graph = norm(SHAPE, 1)
    for cluster, options in ((Cluster.even(1), PlanOptions()), (Cluster.even(2), PlanOptions("single"))):
        assert plan_graph(graph, cluster, options).compiled.plan.graph is graph


def test_before_a_jump_that_counts_it_is_left() -> None:
    graph = norm(SHAPE, 1)
    nodes = (*graph.nodes, Node("round", "Round", ("y",), ("z",)))
    graph = replace(graph, nodes=nodes, outputs=("z",), types={**graph.types, "z": TensorType(DType.FLOAT, SHAPE)})
    assert forms_of(graph) == (graph,)


def test_a_form_is_found_by_the_names_of_its_nodes() -> None:
    graph, apart = forms_of(norm(SHAPE, 4))
    assert form_with(graph, apart.node_by_name) == apart
    assert form_with(graph, graph.node_by_name) is graph
    assert form_with(graph, ["other"]) is graph


@pytest.mark.usefixtures("without_a_clock")
def test_heads_of_fused_attention_are_divided() -> None:
    graph = fused(heads=8, head=64, values=64, batch=1, words=128, features=512, mask=(1, 128))
    cluster = replace(Cluster.even(2), network=Network(Link(1.25e9, 5e-5)))
    forecast = plan_graph(graph, cluster, PlanOptions("auto", search_seconds=1.0))
    assert forecast.timeline.total_s < 0.75 * forecast.alone[1]
    tiles = forecast.compiled.plan.tiles["attention"]
    assert {tile.device for tile in tiles} == {0, 1}
    feeds = [np.random.default_rng(2).standard_normal((1, 128, 512)).astype(np.float32), np.ones((1, 128), np.int32)]
    artifacts = export(forecast.compiled.optimized)
    np.testing.assert_allclose(
        simulate(artifacts, feeds, local_kernels(artifacts))[0], plain_outputs(graph, feeds)[0], rtol=1e-4, atol=1e-5
    )
    assert plan_graph(graph, Cluster.even(1), PlanOptions()).compiled.plan.graph is graph
