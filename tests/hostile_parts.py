"""What small hostile files are made of: graphs of a node or two, weights with any claims, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

FLOAT = TensorProto.FLOAT
DATA = np.arange(1024, dtype=np.float32)

Maker = Callable[[Path], Path]


@dataclass(frozen=True)
class Hostile:
    """A model, and a part of what is said against it; empty: it is taken, and does no harm here."""

    make: Maker
    said: str


def info(name: str, shape: Sequence[int | str] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def of_any_type(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


def model(
    nodes: Iterable[NodeProto],
    inputs: Mapping[str, Sequence[int | str] | None],
    outputs: Iterable[str],
    weights: Iterable[TensorProto] = (),
    **parts: object,
) -> ModelProto:
    ends = [info(name, shape) for name, shape in inputs.items()], [of_any_type(name) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", *ends, list(weights))
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("f", 1)], **parts)


def relu(source: str = "x", target: str = "y") -> NodeProto:
    return helper.make_node("Relu", [source], [target])


def add(weight: str = "w") -> NodeProto:
    return helper.make_node("Add", ["x", weight], ["y"])


def plain(nodes: Iterable[NodeProto], weights: Iterable[TensorProto] = (), shape: Sequence[int] = (4,)) -> ModelProto:
    return model(nodes, {"x": shape}, ["y"], weights)


def saved(made: Callable[[], ModelProto]) -> Maker:
    def make(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(made().SerializeToString())
        return path

    return make


# --- weights ------------------------------------------------------------------------------------------------------------------


def weight(dims: Sequence[int], raw: bytes, kind: int = FLOAT) -> TensorProto:
    return TensorProto(name="w", dims=dims, data_type=kind, raw_data=raw)


def outside(**entries: object) -> TensorProto:
    tensor = TensorProto(name="w", dims=[1024], data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in ({"location": "w.bin"} | entries).items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor
