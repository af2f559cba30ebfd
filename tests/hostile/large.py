"""Small files that ask for much: of what is computed of constants, of counts that no model has, and of files that never end."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from tests.hostile_models import HOSTILE, long_attribute, long_constant, sized
from tests.hostile_parts import FLOAT, Hostile, add, outside, plain, relu, saved, weight


def computed_by_doubling(times: int, *, shape: bool = False) -> ModelProto:
    """A constant is put beside itself again and again, or a shape."""
    nodes = [helper.make_node("Concat", [f"c{k}"] * 2, [f"c{k + 1}"], axis=0) for k in range(times)]
    start = numpy_helper.from_array(np.ones(1024, np.float32), "c0")
    nodes.append(helper.make_node("Shape", [f"c{times}"], ["y"]))
    return plain([helper.make_node("Shape", ["x"], ["c0"]), *nodes]) if shape else plain(nodes, [start])


def slice_below_zero() -> ModelProto:
    """onnx and onnxruntime end the process when they infer its shapes."""
    bounds = [numpy_helper.from_array(np.array([value], np.int64), name) for name, value in (("starts", 0), ("ends", 1), ("axes", 2))]
    nodes = [helper.make_node("MaxPool", ["x"], ["small"], kernel_shape=[5])]
    nodes.append(helper.make_node("Slice", ["small", "starts", "ends", "axes"], ["y"]))
    return plain(nodes, bounds, shape=[1, 1, 3])


def long_input() -> ModelProto:
    """Of a sum of lists onnx follows every number when it infers shapes by content."""
    return plain([helper.make_node("Add", ["x", "x"], ["y"])], shape=[1 << 30])


def long_input_of_a_body() -> ModelProto:
    """The same where only a body says how long."""
    inner = [
        helper.make_tensor_value_info(*value)
        for value in (("i", TensorProto.INT64, []), ("on", TensorProto.BOOL, []), ("v", FLOAT, [1 << 62]))
    ]
    outer = [helper.make_tensor_value_info("go", TensorProto.BOOL, []), helper.make_tensor_value_info("u", FLOAT, None)]
    nodes = [helper.make_node("Identity", ["on"], ["go"]), helper.make_node("Add", ["v", "v"], ["u"])]
    body = helper.make_graph(nodes, "b", inner, outer)
    yes = numpy_helper.from_array(np.array(True), "yes")
    return plain([helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)], [yes])


def with_metadata(entries: int, each: int) -> ModelProto:
    proto = plain([relu()])
    helper.set_model_props(proto, {f"k{number}": "v" * each for number in range(entries)})
    return proto


def importing(domains: int) -> ModelProto:
    proto = plain([relu()])
    proto.opset_import.extend(helper.make_opsetid(f"d{number}", 1) for number in range(domains))
    return proto


def many_attributes(count: int) -> ModelProto:
    node = relu()
    for number in range(count):
        node.attribute.add(name=f"a{number}", type=AttributeProto.INT)
    return plain([node])


def many_weights(count: int) -> ModelProto:
    """No larger than its names: each weight has no elements."""
    return plain([relu()], [TensorProto(name=f"w{number}", dims=[0], data_type=FLOAT) for number in range(count)])


def sum_of_many(count: int) -> ModelProto:
    return plain([helper.make_node("Sum", ["x"] * count, ["y"])])


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "model.onnx")
    return folder / "model.onnx"


def an_endless_device(folder: Path) -> Path:
    (folder / "model.onnx").symlink_to("/dev/zero")
    return folder / "model.onnx"


def a_hole(folder: Path) -> Path:
    """A file of 1 TB that takes no room."""
    with (folder / "model.onnx").open("wb") as stream:
        stream.truncate(1 << 40)
    return folder / "model.onnx"


def weights_from_a_pipe(folder: Path) -> Path:
    path = saved(lambda: plain([add()], [outside()], [1024]))(folder)
    os.mkfifo(folder / "w.bin")
    return path


LARGE: dict[str, Hostile] = {
    "constants that double 30 times": Hostile(saved(lambda: computed_by_doubling(30)), "computed of its constants"),
    "constants that double 10 times": Hostile(saved(lambda: computed_by_doubling(10)), ""),
    "Range by steps of 0": Hostile(saved(lambda: sized("Range", 0, 1, 0)), "steps that are not 0"),
    "Slice behind a window larger than its map": Hostile(saved(slice_below_zero), "sizes of at least 0"),
    "Reshape of 4 to 3 numbers": Hostile(saved(lambda: sized("Reshape", [3])), ""),
    "sum of two lists of 2^30": Hostile(saved(long_input), ""),
    "sum of two lists of 2^62 in a body": Hostile(saved(long_input_of_a_body), ""),
    "shapes that double 30 times": Hostile(saved(lambda: computed_by_doubling(30, shape=True)), "steer shapes"),
    "Expand of a constant to 16 GB": Hostile(
        saved(
            lambda: plain(
                [helper.make_node("Expand", ["w", "n"], ["c"]), helper.make_node("Shape", ["c"], ["y"])],
                [weight([1], bytes(4)), numpy_helper.from_array(np.array([1 << 32]), "n")],
            )
        ),
        "computed of its constants",
    ),
    "attribute of 10^7 entries": Hostile(saved(lambda: long_attribute(10**7)), "Unrecognized attribute"),
    "constant of 10^7 entries in an attribute": Hostile(saved(lambda: long_constant(10**7)), ""),
    "metadata of 100 MB": Hostile(saved(lambda: with_metadata(100, 1_000_000)), "metadata"),
    "10,000 imported domains": Hostile(saved(lambda: importing(10_000)), "domains"),
    "400,001 attributes": Hostile(saved(lambda: many_attributes(400_001)), "attributes"),
    "200,001 weights of nothing": Hostile(saved(lambda: many_weights(200_001)), "weights"),
    "Sum of 1,000,000 values": Hostile(saved(lambda: sum_of_many(1_000_000)), "values and"),
    "a pipe as model": Hostile(a_pipe, "no plain file"),
    "an endless device as model": Hostile(an_endless_device, "no plain file"),
    "a model of 1 TB of nothing": Hostile(a_hole, "an ONNX file at most"),
    "weights from a pipe": Hostile(weights_from_a_pipe, "missing"),
}

ALL = HOSTILE | LARGE
