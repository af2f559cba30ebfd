"""How exact a model's products of few bits are. One of the files that import onnx (see `onnx_io`)."""

from __future__ import annotations

from bbgrap.graph.onnx_read import OnnxModel
from bbgrap.graph.onnx_tidy import graphs_of


def accuracy_levels(model: OnnxModel) -> frozenset[int]:
    """Return the levels of accuracy of its products of few bits, those in bodies included; 0 stands for none told."""
    nodes = (node for graph in graphs_of(model.proto.graph) for node in graph.node if node.op_type == "MatMulNBits")
    return frozenset(next((attribute.i for attribute in node.attribute if attribute.name == "accuracy_level"), 0) for node in nodes)
