"""The model: `Graph`, `Node`, `Weight`; only the files `onnx_*` touch ONNX protobufs, and `onnx_io` is the door to them."""

from bbgrap.graph.types import Array, Attribute, DType, Graph, Node, Subgraph, TensorType, Weight, check_graph

__all__ = ["Array", "Attribute", "DType", "Graph", "Node", "Subgraph", "TensorType", "Weight", "check_graph"]
