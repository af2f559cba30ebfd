"""What is shipped: stand-alone models that the standard's checker accepts, with only the weights they use."""

from pathlib import Path

import numpy as np
import onnx
from hypothesis import given

from bbgrap.cluster import Cluster
from bbgrap.compiler.canonical import canonical
from bbgrap.compiler.export import export, segment_graphs
from bbgrap.engine.load import load_graph
from bbgrap.graph import Graph
from bbgrap.graph.onnx_io import save_graph, write_graph
from bbgrap.planners.options import PlanOptions
from bbgrap.runtime.schedule import check_schedule
from bbgrap.zoo import build
from bbgrap.zoo.builder import Builder
from tests.free_models import save_free
from tests.onnx_models import model_of
from tests.partition import compiled, plain_outputs
from tests.random_models import clusters, networks, plan_options, random_feeds


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
    graph = build("mobilenet_v2")
    whole = sum(weight.type.nbytes for weight in graph.weights.values())
    artifacts = export(compiled(graph, Cluster.even(4), PlanOptions(split="channels")).optimized)
    assert max(device.weight_bytes for device in artifacts.devices) <= 0.3 * whole


@given(networks())
def test_names_that_say_nothing_change_nothing_else(graph: Graph) -> None:
    plain = canonical(graph)
    feeds = random_feeds(graph)
    for got, want in zip(plain_outputs(plain, feeds), plain_outputs(graph, feeds), strict=True):
        assert np.array_equal(got, want)
    given = {*plain.inputs, *plain.outputs, *plain.weights, *(node.name for node in plain.nodes)}
    assert not given & {*graph.types, *graph.weights, *graph.node_by_name}
    assert canonical(plain) == plain


def test_control_flow_keeps_the_names_that_its_bodies_read(tmp_path: Path) -> None:
    def branch(op: str) -> onnx.GraphProto:
        result = onnx.helper.make_tensor_value_info(op, onnx.TensorProto.FLOAT, [2])
        return onnx.helper.make_graph([onnx.helper.make_node(op, ["shifted"], [op])], op, [], [result])

    nodes = [
        onnx.helper.make_node("Add", ["x", "x"], ["shifted"]),
        onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs")),
    ]
    onnx.save(model_of(nodes, {"x": [2], "c": []}, {"y": [2]}, kinds={"c": onnx.TensorProto.BOOL}), tmp_path / "m.onnx")
    graph = canonical(load_graph(tmp_path / "m.onnx", {}))
    feeds = [np.array([1, -2], np.float32), np.array(False)]
    assert plain_outputs(graph, feeds)[0].tolist() == [2, 4]


def test_equal_layers_are_one_model_whatever_they_are_called() -> None:
    """Six equal layers over two devices: but for the first and the last one, and which border a device has."""
    builder = Builder("tower", (1, 8, 24, 8))
    value, kernel = "input", builder.weight("kernel", np.full((8, 8, 3, 3), 0.01, np.float32))
    for layer in range(6):
        value = builder.node("Conv", f"layer{layer}", [value, kernel], (1, 8, 24, 8), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)})
    artifacts = export(compiled(builder.graph(value), Cluster.even(2), PlanOptions()).optimized)
    for device in artifacts.devices:
        digests = [segment.digest for segment in device.segments]
        assert len(digests) >= 6
        assert len(set(digests)) <= 3
        assert len({segment.name for segment in device.segments}) == len(digests)


def test_other_shapes_are_the_same_models_where_only_sizes_that_move_differ(tmp_path: Path) -> None:
    path = save_free(build("tiny"), tmp_path / "tiny.onnx")
    found = []
    for height in (64, 128):
        artifacts = export(compiled(load_graph(path, {"input": (1, 3, height, 96)}), Cluster.even(2), PlanOptions()).optimized)
        found.append([[segment.digest for segment in device.segments] for device in artifacts.devices])
    for low, high in zip(*found, strict=True):
        assert sum(digest in low for digest in high) >= len(high) - 3
    fixed = export(compiled(build("tiny"), Cluster.even(2), PlanOptions()).optimized)
    assert not {segment.digest for segment in fixed.devices[0].segments[:-1]} & set(found[0][0]), "sizes that a file fixes are fixed"
