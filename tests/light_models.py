"""The nine light models of the onnx wheel, with weights that mean something.

In the wheel every weight is 0.02 and every output is one repeated number, whatever the input. Here the `ConstantOfShape` nodes that
stand for weights become seeded initializers: He-initialised filters, batch-norm scale and variance in 0.5..1.5. The models end before
their softmax, which would saturate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from bbgrap.graph import Array

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)


def light_model(name: str, folder: Path) -> Path:
    """Write the reseeded model of a name into a folder, unless it is there already, and return its path."""
    path = folder / f"light_{name}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_bytes(reseed(onnx.load(FOLDER / path.name)).SerializeToString())
        draft.replace(path)
    return path


def reseed(model: ModelProto) -> ModelProto:
    """Replace the stand-ins for weights of a light model, and cut its final softmax off."""
    graph = model.graph
    rng = np.random.default_rng(sum(map(ord, graph.name)) + len(graph.node))
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    roles = {value: (node, place) for node in graph.node for place, value in enumerate(node.input)}
    kept: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            reader, place = roles[node.output[0]]
            if reader.op_type == "Unsqueeze":
                reader, place = roles[reader.output[0]]
            values = _drawn(rng, tuple(shapes[node.input[0]].tolist()), reader.op_type, place)
            graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
        else:
            kept.append(node)
    if kept[-1].op_type == "Softmax":
        graph.output[0].name = kept.pop().input[0]
    del graph.node[:]
    graph.node.extend(kept)
    read = {value for node in kept for value in node.input}
    weights = {tensor.name: tensor for tensor in graph.initializer if tensor.name in read}
    inputs = [value for value in graph.input if value.name not in weights and value.name in read]
    del graph.initializer[:], graph.input[:], graph.value_info[:]
    graph.initializer.extend(weights.values())
    graph.input.extend(inputs)
    model.ir_version = 8
    return model


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], op: str, place: int) -> Array:
    if op == "Mul" or (op == "BatchNormalization" and place in (1, 4)):  # scales and variances
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if len(shape) < 2:
        return rng.normal(0, 0.1, shape).astype(np.float32)
    fan_in = int(np.prod(shape[1:]))
    return rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / fan_in))
