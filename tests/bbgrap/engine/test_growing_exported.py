"""Decoders as PyTorch's exporters write them: sizes are asked of shapes, wherever a layer wants them, and all that is left divided."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bbgrap.compiler.simulate import simulate_step
from bbgrap.engine.kernels import local_kernels
from bbgrap.graph.onnx_read import read_model
from bbgrap.planners.options import PlanOptions
from bbgrap.session.signature import Signature
from bbgrap.session.state_pairs import planned_shapes
from tests.bbgrap.engine.test_growing_state import PAIRS, check_words, halves, prepared
from tests.sequence_models import HEADS, SIZE, Alone, decoder

LONGEST = 100


def with_nodes(before, replaced, nodes, constants):
    """The decoder with nodes before the first of an operator, which reads what they make in place of something."""
    model = onnx.load_from_string(decoder())
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    place = [node.op_type for node in model.graph.node].index(before)
    old, new = replaced
    for node in model.graph.node[place:]:
        node.input[:] = [new if name == old else name for name in node.input]
    made = [*model.graph.node[:place], *(helper.make_node(*node[:3], **(node[3] if node[3:] else {})) for node in nodes)]
    rest = list(model.graph.node[place:])
    del model.graph.node[:]
    model.graph.node.extend([*made, *rest])
    return model.SerializeToString()


def rotated():
    """Halves of the heads of keys change places, one with its sign; where they part is half of a size that a shape tells."""
    nodes = [
        ("Shape", ["k.heads"], ["sizes"]),
        ("Gather", ["sizes", "order"], ["sizes in order"]),
        ("Gather", ["sizes in order", "third"], ["elements"]),
        ("Div", ["elements", "two"], ["half"]),
        ("Slice", ["k.heads", "zero", "half", "last"], ["left"]),
        ("Slice", ["k.heads", "half", "end", "last"], ["right"]),
        ("Neg", ["right"], ["less"]),
        ("Concat", ["less", "left"], ["turned"], {"axis": -1}),
        ("Add", ["k.heads", "turned"], ["placed"]),
    ]
    constants = {"order": [0, 2, 1, 3], "third": [3], "two": [2], "zero": [0], "last": [3], "end": [np.iinfo(np.int64).max]}
    return with_nodes("Concat", ("k.heads", "placed"), nodes, constants)


def partly_rotated():
    """As with a rotary factor of one: of the heads, as many elements are turned as angles come, which are all, and none is left over."""
    nodes = [
        ("Shape", ["input_ids"], ["asked"]),
        ("Gather", ["asked", "first"], ["words of it"]),
        ("Range", ["none", "words of it", "one"], ["places"]),
        ("Cast", ["places"], ["far"], {"to": TensorProto.FLOAT}),
        ("Unsqueeze", ["far", "sides"], ["column"]),
        ("Mul", ["column", "speeds"], ["angles"]),
        ("Shape", ["angles"], ["sizes"]),
        ("Gather", ["sizes", "third"], ["elements"]),
        ("Slice", ["k.heads", "zero", "elements", "last"], ["moving"]),
        ("Slice", ["k.heads", "elements", "end", "last"], ["staying"]),
        ("Shape", ["moving"], ["sizes of it"]),
        ("Gather", ["sizes of it", "third"], ["elements of it"]),
        ("Div", ["elements of it", "two"], ["half"]),
        ("Slice", ["moving", "zero", "half", "last"], ["left"]),
        ("Slice", ["moving", "half", "end", "last"], ["right"]),
        ("Neg", ["right"], ["less"]),
        ("Concat", ["less", "left"], ["turned"], {"axis": -1}),
        ("Mul", ["turned", "angles"], ["by angles"]),
        ("Add", ["moving", "by angles"], ["moved"]),
        ("Concat", ["moved", "staying"], ["placed"], {"axis": -1}),
    ]
    constants = {"third": [3], "two": [2], "zero": [0], "last": [3], "end": [np.iinfo(np.int64).max], "none": 0, "first": 1, "one": 1}
    constants |= {"sides": [0, 1, 3], "speeds": np.array([0.1, 0.2, 0.3, 0.4], np.float32)}
    return with_nodes("Concat", ("k.heads", "placed"), nodes, constants)


def with_a_copy_of_the_state():
    """A cache that begins as a list with nothing in it: what comes is concatenated with nothing, and asked for its length."""
    nodes = [
        ("Concat", ["past_key_values.0.key"], ["copied"], {"axis": 2}),
        ("Shape", ["copied"], ["cached"]),
        ("Gather", ["cached", "third"], ["length"]),
        ("Cast", ["length"], ["far"], {"to": TensorProto.FLOAT}),
        ("Mul", ["far", "less"], ["bias"]),
        ("Add", ["k.heads", "bias"], ["placed"]),
    ]
    model = onnx.load_from_string(with_nodes("Concat", ("k.heads", "placed"), nodes, {"third": [2], "less": np.float32(-0.01)}))
    joined = next(node for node in model.graph.node if node.output[0] == "present.0.key")
    joined.input[0] = "copied"
    return model.SerializeToString()


def reading_last(decoder):
    """Return a decoder whose attention reads `last keys` and `last values`, not all."""
    model = onnx.load_from_string(decoder)
    for node in model.graph.node:
        if node.op_type in {"Transpose", "MatMul"}:
            node.input[:] = [{"present.0.key": "last keys", "present.0.value": "last values"}.get(name, name) for name in node.input]
    return model.SerializeToString()


def of_a_window():
    """Attention of each request to its own words and two before, of which keys and values are taken from the end."""
    nodes = [
        ("Shape", ["input_ids"], ["asked"]),
        ("Gather", ["asked", "second"], ["words of it"]),
        ("Add", ["words of it", "two"], ["window"]),
        ("Neg", ["window"], ["from the end"]),
        ("Slice", ["present.0.key", "from the end", "end", "third"], ["last keys"]),
        ("Slice", ["present.0.value", "from the end", "end", "third"], ["last values"]),
    ]
    constants = {"second": [1], "two": [2], "third": [2], "end": [np.iinfo(np.int64).max]}
    return reading_last(with_nodes("MatMul", ("", ""), nodes, constants))


def of_a_window_of_seven():
    """Attention to the last seven words, fewer at first, with scores of all heads in those of each: what travels is as long as these."""
    nodes = [
        ("Slice", ["present.0.key", "start", "end", "third"], ["last keys"]),
        ("Slice", ["present.0.value", "start", "end", "third"], ["last values"]),
        ("ReduceSum", ["scores", "heads"], ["of all heads"]),
        ("Add", ["scores", "of all heads"], ["mixed scores"]),
    ]
    constants = {"start": [-7], "third": [2], "end": [np.iinfo(np.int64).max], "heads": [1]}
    return reading_last(with_nodes("Softmax", ("scores", "mixed scores"), nodes, constants))


def in_rows():
    """Scores of all heads of all sequences in one axis, and back: sizes of words and of all words are at other places behind it."""
    nodes = [
        ("Shape", ["scores"], ["sizes"]),
        ("Gather", ["sizes", "both"], ["lengths"]),
        ("Concat", ["any", "lengths"], ["apart"], {"axis": 0}),
        ("Reshape", ["scores", "apart"], ["in rows"]),
        ("Mul", ["in rows", "temperature"], ["warm"]),
        ("Concat", ["one", "any", "lengths"], ["joined"], {"axis": 0}),
        ("Reshape", ["warm", "joined"], ["warm scores"]),
    ]
    constants = {"both": [2, 3], "any": [HEADS], "one": [1], "temperature": np.float32(0.7)}
    return with_nodes("Softmax", ("scores", "warm scores"), nodes, constants)


def of_a_number_made_a_list():
    """Values viewed as they are, as those that heads share are: how many words there are is a sum of numbers, and made a list of one."""
    nodes = [
        ("Shape", ["past_key_values.0.key"], ["before"], {"start": 2, "end": 3}),
        ("Squeeze", ["before"], ["words before"]),
        ("Shape", ["input_ids"], ["asked"], {"start": 1, "end": 2}),
        ("Squeeze", ["asked"], ["words of it"]),
        ("Add", ["words before", "words of it"], ["all words"]),
        ("Reshape", ["all words", "any"], ["all"]),
        ("Shape", ["input_ids"], ["rows"], {"start": 0, "end": 1}),
        ("Concat", ["rows", "heads", "all", "size"], ["viewed as"], {"axis": 0}),
        ("Reshape", ["present.0.value", "viewed as"], ["viewed"], {"allowzero": 1}),
    ]
    return with_nodes("Softmax", ("present.0.value", "viewed"), nodes, {"any": [-1], "heads": [HEADS], "size": [SIZE]})


def with_table_of_places():
    """Scores less for words far away, of a table that ends with the last word: as many of its places as there are words are taken."""
    table = -0.1 * np.arange(LONGEST, 0, -1, np.float32) * np.arange(1, HEADS + 1, dtype=np.float32).reshape(1, -1, 1, 1)
    nodes = [
        ("Shape", ["present.0.key"], ["cached"]),
        ("Gather", ["cached", "third"], ["lengths"]),
        ("Neg", ["lengths"], ["from the end"]),
        ("Slice", ["table", "from the end", "end", "last"], ["biases"]),
        ("Add", ["scores", "biases"], ["lessened"]),
    ]
    constants = {"third": [2], "end": [np.iinfo(np.int64).max], "last": [3], "table": table.astype(np.float32)}
    return with_nodes("Softmax", ("scores", "lessened"), nodes, constants)


def in_one_product():
    """Queries, keys and values of one product, which a third of its columns each are taken of: as `chunk` has it."""
    model = onnx.load_from_string(decoder())
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [
        ("MatMul", ["x", "qkv.w"], ["qkv"]),
        ("Shape", ["qkv"], ["sizes"]),
        ("Gather", ["sizes", "last"], ["columns"]),
        ("Add", ["columns", "two"], ["more columns"]),
        ("Div", ["more columns", "three"], ["third"]),
        ("Mul", ["third", "two"], ["two thirds"]),
        ("Slice", ["qkv", "zero", "third", "last"], ["q"]),
        ("Slice", ["qkv", "third", "two thirds", "last"], ["k"]),
        ("Slice", ["qkv", "two thirds", "columns", "last"], ["v"]),
    ]
    constants = {"last": [2], "two": [2], "three": [3], "zero": [0], "qkv.w": np.concatenate([weights[f"{name}.w"] for name in "qkv"], 1)}
    written = onnx.load_from_string(with_nodes("MatMul", ("", ""), nodes, constants))
    kept = [node for node in written.graph.node if node.output[0] not in {f"{name}.flat" for name in "qkv"}]
    for node in kept:
        node.input[:] = [name.removesuffix(".flat") for name in node.input]
    del written.graph.node[:]
    written.graph.node.extend(kept)
    return written.SerializeToString()


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (rotated, "placed"),
        (partly_rotated, "moved"),
        (in_one_product, "k"),
        (with_a_copy_of_the_state, "present.0.key"),
        (of_a_window, "last keys"),
        (of_a_window_of_seven, "last keys"),
        (in_rows, "shares"),
        (with_table_of_places, "shares"),
        (of_a_number_made_a_list, "viewed"),
    ],
)
@pytest.mark.parametrize("planner", ["tensor-parallel", pytest.param("auto", marks=pytest.mark.broad)])
def test_a_decoder_is_divided_and_answers_as_plain_onnxruntime_does(tmp_path, planner, written, value):
    empty = {name: np.zeros((1, HEADS, 0, SIZE), np.float32) for name in PAIRS}
    shapes = {"input_ids": (1, 3), **{name: array.shape for name, array in empty.items()}}
    planned, plan = prepared(tmp_path, written(), shapes, PAIRS, PlanOptions(planner))
    assert plan.planner == planner
    check_words(planned.artifacts, written(), empty, (3, 1, 4, 1, 1))
    assert not any(node.op == "Concat" and len(node.inputs) == 1 for node in plan.graph.nodes), "nobody computes, or sends, a copy"
    if planner == "tensor-parallel":
        whole = sum(array.nbytes for array in Alone.weights_of(decoder()))
        assert max(device.weight_bytes for device in planned.artifacts.devices) < 0.8 * whole
        tiles = plan.tiles[plan.graph.producers[value].name]
        assert len({str(tile.region) for tile in tiles}) == 2, "each device computes a part of its own"


def check_masked(artifacts, graph, model, empty, batch):
    """Requests of words with a mask of all so far are answered as plain onnxruntime does."""
    first, further = halves(artifacts)
    alone, random, held, total = Alone(model, PAIRS, empty), np.random.default_rng(0), [()] * 2, 0
    for count in (3, 1, 4, 1):
        program, total = (further if total else first), total + count
        feed = {"input_ids": random.integers(0, 50, (batch, count)), "mask": random.standard_normal((batch, total)).astype(np.float32)}
        names = graph.given if program is further else graph.inputs
        outputs, held = simulate_step(program, [(feed | empty)[name] for name in names], held, local_kernels(program))
        np.testing.assert_allclose(outputs[0], alone.run(feed)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("symbol", ["s12", "total_length"])
def test_the_axis_of_a_mask_is_of_all_words_whatever_it_is_called(tmp_path, symbol):
    nodes = [("Unsqueeze", ["mask", "sides"], ["mask of scores"]), ("Add", ["scores", "mask of scores"], ["masked"])]
    model = onnx.load_from_string(with_nodes("Softmax", ("scores", "masked"), nodes, {"sides": [1, 2]}))
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", symbol]))
    empty = {name: np.zeros((1, HEADS, 0, SIZE), np.float32) for name in PAIRS}
    shapes = {"input_ids": (1, 3), "mask": (1, 3), **{name: array.shape for name, array in empty.items()}}
    planned, plan = prepared(tmp_path, model.SerializeToString(), shapes, PAIRS, PlanOptions("tensor-parallel"))
    assert plan.planner == "tensor-parallel"
    check_masked(planned.artifacts, plan.graph, model.SerializeToString(), empty, 1)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_batch_is_found_where_a_mask_calls_it_otherwise(tmp_path, batch):
    """As `view(batch, -1)` of a mask in GPT-2 is written: as many rows as there are of words, though torch.export numbers them apart."""
    nodes = [
        ("Shape", ["input_ids"], ["asked"]),
        ("Slice", ["asked", "zero", "first", "zero"], ["rows"]),
        ("Concat", ["rows", "rest"], ["rows and rest"], {"axis": 0}),
        ("Reshape", ["mask", "rows and rest"], ["viewed"]),
        ("Unsqueeze", ["viewed", "sides"], ["mask of scores"]),
        ("Add", ["scores", "mask of scores"], ["masked"]),
    ]
    constants = {"zero": [0], "first": [1], "rest": [-1], "sides": [1, 2]}
    model = onnx.load_from_string(with_nodes("Softmax", ("scores", "masked"), nodes, constants))
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["s86", "s12"]))
    empty = {name: np.zeros((batch, HEADS, 0, SIZE), np.float32) for name in PAIRS}
    path = tmp_path / "asked.onnx"
    path.write_bytes(model.SerializeToString())
    signature = Signature.of(read_model(path))
    asked = {"input_ids": (batch, 3), "mask": (batch, 3), **{name: array.shape for name, array in empty.items()}}
    planned_for = planned_shapes(tuple(PAIRS.items()), signature, tuple(asked[arg.name] for arg in signature.inputs))
    shapes = dict(zip((arg.name for arg in signature.inputs), planned_for, strict=True))
    assert shapes["mask"][0] == batch
    planned, plan = prepared(tmp_path, model.SerializeToString(), shapes, PAIRS, PlanOptions("tensor-parallel"))
    assert plan.planner == "tensor-parallel"
    check_masked(planned.artifacts, plan.graph, model.SerializeToString(), empty, batch)
