"""A decoder of mixed layers, as onnxruntime's tools for language models write those of today (Qwen3.5, LFM2, gpt-oss and their kin).

input_ids, attention_mask, position_ids                the words of this step; 1 for every word so far; three places of each
past.0.conv [1, C, 3], past.0.recurrent [1, H, E, E]   of the layer whose attention has a state of fixed size
past_key_values.1.key, .value [1, 1, window, E]        of the layer that sees the last words only, whose cache rolls
logits, and all of that as `present`
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from bbgrap.graph.types import Array

WIDTH, HEADS, SIZE, WORDS, WINDOW = 32, 2, 8, 100, 6
EXPERTS, INNER, BLOCK = 4, 16, 16
CHANNELS = 3 * HEADS * SIZE
MICROSOFT = "com.microsoft"


class _Hybrid:
    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, Array] = {}
        self._random = np.random.default_rng(7)

    def weight(self, name: str, *shape: int) -> str:
        self.weights[name] = self._random.normal(0, 0.2, shape).astype(np.float32)
        return name

    def numbers(self, name: str, *values: int) -> str:
        self.weights[name] = np.array(values, np.int64)
        return name

    def node(self, op: str, inputs: list[str], *outputs: str, own: bool = False, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, list(outputs), outputs[0], domain=MICROSOFT if own else "", **attributes))
        return outputs[0]

    def product(self, x: str, name: str, rows: int, columns: int) -> str:
        return self.node("MatMul", [x, self.weight(f"{name}.w", rows, columns)], name)

    def norm(self, x: str, name: str) -> str:
        return self.node("SimplifiedLayerNormalization", [x, self.weight(f"{name}.scale", WIDTH)], name, axis=-1, epsilon=1e-5)

    def linear_attention(self, x: str) -> str:
        """Queries, keys and values in one convolution over words, the attention, its norm with a gate."""
        packed = self.node("Transpose", [self.product(x, "qkv", WIDTH, CHANNELS)], "qkv.t", perm=[0, 2, 1])
        inputs = [packed, self.weight("conv.w", CHANNELS, 1, 4), "", "past.0.conv"]
        mixed = self.node("CausalConvWithState", inputs, "conv", "present.0.conv", own=True, activation="silu")
        rows = self.node("Transpose", [mixed], "conv.t", perm=[0, 2, 1])
        parts = [f"part.{name}" for name in "qkv"]
        self.node("Split", [rows, self.numbers("thirds", *[HEADS * SIZE] * 3)], *parts, axis=2)
        gates = [self.product(x, name, WIDTH, HEADS) for name in ("gate.a", "gate.b")]
        vectors = [self.weight(f"gate.{name}", HEADS) for name in ("bias", "scale")]
        self.weights["gate.scale"] = -abs(self.weights["gate.scale"])
        self.node("LinearAttentionGate", [gates[0], *vectors, gates[1]], "decay", "beta", own=True)
        heads = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
        inputs = [*parts, "past.0.recurrent", "decay", "beta"]
        mixed = self.node("LinearAttention", inputs, "attention.0", "present.0.recurrent", own=True, **heads)
        gate = self.product(x, "z", WIDTH, HEADS * SIZE)
        made = self.node(
            "GatedRMSNorm", [mixed, self.weight("gated.scale", SIZE), gate], "gated", own=True, activation="silu", epsilon=1e-5
        )
        return self.product(made, "out.0", HEADS * SIZE, WIDTH)

    def windowed_attention(self, x: str) -> str:
        """Attention to the last words, gated; the size of its heads is told by the product behind it alone."""
        rows = [self.product(x, f"{name}.1", WIDTH, heads * SIZE) for name, heads in (("q", HEADS), ("k", 1), ("v", 1))]
        angles = np.outer(np.arange(64), 1 / 10 ** np.arange(SIZE // 2))
        self.weights |= {"cosines": np.cos(angles).astype(np.float32), "sines": np.sin(angles).astype(np.float32)}
        for place, heads in enumerate((HEADS, 1)):
            inputs, sections = [rows[place], "position_ids", "cosines", "sines"], {"mrope_section": [2, 1, 1], "num_heads": heads}
            rows[place] = self.node("MRotaryEmbedding", inputs, f"{rows[place]}.turned", own=True, mrope_layout=1, **sections)
        counted = self.node("ReduceSum", ["attention_mask", self.numbers("one", 1)], "mask.sums")
        last = self.node("Sub", [counted, "one"], "mask.last")
        self.node("Cast", [last], "lengths", to=TensorProto.INT32)
        extents = self.node("Shape", ["attention_mask"], "mask.shape", start=1)
        self.node("Cast", [self.node("Squeeze", [extents], "mask.total")], "total", to=TensorProto.INT32)
        caches = [f"past_key_values.1.{part}" for part in ("key", "value")]
        made = ["attention.1", "present.1.key", "present.1.value"]
        attributes = {"num_heads": HEADS, "kv_num_heads": 1, "local_window_size": WINDOW, "sliding_window_cache": 1}
        self.node("GroupQueryAttention", [*rows, *caches, "lengths", "total"], *made, own=True, **attributes)
        gate = self.node("Sigmoid", [self.product(x, "gate.1", WIDTH, HEADS * SIZE)], "gate.1.sigmoid")
        return self.product(self.node("Mul", ["attention.1", gate], "attention.1.gated"), "out.1", HEADS * SIZE, WIDTH)

    def experts(self, x: str, name: str) -> str:
        flat = self.node("Reshape", [x, self.numbers(f"{name}.flat", -1, WIDTH)], f"{name}.words")
        scores = self.product(flat, f"{name}.scores", WIDTH, EXPERTS)
        weights = [self.weight(f"{name}.up", EXPERTS, 2 * INNER, WIDTH), "", self.weight(f"{name}.down", EXPERTS, WIDTH, INNER)]
        attributes = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "normalize_routing_weights": 1, "activation_alpha": 1.0}
        return self.node("MoE", [x, scores, *weights], name, own=True, **attributes)

    def table(self) -> str:
        self.weights["table"] = self._random.integers(0, 256, (WORDS, WIDTH // 2)).astype(np.uint8)
        self.weights["table.scales"] = self._random.uniform(0.05, 0.1, (WORDS, WIDTH // BLOCK)).astype(np.float32)
        attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": BLOCK, "bits": 4}
        return self.node("GatherBlockQuantized", ["table", "input_ids", "table.scales"], "words", own=True, **attributes)

    def model(self) -> bytes:
        x = self.table()
        for number, attention in enumerate((self.linear_attention, self.windowed_attention)):
            mixed = attention(self.norm(x, f"norm.{number}"))
            x = self.node("Add", [x, mixed], f"mixed.{number}")
            made = self.experts(self.norm(x, f"norm.{number}.experts"), f"experts.{number}")
            x = self.node("Add", [x, made], f"layer.{number}")
        self.product(x, "logits", WIDTH, WORDS)
        given = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "words"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, "total"]),
            helper.make_tensor_value_info("position_ids", TensorProto.INT64, [3, 1, "words"]),
        ]
        state = {
            "0.conv": [1, CHANNELS, 3],
            "0.recurrent": [1, HEADS, SIZE, SIZE],
            "1.key": [1, 1, "rolling", "head"],
            "1.value": [1, 1, "rolling", "head"],
        }
        past = [helper.make_tensor_value_info(past_of(name), TensorProto.FLOAT, shape) for name, shape in state.items()]
        present = [helper.make_tensor_value_info(f"present.{name}", TensorProto.FLOAT, shape) for name, shape in state.items()]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "words", WORDS])
        tensors = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "hybrid", [*given, *past], [logits, *present], tensors)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def past_of(name: str) -> str:
    """Return the input of a state, as the tools call it."""
    return f"past_key_values.{name}" if name.startswith("1.") else f"past.{name}"


def hybrid() -> bytes:
    """Build the model, with seeded weights."""
    return _Hybrid().model()


def begin(room: int = WINDOW + 2) -> dict[str, Array]:
    """Return the state to begin with: the rolling cache has room for so many words."""
    zeros = {"0.conv": (1, CHANNELS, 3), "0.recurrent": (1, HEADS, SIZE, SIZE), "1.key": (1, 1, room, SIZE), "1.value": (1, 1, room, SIZE)}
    return {past_of(name): np.zeros(shape, np.float32) for name, shape in zeros.items()}
