"""The model: `Graph`, `Node`, `Weight`; and the only file that touches ONNX protobufs, `onnx_io`."""

from bbgrap.graph.types import Array, Attribute, DType, Graph, Node, Subgraph, TensorType, Weight, check_graph

__all__ = ["Array", "Attribute", "DType", "Graph", "Node", "Subgraph", "TensorType", "Weight", "check_graph"]
