"""The zoo's Llama with standard operators only, as exporters without fused ones write it: what its fused operators are compared with."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from bbgrap.graph.types import Array, Graph
from bbgrap.zoo.decoder import DecoderSizes
from bbgrap.zoo.llama import BLOCK
from tests.onnx_models import model_of

EPSILON = 1e-5


def plain(graph: Graph, sizes: DecoderSizes) -> onnx.ModelProto:
    """Return a model of the same weights, inputs and outputs; weights of four bits as floats."""
    return _Plain(graph, sizes).model()


class _Plain:
    def __init__(self, graph: Graph, sizes: DecoderSizes) -> None:
        self.graph, self.sizes = graph, sizes
        self.nodes: list[NodeProto] = []
        self.made: dict[str, Array] = {}

    def model(self) -> onnx.ModelProto:
        sizes, layers = self.sizes, range(self.sizes.depth)
        x = self.node("Gather", [self.kept("words"), "input_ids"])
        past = self.node("Gather", [self.node("Shape", ["past_key_values.0.key"]), self.constant(np.array(2))])
        total = self.node("Gather", [self.node("Shape", ["attention_mask"]), self.constant(np.array(1))])
        one, zero = self.constant(np.array(1)), self.constant(np.array(0))
        self.places = self.node("Range", [past, total, one])
        columns = self.node("Range", [zero, total, one])
        seen = self.node("LessOrEqual", [columns, self.node("Unsqueeze", [self.places, self.constant(np.array([1]))])])
        levels = [self.constant(np.array(level, np.float32)) for level in (0, -1e9)]
        self.mask = self.node("Where", [seen, *levels])
        for n in layers:
            x = self.node("Add", [x, self.attention(self.norm(x, f"layer{n}.norm1"), n)])
            x = self.node("Add", [x, self.mlp(self.norm(x, f"layer{n}.norm2"), f"layer{n}.mlp")])
        self.node("MatMul", [self.norm(x, "norm"), self.weight("logits")], output="logits")
        caches = [f"{n}.{part}" for n in layers for part in ("key", "value")]
        free = {"input_ids": ["b", "s"], "attention_mask": ["b", "t"]}
        state = {f"past_key_values.{name}": ["b", sizes.key_heads, "p", sizes.head] for name in caches}
        outputs = ["logits", *(f"present.{name}" for name in caches)]
        return model_of(self.nodes, free | state, outputs, self.made, kinds=dict.fromkeys(free, TensorProto.INT64))

    def node(self, op: str, inputs: list[str], output: str = "", **attributes: object) -> str:
        output = output or f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, array: Array) -> str:
        self.made[name := f"c{len(self.made)}"] = array
        return name

    def kept(self, name: str) -> str:
        self.made[name] = self.graph.weights[name].array
        return name

    def weight(self, name: str) -> str:
        """Return the weight of a product, [inputs, features]."""
        array = self.graph.weights[f"{name}.weight"].array
        if array.dtype == np.uint8:
            low, high = (array & 15).astype(np.float32), (array >> 4).astype(np.float32)
            blocks = np.stack([low, high], axis=-1).reshape(*array.shape[:2], BLOCK) - 8
            scales = self.graph.weights[f"{name}.scales"].array.reshape(*array.shape[:2], 1)
            array = np.ascontiguousarray((blocks * scales).reshape(len(array), -1).T)
        return self.constant(array)

    def norm(self, x: str, name: str) -> str:
        mean = self.node("ReduceMean", [self.node("Mul", [x, x])], axes=[-1])
        root = self.node("Sqrt", [self.node("Add", [mean, self.constant(np.array(EPSILON, np.float32))])])
        return self.node("Mul", [self.node("Div", [x, root]), self.kept(f"{name}.weight")])

    def rows(self, x: str, name: str) -> list[str]:
        sizes = self.sizes
        if f"{name}.rows.weight" not in self.graph.weights:
            return [self.node("MatMul", [x, self.weight(f"{name}.{part}")]) for part in ("query", "key", "value")]
        packed = self.node("MatMul", [x, self.weight(f"{name}.rows")])
        parts = self.constant(np.array([sizes.width, *[sizes.key_heads * sizes.head] * 2]))
        names = [f"{name}.{part}" for part in ("query", "key", "value")]
        self.nodes.append(helper.make_node("Split", [packed, parts], names, axis=-1))
        return names

    def heads(self, x: str, count: int) -> str:
        split = self.node("Reshape", [x, self.constant(np.array([0, 0, count, self.sizes.head]))])
        return self.node("Transpose", [split], perm=[0, 2, 1, 3])

    def turned(self, x: str) -> str:
        """Turn every pair of a head's halves by the angle of its place."""
        half = self.constant(np.array([self.sizes.head // 2] * 2))
        first, second = f"{x}.first", f"{x}.second"
        self.nodes.append(helper.make_node("Split", [x, half], [first, second], axis=-1))
        cosines, sines = (self.node("Gather", [self.kept(name), self.places]) for name in ("cosines", "sines"))
        one = self.node("Sub", [self.node("Mul", [first, cosines]), self.node("Mul", [second, sines])])
        other = self.node("Add", [self.node("Mul", [second, cosines]), self.node("Mul", [first, sines])])
        return self.node("Concat", [one, other], axis=-1)

    def shared(self, x: str) -> str:
        """Repeat every key head for the query heads that share it."""
        return self.node("Gather", [x, self.constant(np.arange(self.sizes.heads) * self.sizes.key_heads // self.sizes.heads)], axis=1)

    def attention(self, x: str, n: int) -> str:
        sizes, name = self.sizes, f"layer{n}.attention"
        query, key, value = self.rows(x, name)
        query = self.turned(self.heads(query, sizes.heads))
        key, value = self.turned(self.heads(key, sizes.key_heads)), self.heads(value, sizes.key_heads)
        key = self.node("Concat", [f"past_key_values.{n}.key", key], f"present.{n}.key", axis=2)
        value = self.node("Concat", [f"past_key_values.{n}.value", value], f"present.{n}.value", axis=2)
        scores = self.node("MatMul", [query, self.node("Transpose", [self.shared(key)], perm=[0, 1, 3, 2])])
        scores = self.node("Div", [scores, self.constant(np.array(np.sqrt(sizes.head), np.float32))])
        weights = self.node("Softmax", [self.node("Add", [scores, self.mask])], axis=-1)
        mixed = self.node("Transpose", [self.node("MatMul", [weights, self.shared(value)])], perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", [mixed, self.constant(np.array([0, 0, sizes.width]))])
        return self.node("MatMul", [mixed, self.weight(f"{name}.output")])

    def mlp(self, x: str, name: str) -> str:
        gate, up = (self.node("MatMul", [x, self.weight(f"{name}.{part}")]) for part in ("gate", "up"))
        gate = self.node("Mul", [gate, self.node("Sigmoid", [gate])])
        return self.node("MatMul", [self.node("Mul", [gate, up]), self.weight(f"{name}.down")])
