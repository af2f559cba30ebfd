"""Small models with state, as files, and what plain onnxruntime makes of a sequence of requests to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from bbgrap.graph.types import Array

HEADS, SIZE, WIDTH = 3, 4, 12


def _bytes(graph: GraphProto) -> bytes:
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def _tensor(name: str, shape: Sequence[int | str | None], kind: int = TensorProto.FLOAT) -> object:
    return helper.make_tensor_value_info(name, kind, list(shape))


def counter() -> bytes:
    """A sum over requests of a convolution of what comes: the state is as large as a map."""
    weight = numpy_helper.from_array(np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["maps"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["maps", "total"], ["total.next"]),
        helper.make_node("Relu", ["total.next"], ["y"]),
    ]
    inputs = [_tensor("x", (1, 3, 16, 16)), _tensor("total", (1, 4, 16, 16))]
    return _bytes(
        helper.make_graph(nodes, "counter", inputs, [_tensor("y", (1, 4, 16, 16)), _tensor("total.next", (1, 4, 16, 16))], [weight])
    )


def begun(model: bytes, **defaults: Array) -> bytes:
    """A model with weights of the names of inputs: what these are where nobody gives others."""
    proto = onnx.ModelProto.FromString(model)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in defaults.items())
    return bytes(proto.SerializeToString())


def found_places() -> bytes:
    """Where numbers are not 0: how many there are, and so how long the state is, only the run tells."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["found"]),
        helper.make_node("Concat", ["places", "found"], ["places_out"], axis=1),
        helper.make_node("ReduceSum", ["places_out"], ["y"]),
    ]
    inputs = [_tensor("x", (6,)), _tensor("places", (1, "n"), TensorProto.INT64)]
    outputs = [_tensor("y", (1, 1), TensorProto.INT64), _tensor("places_out", (1, "m"), TensorProto.INT64)]
    return _bytes(helper.make_graph(nodes, "places", inputs, outputs))


def bfloat16_sum() -> bytes:
    """A sum over requests in numbers that numpy lacks."""
    nodes = [
        helper.make_node("Cast", ["total"], ["before"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["before", "x"], ["y"]),
        helper.make_node("Cast", ["y"], ["total_out"], to=TensorProto.BFLOAT16),
    ]
    inputs = [_tensor("x", (4,)), _tensor("total", (4,), TensorProto.BFLOAT16)]
    return _bytes(helper.make_graph(nodes, "sum", inputs, [_tensor("y", (4,)), _tensor("total_out", (4,), TensorProto.BFLOAT16)]))


def lstm(batch: str | None = "batch") -> bytes:
    """An LSTM over the frames of a chunk, and a probability: state as Silero's, of which a file may not name the axes, either."""
    random = np.random.default_rng(2)
    weights = {"w": (1, 4 * WIDTH, WIDTH), "r": (1, 4 * WIDTH, WIDTH), "b": (1, 8 * WIDTH), "d": (WIDTH, 1)}
    made = [numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 3, name) for name, shape in weights.items()]
    nodes = [
        helper.make_node("LSTM", ["input", "w", "r", "b", "", "h", "c"], ["all", "hn", "cn"], hidden_size=WIDTH),
        helper.make_node("MatMul", ["hn", "d"], ["score"]),
        helper.make_node("Sigmoid", ["score"], ["output"]),
    ]
    state = (1, batch, WIDTH)
    inputs = [_tensor("input", ("frames", batch, WIDTH)), _tensor("h", state), _tensor("c", state)]
    return _bytes(
        helper.make_graph(nodes, "lstm", inputs, [_tensor("output", (1, batch, 1)), _tensor("hn", state), _tensor("cn", state)], made)
    )


