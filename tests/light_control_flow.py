"""Small models with control flow that exporters of speech networks write."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.onnx_models import model_of

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def node(op: str, reads: str, makes: str, **attributes: object) -> NodeProto:
    return helper.make_node(op, reads.split(), makes.split(), **attributes)


def branch(rate: int) -> GraphProto:
    """A branch for one sampling rate.

    Its windows fit the sound of that rate: of another, what is left is not one step long, and the recurrent layer gets a wrong rank.
    """
    p = f"r{rate}"
    squeezed = helper.make_graph([node("Squeeze", f"{p}h two", f"{p}q1")], f"{p}squeeze", [], [untyped(f"{p}q1")])
    kept = helper.make_graph([node("Identity", f"{p}h", f"{p}q2")], f"{p}keep", [], [untyped(f"{p}q2")])
    nodes = [
        node("Unsqueeze", "sound one", f"{p}s"),
        node("Conv", f"{p}s {p}w", f"{p}h", strides=[rate // 250]),
        node("Shape", f"{p}h", f"{p}shape"),
        node("Gather", f"{p}shape two0", f"{p}steps"),
        node("Equal", f"{p}steps one0", f"{p}single"),
        node("If", f"{p}single", f"{p}q", then_branch=squeezed, else_branch=kept),
        node("Unsqueeze", f"{p}q zero", f"{p}x"),
        node("Split", "state", f"{p}h0 {p}c0", axis=0, num_outputs=2),
        node("LSTM", f"{p}x lw lr  ".replace("  ", " ").strip(), f"{p}all {p}hn {p}cn", hidden_size=8),
    ]
    nodes[-1].input.extend(["", "", f"{p}h0", f"{p}c0"])
    nodes += [
        node("Concat", f"{p}hn {p}cn", f"{p}state", axis=0),
        node("ReduceMean", f"{p}hn", f"{p}m", keepdims=0),
        node("Sigmoid", f"{p}m", f"{p}chance"),
    ]
    weight = numpy_helper.from_array(normal(rate, 8, 1, rate // 250) / 4, f"{p}w")
    return helper.make_graph(nodes, f"{p}branch", [], [untyped(f"{p}chance"), untyped(f"{p}state")], [weight])


def untyped(name: str) -> ValueInfoProto:
    value = ValueInfoProto(name=name)
    value.type.tensor_type.elem_type = F
    return value


def speech_like() -> onnx.ModelProto:
    """A branch per sampling rate, chosen by an input; onnxruntime loads it only if it is not told how long the sound is."""
    nodes = [
        node("Equal", "rate fast", "is_fast"),
        node("If", "is_fast", "chance after", then_branch=branch(16000), else_branch=branch(8000)),
    ]
    inputs = {"sound": [None, None], "state": [2, None, 8], "rate": []}
    axes = {name: np.array([axis]) for name, axis in (("zero", 0), ("one", 1), ("two", 2))}
    numbers = {**axes, "fast": np.int64(16000), "two0": np.int64(2), "one0": np.int64(1)}
    weights = {**numbers, "lw": normal(1, 1, 32, 8) / 3, "lr": normal(2, 1, 32, 8) / 3, "unread": normal(4, 999)}
    return model_of(nodes, inputs, ["chance", "after"], weights, kinds={"rate": I64}, opset=18)
