"""Which models take several steps at once is tried, not believed."""

import onnx
import pytest
from onnx import TensorProto, helper

from bbgrap import zoo
from bbgrap.engine.standby import standby_of
from bbgrap.graph.onnx_io import read_model
from bbgrap.runtime.joined_requests import JoinedInput
from bbgrap.session.signature import Signature
from bbgrap.session.state_pairs import pairs_of
from tests.onnx_models import model_of
from tests.sequence_models import decoder, listener, lstm


def joinings(path):
    model = read_model(path)
    return dict(standby_of(path, pairs_of("auto", Signature.of(model), model.name)).artifacts.joinings)


def test_a_decoder_s_words_positions_and_mask(tmp_path):
    rows = {"input_ids": JoinedInput("row", 1), "position_ids": JoinedInput("row", 1)}
    assert joinings(zoo.materialize("tiny-decoder", tmp_path)) == {**rows, "attention_mask": JoinedInput("whole", 1)}
    (tmp_path / "decoder.onnx").write_bytes(decoder())
    # Its attention looks at later words, but its cache does not: one layer's keys and values are of each word alone.
    assert joinings(tmp_path / "decoder.onnx") == {"input_ids": JoinedInput("row", 1)}
    (tmp_path / "listener.onnx").write_bytes(listener())
    assert joinings(tmp_path / "listener.onnx") == {"input_ids": JoinedInput("row", 1)}


def layers(count):
    """Layers whose cache grows by sums of what comes, over all words of a request; of more than one, caches depend on later words."""
    nodes, inputs, outputs, x = [], {"x": ["S", 4]}, {}, "x"
    for n in range(count):
        nodes += [
            helper.make_node("Concat", [f"past.{n}", x], [f"present.{n}"], axis=0),
            helper.make_node("ReduceMean", [f"present.{n}"], [f"mean.{n}"], axes=[0]),
            helper.make_node("Add", [x, f"mean.{n}"], [f"sum.{n}"]),
        ]
        inputs[f"past.{n}"] = ["P", 4]
        outputs[f"present.{n}"] = ["P + S", 4]
        x = f"sum.{n}"
    return model_of(nodes, inputs, {x: ["S", 4]} | outputs)


@pytest.mark.parametrize(("count", "is_joined"), [(1, True), (2, False)])
def test_what_looks_at_later_words_is_run_step_by_step(tmp_path, count, is_joined):
    onnx.save(layers(count), tmp_path / "layers.onnx")
    assert joinings(tmp_path / "layers.onnx") == ({"x": JoinedInput("row", 0)} if is_joined else {})


def test_steps_of_quantized_models_are_not_joined(tmp_path):
    """Of one word alone and of several at once onnxruntime rounds otherwise, at levels of optimisation that are not tried."""
    model = layers(1)
    scale = [helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1]), helper.make_tensor("zero", TensorProto.INT8, [], [0])]
    model.graph.initializer.extend(scale)
    model.graph.node[0].input[1] = "rounded"
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", ["x.int8", "scale", "zero"], ["rounded"]))
    model.graph.node.insert(0, helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["x.int8"]))
    onnx.save(model, tmp_path / "rounded.onnx")
    assert joinings(tmp_path / "rounded.onnx") == {}


def test_state_that_does_not_grow_joins_nothing(tmp_path):
    (tmp_path / "lstm.onnx").write_bytes(lstm())
    assert joinings(tmp_path / "lstm.onnx") == {}
