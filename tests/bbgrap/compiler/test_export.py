"""What is shipped: stand-alone models that the standard's checker accepts, with only the weights they use."""

from pathlib import Path

import numpy as np
import onnx
from hypothesis import given

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export, segment_graphs
from bbgrap.graph import Graph
from bbgrap.graph.onnx_io import save_graph, write_graph
from bbgrap.planners.options import PlanOptions
from bbgrap.runtime.schedule import check_schedule
from bbgrap.zoo import build
from tests.partition import compiled
from tests.random_models import clusters, networks, plan_options


@given(networks(), clusters(), plan_options())
def test_segments_are_valid_models_and_schedules_keep_their_laws(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    program = compiled(graph, cluster, options).optimized
    for device in segment_graphs(program):
        for segment in device:
            onnx.checker.check_model(onnx.load_from_string(write_graph(segment.graph, weights="inline").data), full_check=True)
    artifacts = export(program)
    for schedule in (*(d.schedule for d in artifacts.devices), artifacts.host):
        assert not check_schedule(schedule)


def test_names_are_readable_and_weights_are_slices(tmp_path: Path) -> None:
    program = compiled(build("tiny"), Cluster.even(2), PlanOptions(split="channels")).optimized
    first = segment_graphs(program)[0][0].graph
    save_graph(first, tmp_path / "first.onnx")
    model = onnx.load(tmp_path / "first.onnx")
    whole = build("tiny")
    conv = next(node for node in whole.nodes if node.op == "Conv")
    assert conv.name in [node.name for node in model.graph.node]
    sliced = next(i for i in model.graph.initializer if i.name.startswith(conv.inputs[1]))
    assert sliced.name.endswith(f"[0:{sliced.dims[0]},:,:,:]")
    assert sliced.dims[0] * 2 == whole.weights[conv.inputs[1]].type.known_shape[0]
    assert np.array_equal(onnx.numpy_helper.to_array(sliced), whole.weights[conv.inputs[1]].array[: sliced.dims[0]])


def test_devices_share_equal_weights_by_digest() -> None:
    rows = export(compiled(build("tiny"), Cluster.even(3), PlanOptions(split="rows")).optimized)
    held = [{ref.digest for s in device.segments for ref in s.weights.values()} for device in rows.devices]
    assert held[1] <= held[0]
    assert set.union(*held) == set(rows.weights)


def test_channel_split_divides_the_weights() -> None:
    graph = build("alexnet")
    whole = sum(weight.type.nbytes for weight in graph.weights.values())
    artifacts = export(compiled(graph, Cluster.even(4), PlanOptions(split="channels")).optimized)
    assert max(device.weight_bytes for device in artifacts.devices) <= 0.3 * whole
