"""Sizes of heads that a decoder's file calls by a symbol."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bbgrap.graph.onnx_read import read_model
from bbgrap.session.signature import Signature
from bbgrap.session.state_pairs import initial_state, pairs_of
from tests.hybrid_models import WINDOW, begin, hybrid

HEADS, GROUPS, WIDTH = 4, 2, 24


def layer(number, size, product="MatMul", *, gated=False):
    """One attention over packed queries, a gate if wanted, and the product behind it, whose weight has HEADS * size rows."""
    past, present = ([f"{side}.{number}.{part}" for part in ("key", "value")] for side in ("past_key_values", "present"))
    features = HEADS * size
    attention = helper.make_node(
        "GroupQueryAttention",
        [f"packed{number}", "", "", *past, "lengths", "total"],
        [f"answer{number}", *present],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=GROUPS,
    )
    answer = f"gated{number}" if gated else f"answer{number}"
    gate = [helper.make_node("Mul", [f"answer{number}", f"answer{number}"], [answer])] if gated else []
    weight = helper.make_tensor(f"weight{number}", TensorProto.FLOAT, (features, WIDTH), np.zeros(features * WIDTH, np.float32))
    if product == "MatMul":
        nodes = [attention, *gate, helper.make_node("MatMul", [answer, weight.name], [f"y{number}"])]
    else:
        inputs = [answer, "bytes", "scales"]
        attributes = {"K": features, "N": WIDTH, "bits": 4, "block_size": 16}
        nodes = [attention, *gate, helper.make_node(product, inputs, [f"y{number}"], domain="com.microsoft", **attributes)]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("batch", GROUPS, "past", "E")) for name in past]
    inputs.append(helper.make_tensor_value_info(f"packed{number}", TensorProto.FLOAT, ("batch", "words", (HEADS + 2 * GROUPS) * size)))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("batch", GROUPS, "total_words", "E")) for name in present]
    outputs.append(helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, ("batch", "words", WIDTH)))
    return nodes, inputs, outputs, [weight] if product == "MatMul" else []


def read(tmp_path, *layers):
    nodes, inputs, outputs, weights = ([item for part in side for item in part] for side in zip(*layers, strict=True))
    numbers = [helper.make_tensor_value_info("lengths", TensorProto.INT32, ("batch", 1)), helper.make_tensor_value_info("total", 6, (1,))]
    packed = [helper.make_tensor_value_info("bytes", TensorProto.UINT8, None), helper.make_tensor_value_info("scales", 1, None)]
    graph = helper.make_graph(nodes, "decoder", [*inputs, *numbers, *packed], outputs, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path := tmp_path / "decoder.onnx")
    return read_model(path)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("product", ["MatMul", "MatMulNBits"])
def test_the_product_behind_an_attention_tells_the_size_of_its_heads(tmp_path, product, gated):
    model = read(tmp_path, layer(0, 8, product, gated=gated), layer(1, 8, product, gated=gated))
    shapes = {item.name: item.shape for item in (*model.inputs, *model.outputs)}
    assert shapes["past_key_values.1.value"] == ("batch", GROUPS, "past", 8)
    assert shapes["present.0.key"] == ("batch", GROUPS, "total_words", 8)


def test_a_sequence_begins_with_an_empty_cache_of_that_size(tmp_path):
    signature = Signature.of(read(tmp_path, layer(0, 8)))
    pairs = pairs_of("auto", signature, "decoder")
    state = initial_state(pairs, signature, {"packed0": np.zeros((3, 5, 64), np.float32)}, {})
    assert {name: array.shape for name, array in state.items()} == dict.fromkeys(
        ("past_key_values.0.key", "past_key_values.0.value"), (3, GROUPS, 0, 8)
    )


def test_layers_that_disagree_leave_the_symbol(tmp_path):
    model = read(tmp_path, layer(0, 8), layer(1, 16))
    assert {item.shape[3] for item in model.inputs if item.name.startswith("past")} == {"E"}


def test_a_cache_of_the_last_words_begins_with_room_for_them(tmp_path):
    (tmp_path / "hybrid.onnx").write_bytes(hybrid())
    model = read_model(tmp_path / "hybrid.onnx")
    assert model.windows == {"rolling": WINDOW}
    signature = Signature.of(model)
    pairs = pairs_of("auto", signature, "hybrid")
    state = initial_state(pairs, signature, {"input_ids": np.zeros((1, 5), np.int64)}, {})
    assert {name: array.shape for name, array in state.items()} == {name: array.shape for name, array in begin(WINDOW).items()}
