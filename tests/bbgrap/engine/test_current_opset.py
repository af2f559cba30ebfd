import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bbgrap.engine import current_opset
from bbgrap.engine.load import load_graph
from bbgrap.engine.reload import ReloadedModel
from bbgrap.graph.onnx_io import read_model
from bbgrap.planners.inspection import reason_of
from bbgrap.tdl import describe
from tests.onnx_models import write_model

FLOAT = TensorProto.FLOAT


@pytest.fixture
def path(tmp_path):
    """A product and a Softmax of the third axis and the fourth, of opset 11."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["y"], axis=2)]
    weight = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    return write_model(tmp_path / "m.onnx", nodes, {"x": ["n", 3, "m", 4]}, {"y": ["n", 3, "m", 5]}, {"w": weight}, opset=11, ir_version=6)


SHAPES = {"x": (2, 3, 6, 4)}


def test_an_old_model_becomes_current(path):
    assert load_graph(path, SHAPES).opsets == {"": 17}


def test_a_model_that_is_converted_wrongly_stays_whole(path, monkeypatch, caplog):
    """A converter that forgets what an axis meant."""

    def forgetful(model):
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        proto.opset_import[0].version = 17
        onnx.save(proto, path.with_name("wrong.onnx"))
        return read_model(path.with_name("wrong.onnx"))

    monkeypatch.setattr(current_opset, "normalize_opset", forgetful)
    model = ReloadedModel(path)
    for graph in (load_graph(path, SHAPES), model.graph(path, SHAPES), model.graph(path, {"x": (1, 3, 8, 4)})):
        assert graph.opsets == {"": 11}
        assert all(describe(graph, node) is None for node in graph.nodes)
        assert reason_of(graph, graph.nodes[0]) == "its opset 11 cannot be converted"
    assert "otherwise" in caplog.text


def test_a_conversion_is_not_tried_where_that_would_take_much(path, monkeypatch):
    monkeypatch.setattr(current_opset, "_asked", lambda model: pytest.fail("it is tried"))
    assert load_graph(path, {"x": (1, 3, 1 << 18, 4)}).opsets == {"": 17}


def test_a_model_that_draws_is_not_blamed_for_it(path):
    proto = onnx.load(path)
    proto.graph.node.insert(0, helper.make_node("RandomUniformLike", ["x"], ["noise"]))
    proto.graph.node[1].input[0] = "noise"
    onnx.save(proto, path)
    assert load_graph(path, SHAPES).opsets == {"": 17}


def test_what_cannot_be_tried_soon_is_believed(path, monkeypatch):
    monkeypatch.setattr(current_opset, "_TRIAL_BYTES", -1)
    monkeypatch.setattr(current_opset, "compare", None)
    assert load_graph(path, SHAPES).opsets == {"": 17}
