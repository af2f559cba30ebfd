import numpy as np
from onnx import TensorProto, helper

from bbgrap.graph.onnx_double import widened
from bbgrap.graph.onnx_io import read_model
from tests.onnx_models import write_model


def body(name: str, read: str):
    node = helper.make_node("Add", [read, "w"], [name])
    return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])


def model(tmp_path):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["a"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=body("then", "a"), else_branch=body("else", "x")),
    ]
    weights = {"scale": np.float32(0.1), "zero": np.uint8(3), "w": np.ones(2, np.float32), "yes": np.array(True)}
    return read_model(write_model(tmp_path / "m.onnx", nodes, {"x": (2,)}, {"y": (2,)}, weights))


def test_operators_read_what_their_bodies_capture(tmp_path):
    double = widened(model(tmp_path))
    assert [operator.reads for operator in double.operators] == [("x", "scale", "zero"), ("q", "scale", "zero"), ("yes", "x", "w", "a")]
    assert double.outputs == ("y",)


def test_values_are_let_go_after_their_last_reader(tmp_path):
    assert widened(model(tmp_path)).freed == [(), ("q", "scale", "zero"), ("yes", "x", "w", "a")]


def test_operands_are_64_bits_but_for_those_that_are_32_by_definition(tmp_path):
    double = widened(model(tmp_path))
    values = {**double.constants, "x": np.ones(2, np.float32), "q": np.ones(2, np.uint8), "a": np.ones(2, np.float64)}
    kinds = [{name: str(array.dtype) for name, array in operator.operands(values).items()} for operator in double.operators]
    assert kinds == [
        {"x": "float32", "scale": "float32", "zero": "uint8"},
        {"q": "uint8", "scale": "float32", "zero": "uint8"},
        {"yes": "bool", "a": "float64", "w": "float64", "x": "float64"},
    ]


def test_the_model_that_was_read_does_not_change(tmp_path):
    read = model(tmp_path)
    before = read.proto.SerializeToString(deterministic=True)
    widened(read)
    assert read.proto.SerializeToString(deterministic=True) == before
