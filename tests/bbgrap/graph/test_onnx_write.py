import numpy as np
import onnx
import pytest

from bbgrap.graph import DType, Graph, Node, TensorType
from bbgrap.graph.onnx_io import free_batch, read_model, save_graph, to_graph, write_graph
from bbgrap.graph.weights import make_weight


def graph_of(weight):
    node = Node("scale", "LeakyRelu", ("s",), ("y",), {"alpha": 1})
    types = {"x": TensorType(DType.FLOAT, weight.type.shape)} | {n: TensorType(DType.FLOAT, weight.type.shape) for n in "sy"}
    nodes = (Node("sum", "Add", ("x", "w"), ("s",)), node)
    return Graph("g", nodes, ("x",), ("y",), {"w": weight}, types | {"w": weight.type}, {"": 17})


def test_only_large_weights_are_detached():
    small, large = (graph_of(make_weight("w", np.ones(size, np.float32))) for size in (256, 257))
    assert write_graph(small, weights="detached").detached == ()
    written = write_graph(large, weights="detached")
    assert written.detached == ("w",)
    assert len(written.data) < 300 < 1028 < len(write_graph(large, weights="inline").data)


def test_written_models_are_the_same_every_time_and_pass_the_checker():
    graph = graph_of(make_weight("w", np.ones(257, np.float32)))
    written = write_graph(graph, weights="inline").data
    assert written == write_graph(graph, weights="inline").data
    model = onnx.load_from_string(written)
    onnx.checker.check_model(model, full_check=True)
    assert (model.producer_name, model.ir_version, model.opset_import[0].version) == ("bbgrap", 8, 17)
    assert model.graph.node[1].attribute[0].f == 1.0


def test_free_batch():
    graph = graph_of(make_weight("w", np.ones((1, 4), np.float32)))
    model = onnx.load_from_string(write_graph(graph, weights="inline", free=free_batch(graph)).data)
    dims = [value.type.tensor_type.shape.dim[0].dim_param for value in (*model.graph.input, *model.graph.output)]
    assert dims == ["N", "N"]


@pytest.mark.parametrize("limit", [10**9, 100])
def test_saved_models_come_back(tmp_path, limit):
    graph = graph_of(make_weight("w", np.arange(1000, dtype=np.float32)))
    save_graph(graph, tmp_path / "m.onnx", inline_limit=limit)
    assert (tmp_path / "m.onnx.data").exists() == (limit == 100)
    back = to_graph(read_model(tmp_path / "m.onnx"))
    assert back.weights == graph.weights
    assert back.types == graph.types
    assert [(n.op, n.inputs, n.outputs) for n in back.nodes] == [(n.op, n.inputs, n.outputs) for n in graph.nodes]
