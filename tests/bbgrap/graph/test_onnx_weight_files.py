"""Weights in files: which a kernel packs and then lets go of, and how a model refers to them."""

import onnx
from onnx import TensorProto, helper

from bbgrap.graph.mapped_files import FilePart
from bbgrap.graph.onnx_weight_files import with_files


def weights(*names):
    return [TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2, 2], raw_data=bytes(16)) for name in names]


def model():
    inside = helper.make_graph([helper.make_node("Add", ["x", "captured"], ["z"])], "inside", [], [])
    nodes = [
        helper.make_node("MatMul", ["x", "product"], ["a"]),
        helper.make_node("Gemm", ["a", "matrix", "bias"], ["b"]),
        helper.make_node("MatMul", ["b", "shared"], ["c"]),
        helper.make_node("Add", ["c", "shared"], ["d"]),
        helper.make_node("MatMul", ["first", "d"], ["e"]),
        helper.make_node("MatMul", ["e", "captured"], ["f"]),
        helper.make_node("If", ["is so"], ["g"], then_branch=inside, else_branch=inside),
        helper.make_node("Gather", ["table", "x"], ["h"]),
    ]
    names = ("product", "matrix", "bias", "shared", "first", "captured", "table")
    return helper.make_model(helper.make_graph(nodes, "g", [], [], weights(*names))).SerializeToString()


def test_what_is_packed_is_read_by_nobody_else():
    parts = {tensor.name: FilePart("p.npy", 128, 16) for tensor in onnx.ModelProto.FromString(model()).graph.initializer}
    assert with_files(model(), parts)[1] == parts.keys()
    made, filed = with_files(model(), parts, only_packed=True)
    assert filed == {"product", "matrix"}
    outside = {tensor.name for tensor in onnx.ModelProto.FromString(made).graph.initializer if tensor.external_data}
    assert outside == filed


def test_a_model_refers_to_parts_of_files():
    made, _ = with_files(model(), {"product": FilePart("p.npy", 128, 16)})
    product, *others = onnx.ModelProto.FromString(made).graph.initializer
    assert {entry.key: entry.value for entry in product.external_data} == {"location": "p.npy", "offset": "128", "length": "16"}
    assert (product.data_location, product.raw_data) == (TensorProto.EXTERNAL, b"")
    assert all(tensor.raw_data == bytes(16) for tensor in others)