def decoder() -> bytes:
    """Attention over a cache that grows by as many words as come: names and free axes as of exported decoders."""
    random = np.random.default_rng(3)
    made = [
        numpy_helper.from_array(random.standard_normal((50, WIDTH)).astype(np.float32), "words"),
        *(numpy_helper.from_array(random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH, f"{name}.w") for name in "qkv"),
        numpy_helper.from_array(np.array([0, 0, HEADS, SIZE], np.int64), "divide"),
        numpy_helper.from_array(np.array([0, 0, WIDTH], np.int64), "join"),
        numpy_helper.from_array(random.standard_normal((WIDTH, 50)).astype(np.float32), "out"),
    ]
    nodes: list[NodeProto] = [helper.make_node("Gather", ["words", "input_ids"], ["x"])]
    for name in "qkv":
        nodes += [
            helper.make_node("MatMul", ["x", f"{name}.w"], [f"{name}.flat"]),
            helper.make_node("Reshape", [f"{name}.flat", "divide"], [f"{name}.divided"]),
            helper.make_node("Transpose", [f"{name}.divided"], [f"{name}.heads"], perm=[0, 2, 1, 3]),
        ]
    for name, kind in (("k", "key"), ("v", "value")):
        nodes.append(helper.make_node("Concat", [f"past_key_values.0.{kind}", f"{name}.heads"], [f"present.0.{kind}"], axis=2))
    nodes += [
        helper.make_node("Transpose", ["present.0.key"], ["keys"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q.heads", "keys"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "present.0.value"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["together"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["together", "join"], ["flat"]),
        helper.make_node("MatMul", ["flat", "out"], ["logits"]),
    ]
    past, present = ("batch", HEADS, "past_length", SIZE), ("batch", HEADS, "past_length + length", SIZE)
    inputs = [_tensor("input_ids", ("batch", "length"), TensorProto.INT64)]
    inputs += [_tensor(f"past_key_values.0.{kind}", past) for kind in ("key", "value")]
    outputs = [_tensor("logits", ("batch", "length", 50)), *(_tensor(f"present.0.{kind}", present) for kind in ("key", "value"))]
    return _bytes(helper.make_graph(nodes, "decoder", inputs, outputs, made))


def listener(*, merged: bool = False) -> bytes:
    """The decoder, which also looks at what an encoder heard: two inputs that stay, or, if `merged`, what its first request makes."""
    proto = onnx.ModelProto.FromString(decoder())
    graph, pairs = proto.graph, [(f"past_key_values.0.encoder.{kind}", f"present.0.encoder.{kind}") for kind in ("key", "value")]
    mixed = next(node for node in graph.node if node.output[0] == "mixed")
    mixed.output[0] = "said"
    (key, value), place = [name if not merged else f"{name} read" for name, _ in pairs], list(graph.node).index(mixed) + 1
    heard = [
        helper.make_node("Transpose", [key], ["heard.keys"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q.heads", "heard.keys"], ["heard.scores"]),
        helper.make_node("Softmax", ["heard.scores"], ["heard.shares"], axis=-1),
        helper.make_node("MatMul", ["heard.shares", value], ["heard"]),
        helper.make_node("Add", ["said", "heard"], ["mixed"]),
    ]
    if merged:
        heard = [_first_or_later(pairs, [key, value]), *heard]
        graph.input.append(_tensor("encoder_hidden_states", ("batch", HEADS, "encoder_length", SIZE)))
        graph.input.append(_tensor("use_cache_branch", (1,), TensorProto.BOOL))
        graph.output.extend(_tensor(output, ("batch or none", HEADS, "encoder_length or 1", SIZE)) for _, output in pairs)
    for node in reversed(heard):
        graph.node.insert(place, node)
    graph.input.extend(_tensor(name, ("batch", HEADS, "encoder_length_out", SIZE)) for name, _ in pairs)
    return bytes(proto.SerializeToString())


def _first_or_later(pairs: Sequence[tuple[str, str]], read: Sequence[str]) -> NodeProto:
    """As Optimum merges decoders: later requests read what the first one put out, and put out fillers."""
    puts = [output for _, output in pairs]
    filler = helper.make_node("Constant", [], ["filler"], value=numpy_helper.from_array(np.zeros((0, HEADS, 1, SIZE), np.float32)))
    scales = [numpy_helper.from_array(np.array([0.5 + n], np.float32), f"scale {n}") for n in range(len(pairs))]
    later = [filler, *(helper.make_node("Identity", ["filler"], [f"{name} later"]) for name in puts)]
    later += [helper.make_node("Identity", [past], [f"{name} later"]) for (past, _), name in zip(pairs, read, strict=True)]
    first = [helper.make_node("Mul", ["encoder_hidden_states", f"scale {n}"], [f"{name} first"]) for n, name in enumerate(puts)]
    first += [helper.make_node("Identity", [f"{output} first"], [f"{name} first"]) for output, name in zip(puts, read, strict=True)]
    bodies = [
        helper.make_graph(nodes, branch, [], [onnx.ValueInfoProto(name=f"{name} {branch}") for name in (*puts, *read)], made)
        for nodes, branch, made in ((later, "later", []), (first, "first", scales))
    ]
    return helper.make_node("If", ["use_cache_branch"], [*puts, *read], then_branch=bodies[0], else_branch=bodies[1])


class Alone:
    """A sequence on plain onnxruntime, on one thread, with its state kept in memory."""

    def __init__(self, model: bytes | Path, pairs: Mapping[str, str], state: Mapping[str, Array]) -> None:
        """Begin with this state."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(model, options)
        self._pairs, self.state = dict(pairs), dict(state)
        self._names = [arg.name for arg in self._session.get_outputs()]

    @staticmethod
    def weights_of(model: bytes) -> list[Array]:
        """Return the weights of a model."""
        return [numpy_helper.to_array(item) for item in onnx.load_from_string(model).graph.initializer]

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        """Return what is no state of the answer to the next request."""
        given = {**feed, **self.state}
        found = dict(zip(self._names, self._session.run(None, given), strict=True))
        self.state = {name: {**given, **found}[output] for name, output in self._pairs.items()}
        return [found[name] for name in self._names if name not in self._pairs.values()]

    def keep(self, names: Collection[str]) -> None:
        """Let some of the state stay from now on, whatever the model puts out."""
        self._pairs |= {name: name for name in names}
