"""Which inputs are state, by the names that exporters give, and what they are before the first request."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from bbgrap.errors import InputError, UsageError
from bbgrap.graph.types import DType
from bbgrap.session.signature import NodeArg, Signature
from bbgrap.session.state_pairs import StateText, initial_state, pairs_of, planned_shapes, with_state_shapes


def signature(inputs, outputs):
    def args(side):
        return tuple(NodeArg(name, dtype, list(shape), has_rank=True) for name, (dtype, shape) in side.items())

    return Signature(args(inputs), args(outputs))


PAST, PRESENT = (DType.FLOAT, ("batch", 2, "past", 4)), (DType.FLOAT, ("batch", 2, "past + 1", 4))
CELL, ROW = (DType.FLOAT, (2, 1, 8)), (DType.FLOAT, ("batch", 8))


@pytest.mark.parametrize(
    ("inputs", "outputs", "pairs"),
    [
        (
            {"ids": (DType.INT64, ("batch", 1)), "past_key_values.0.key": PAST, "past_key_values.0.value": PAST},
            {"logits": ROW, "present.0.key": PRESENT, "present.0.value": PRESENT},
            {"past_key_values.0.key": "present.0.key", "past_key_values.0.value": "present.0.value"},
        ),
        ({"x": ROW, "past_0": PAST}, {"y": ROW, "present_0": PRESENT}, {"past_0": "present_0"}),
        ({"input": ROW, "h": CELL, "c": CELL}, {"output": ROW, "hn": CELL, "cn": CELL}, {"h": "hn", "c": "cn"}),
        ({"input": ROW, "state": CELL}, {"output": ROW, "stateN": CELL}, {"state": "stateN"}),
        ({"x": ROW, "cache": CELL}, {"y": ROW, "cache_out": CELL}, {"cache": "cache_out"}),
        ({"x": ROW, "w": CELL}, {"loss": (DType.FLOAT, ()), "w.next": CELL}, {"w": "w.next"}),
        ({"x": (DType.INT64, (1,)), "memory": CELL}, {"y": ROW, "what": CELL}, {"memory": "what"}),
        (
            {"use_cache_branch": (DType.BOOL, (1,)), "past_key_values.0.decoder.key": PAST, "past_key_values.0.encoder.key": PAST},
            {"logits": ROW, "present.0.decoder.key": PRESENT, "present.0.encoder.key": PRESENT},
            {f"past_key_values.0.{side}.key": f"present.0.{side}.key" for side in ("decoder", "encoder")},
        ),
        (  # nothing puts out what an encoder made: it stays
            {"encoder_attention_mask": ROW, "past_key_values.0.decoder.key": PAST, "past_key_values.0.encoder.key": PAST},
            {"logits": ROW, "present.0.decoder.key": PRESENT},
            {
                "encoder_attention_mask": "encoder_attention_mask",
                "past_key_values.0.decoder.key": "present.0.decoder.key",
                "past_key_values.0.encoder.key": "past_key_values.0.encoder.key",
            },
        ),
        *(
            ({"x": ROW, one: CELL, other: CELL}, {"y": ROW, after: CELL, later: CELL}, {one: after, other: later})
            for one, after, other, later in (
                ("cache_in", "cache_out", "lookahead_in", "lookahead_out"),
                ("r1i", "r1o", "r2i", "r2o"),
                ("h0", "hn", "c_0", "c_n"),
                ("h0", "hN", "c0", "cN"),
                ("cache_params.past.conv.0", "cache_params.present.conv.0", "cache_params.past.ssm.0", "cache_params.present.ssm.0"),
                ("cache_last_channel", "cache_last_channel_next", "cache_last_time", "cache_last_time_next"),
                ("cached_key_0", "new_cached_key_0", "embed_states", "new_embed_states"),
                ("att_cache", "r_att_cache", "cnn_cache", "r_cnn_cache"),
                ("prev_h", "next_h", "prev_c", "next_c"),
            )
        ),
    ],
)
def test_pairs_are_found(inputs, outputs, pairs):
    assert dict(pairs_of("auto", signature(inputs, outputs), "m")) == pairs


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("auto", "name them"),
        ({"x": "nothing"}, "expected an input and an output"),
        ({"x": "b"}, "of one type and rank"),
        ({"x": "a", "z": "a"}, "listed twice"),
    ],
)
def test_what_is_no_state_is_refused(state, said):
    row = (DType.FLOAT, (3,))
    model = signature({"x": row, "z": row}, {"a": row, "b": (DType.INT64, (3,)), "c": row})
    with pytest.raises(UsageError, match=said):
        pairs_of(state, model, "m")


@pytest.mark.parametrize(
    ("dtype", "onnx", "text"),
    [
        (DType.STRING, b"", r"tensor\(string\)"),
        (DType.OTHER, helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None)).SerializeToString(), "seq"),
    ],
)
def test_what_agents_do_not_keep_is_refused_for_what_it_is(dtype, onnx, text):
    one, other = (NodeArg(name, dtype, [], has_rank=False, onnx=onnx) for name in ("last", "last_out"))
    with pytest.raises(UsageError, match=f"expected a tensor of numbers, .* got {text}"):
        pairs_of({"last": "last_out"}, Signature((one,), (other,)), "m")


def test_types_alone_do_not_say_which_of_all_inputs_is_no_state():
    with pytest.raises(UsageError, match="name them"):
        pairs_of("auto", signature({"x": ROW, "memory": CELL}, {"y": ROW, "what": CELL}), "m")


def test_before_the_first_request_there_are_zeros_and_nothing_along_what_grows():
    model = signature({"ids": (DType.INT64, ("batch", 1)), "past_0": PAST, "cell": CELL}, {"present_0": PRESENT, "cell_out": CELL})
    pairs = pairs_of("auto", model, "m")
    state = initial_state(pairs, model, {"ids": np.zeros((3, 1))}, {})
    assert {name: array.shape for name, array in state.items()} == {"past_0": (3, 2, 0, 4), "cell": (2, 1, 8)}
    given = initial_state(pairs, model, {"ids": np.zeros((3, 1))}, {"past_0": np.ones((3, 2, 5, 4))})
    assert given["past_0"].shape == (3, 2, 5, 4)
    with pytest.raises(UsageError, match="no state"):
        initial_state(pairs, model, {}, {"ids": np.zeros(1)})


def test_what_is_planned_ahead_begins_with_the_state_of_a_first_request():
    model = signature({"ids": (DType.INT64, ("batch", 1)), "past_0": PAST, "cell": CELL}, {"present_0": PRESENT, "cell_out": CELL})
    pairs = pairs_of("auto", model, "m")
    assert with_state_shapes(pairs, model, {"ids": (3, 1)}) == {"ids": (3, 1), "past_0": (3, 2, 0, 4), "cell": (2, 1, 8)}
    assert with_state_shapes(pairs, model, {"ids": (3, 1), "past_0": (3, 2, 9, 4)})["past_0"] == (3, 2, 9, 4)
    with pytest.raises(InputError, match=r"'ids': expected a shape of int64\[batch, 1\], got None"):
        with_state_shapes(pairs, model, {})
    untold = signature({"x": (DType.FLOAT, (1,)), "h": (DType.FLOAT, (None,))}, {"hn": (DType.FLOAT, (None,))})
    with pytest.raises(UsageError, match=r"prepare\(\{'h': shape"):
        with_state_shapes((("h", "hn"),), untold, {"x": (1,)})


def test_a_command_line_says_state_and_its_shapes():
    assert StateText.parse("auto") == StateText("auto", {})
    assert StateText.parse("h:hn,c:cn") == StateText({"h": "hn", "c": "cn"}, {})
    assert StateText.parse("h:hn:2x1x128,c:cn") == StateText({"h": "hn", "c": "cn"}, {"h": (2, 1, 128)})
    for text in ("", "h", "h:", ":hn", "h:hn:", "h:hn:2x", "h:hn:2:3", "h:hn,,c:cn"):
        with pytest.raises(UsageError, match="expected auto, or INPUT:OUTPUT"):
            StateText.parse(text)


@pytest.mark.parametrize("dim", [None, "units"])
def test_a_size_that_nobody_says_is_asked_for(dim):
    model = signature({"x": (DType.FLOAT, (1,)), "h": (DType.FLOAT, (dim,))}, {"hn": (DType.FLOAT, (dim,))})
    with pytest.raises(UsageError, match="initial="):
        initial_state((("h", "hn"),), model, {"x": np.zeros(1)}, {})


@pytest.mark.parametrize(("length", "planned"), [("past_sequence_length", 0), (96, 96)], ids=["grows", "is filled"])
def test_one_plan_is_asked_for_whatever_comes_and_whatever_came(length, planned):
    ids, mask = (DType.INT64, ("batch", "sequence_length")), (DType.INT64, ("batch", "total_sequence_length"))
    after = "total_sequence_length" if isinstance(length, str) else length
    caches = [(DType.FLOAT, ("batch", 2, size, 4)) for size in (length, after)]
    found = signature(
        {"input_ids": ids, "attention_mask": mask, "past_key_values.0.key": caches[0]}, {"logits": ROW, "present.0.key": caches[1]}
    )
    pairs = pairs_of("auto", found, "m")
    assert pairs == (("past_key_values.0.key", "present.0.key"),)
    shapes = {planned_shapes(pairs, found, ((3, words), (3, words + past), (3, 2, past, 4))) for words, past in ((1, 96), (7, 96))}
    assert shapes == {((3, 1), (3, 1), (3, 2, planned, 4))}


@pytest.mark.parametrize("after", ["Tanhhn_dim_1", None])
def test_a_batch_that_outputs_call_otherwise_does_not_grow(after):
    found = signature({"x": ROW, "h": (DType.FLOAT, (1, "batch", 8))}, {"y": ROW, "hn": (DType.FLOAT, (1, after, 8))})
    assert planned_shapes((("h", "hn"),), found, ((3, 8), (1, 3, 8))) == ((3, 8), (1, 3, 8))


@pytest.mark.parametrize("state", ["auto", {"h": "hn"}])
def test_a_weight_that_is_an_input_too_can_be_state_and_is_what_it_begins_with(state):
    plain = signature({"x": ROW}, {"y": ROW, "hn": CELL})
    default = np.full((2, 1, 8), 3, np.float32)
    model = replace(plain, overridable=signature({"w": ROW, "h": CELL}, {}).inputs)
    pairs = pairs_of(state, model, "m")
    assert pairs == (("h", "hn"),)
    held = replace(model.overriding(dict(pairs)), defaults={"h": default})
    assert [arg.name for arg in held.inputs] == ["x", "h"]
    assert initial_state(pairs, held, {"x": np.zeros((1, 8))}, {})["h"] is default
    assert not initial_state(pairs, held, {"x": np.zeros((1, 8))}, {"h": np.zeros((2, 1, 8))})["h"].any()
