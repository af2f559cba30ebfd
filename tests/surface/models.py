"""Small models, each with one of the peculiarities that programs bring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dims = Sequence[int | str | None] | None


def declared(name: str, dims: Dims, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    **about: object,
) -> bytes:
    constants = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "net", list(inputs), list(outputs), constants)
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(n.domain, 1) for n in nodes if n.domain)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **about).SerializeToString()


def add(first: Dims = ("n", 3), second: Dims = ("n", 3), result: Dims = ("n", 3)) -> bytes:
    return model([node("Add", "a b", "y")], [declared("a", first), declared("b", second)], [declared("y", result)])


def described() -> bytes:
    proto = onnx.ModelProto.FromString(add())
    proto.producer_name, proto.domain, proto.model_version, proto.doc_string = "maker", "org.example", 42, "adds"
    proto.graph.doc_string = "one node"
    for key, value in (("character", "a\nb"), ("empty", "")):
        proto.metadata_props.add(key=key, value=value)
    return bytes(proto.SerializeToString())


def overridable() -> bytes:
    """y = a + w, with a weight that is listed as an input, too."""
    sizes = [3]
    return model(
        [node("Add", "a w", "y")],
        [declared("a", ["n", 3]), declared("w", sizes)],
        [declared("y", ["n", 3])],
        {"w": np.arange(3, dtype=np.float32)},
    )


def undeclared() -> bytes:
    """Outputs of which the file says less and less."""
    return model(
        [node("Relu", "a", "r"), node("Flatten", "r", "f"), node("NonZero", "r", "z"), node("Shape", "r", "s")],
        [declared("a", [-1, "n", "n", None])],
        [declared("f", None), declared("z", None, TensorProto.INT64), onnx.ValueInfoProto(name="s"), declared("r", None)],
    )


def counting() -> bytes:
    """Counts up to `n`, one by one: runs for as long as one likes."""
    body = helper.make_graph(
        [node("Identity", "go", "go_on"), node("Add", "before one", "after")],
        "body",
        [declared("i", [], TensorProto.INT64), declared("go", [], TensorProto.BOOL), declared("before", [])],
        [declared("go_on", [], TensorProto.BOOL), declared("after", [])],
    )
    return model(
        [helper.make_node("Loop", ["n", "", "zero"], ["y"], body=body)],
        [declared("n", [], TensorProto.INT64)],
        [declared("y", [])],
        {"zero": np.float32(0).reshape(()), "one": np.float32(1).reshape(())},
    )
