"""One program for all lengths of a state: what it answers, and that nothing else passes for one."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bbgrap import zoo
from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts
from bbgrap.compiler.simulate import simulate_step
from bbgrap.engine.growing_state import prepare_growing
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.reload import ReloadedModel
from bbgrap.errors import PlanError
from bbgrap.graph.onnx_io import save_graph
from bbgrap.graph.state import with_state
from bbgrap.graph.top_k import blocks_for, with_top
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import cuts_moving
from bbgrap.zoo.decoder import DecoderSizes, free_axes
from bbgrap.zoo.decoder import decoder as decoder_of
from tests.onnx_models import model_of
from tests.sequence_models import HEADS, SIZE, Alone, decoder

PAIRS = {f"past_key_values.0.{kind}": f"present.0.{kind}" for kind in ("key", "value")}


def prepared(tmp_path, model, shapes, pairs, options):
    path = tmp_path / "m.onnx"
    path.write_bytes(model)
    loader = ReloadedModel(path)
    first = with_state(loader.graph(path, shapes), pairs)
    return prepare_growing(first, loader.open_graph, loader.declared, Cluster.even(2), options)


def halves(artifacts):
    """A deployment's two programs, each as one that has no other."""
    first = Artifacts(tuple(DeviceArtifacts(d.schedule, d.segments) for d in artifacts.devices), artifacts.host, artifacts.weights)
    further = Artifacts(tuple(DeviceArtifacts(d.further, d.segments) for d in artifacts.devices), artifacts.further, artifacts.weights)
    return first, further


@pytest.mark.parametrize("options", [PlanOptions("single"), PlanOptions("bbgrap", "channels"), PlanOptions("soybean")])
def test_words_after_a_prompt_are_answered_as_plain_onnxruntime_does(tmp_path, options):
    empty = {name: np.zeros((1, HEADS, 0, SIZE), np.float32) for name in PAIRS}
    shapes = {"input_ids": (1, 5), **{name: array.shape for name, array in empty.items()}}
    planned, _ = prepared(tmp_path, decoder(), shapes, PAIRS, options)
    first, further = halves(planned.artifacts)
    assert not {s.message for s in first.host.steps if hasattr(s, "message")} & {
        s.message for s in further.host.steps if hasattr(s, "message")
    }
    alone, random = Alone(decoder(), PAIRS, empty), np.random.default_rng(0)
    words = random.integers(0, 50, (1, 5))
    outputs, state = simulate_step(first, [words, *empty.values()], [()] * first.host.host, local_kernels(first))
    np.testing.assert_allclose(outputs[0], alone.run({"input_ids": words})[0], rtol=1e-5, atol=1e-6)
    kernels = local_kernels(further)
    for _ in range(70):  # past the length that it was planned with
        words = random.integers(0, 50, (1, 1))
        outputs, state = simulate_step(further, [words], state, kernels)
        np.testing.assert_allclose(outputs[0], alone.run({"input_ids": words})[0], rtol=1e-5, atol=1e-6)
    if options.planner != "single":
        used = [device.weight_bytes for device in planned.artifacts.devices]
        whole = sum(array.nbytes for array in Alone.weights_of(decoder()))
        assert max(used) < 0.8 * whole


def check_words(artifacts, model, empty, counts):
    """Requests of so many words each are answered as plain onnxruntime does."""
    first, further = halves(artifacts)
    alone, random, held = Alone(model, PAIRS, empty), np.random.default_rng(0), [()] * first.host.host
    for number, count in enumerate(counts):
        words = random.integers(0, 50, (1, count))
        program, feeds = (further, [words]) if number else (first, [words, *empty.values()])
        outputs, held = simulate_step(program, feeds, held, local_kernels(program))
        np.testing.assert_allclose(outputs[0], alone.run({"input_ids": words})[0], rtol=1e-5, atol=1e-6)


def of_the_last_word(op: str) -> bytes:
    """The decoder with the logits of its last word only, as exporters cut them: counted from an end that moves."""
    model = onnx.load_from_string(decoder())
    bounds = {"starts": [-1], "ends": [np.iinfo(np.int64).max], "axes": [1]} if op == "Slice" else {"last word": -1}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in bounds.items())
    model.graph.node.append(helper.make_node(op, ["logits", *bounds], ["last"], **({} if op == "Slice" else {"axis": 1})))
    model.graph.output[0].name = "last"
    sizes = model.graph.output[0].type.tensor_type.shape.dim
    sizes[1].dim_value = 1
    if op == "Gather":
        del sizes[1]
    return model.SerializeToString()


@pytest.mark.parametrize("op", ["Slice", "Gather"])
@pytest.mark.parametrize("planner", ["tensor-parallel", pytest.param("auto", marks=pytest.mark.broad)])
def test_what_counts_from_the_end_takes_requests_of_any_length(tmp_path, planner, op):
    empty = {name: np.zeros((1, HEADS, 0, SIZE), np.float32) for name in PAIRS}
    shapes = {"input_ids": (1, 1), **{name: array.shape for name, array in empty.items()}}
    planned, plan = prepared(tmp_path, of_the_last_word(op), shapes, PAIRS, PlanOptions(planner))
    assert plan.planner == planner
    check_words(planned.artifacts, of_the_last_word(op), empty, (4, 1, 3, 1))


def with_expanded_places() -> bytes:
    """The decoder with scores less for later words, which PyTorch's `expand` gives the sizes of all scores: -1 is for what stays."""
    model = onnx.load_from_string(decoder())
    constants = {
        "first": [0],
        "second": [1],
        "third": [2],
        "one": [1],
        "row": [1, 1, 1, -1],
        "minus": [-1] * 4,
        "ones": [1] * 4,
        "zero": 0,
        "step": 1,
    }
    model.graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in constants.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array(-0.1, np.float32), "less"))
    made = [
        helper.make_node("Shape", ["input_ids"], ["asked"]),
        helper.make_node("Shape", ["present.0.key"], ["cached"]),
        helper.make_node("Gather", ["asked", "first"], ["batch"]),
        helper.make_node("Gather", ["asked", "second"], ["words of it"]),
        helper.make_node("Gather", ["cached", "third"], ["words of all"]),
        helper.make_node("Concat", ["batch", "one", "words of it", "words of all"], ["sizes"], axis=0),
        helper.make_node("Equal", ["sizes", "minus"], ["stays"]),
        helper.make_node("Where", ["stays", "ones", "sizes"], ["told"]),
        helper.make_node("Squeeze", ["words of all"], ["end"]),
        helper.make_node("Range", ["zero", "end", "step"], ["places"]),
        helper.make_node("Cast", ["places"], ["far"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["far", "less"], ["biases"]),
        helper.make_node("Reshape", ["biases", "row"], ["biases in a row"]),
        helper.make_node("Expand", ["biases in a row", "told"], ["of all scores"]),
        helper.make_node("Add", ["scores", "of all scores"], ["lessened"]),
    ]
    before = [node.op_type for node in model.graph.node].index("Softmax")
    model.graph.node[before].input[0] = "lessened"
    nodes = [*model.graph.node[:before], *made, *model.graph.node[before:]]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model.SerializeToString()


@pytest.mark.parametrize("planner", ["tensor-parallel", pytest.param("auto", marks=pytest.mark.broad)])
def test_what_is_expanded_to_lengths_that_move_leaves_a_decoder_divided(tmp_path, planner):
    empty = {name: np.zeros((1, HEADS, 0, SIZE), np.float32) for name in PAIRS}
    shapes = {"input_ids": (1, 3), **{name: array.shape for name, array in empty.items()}}
    planned, plan = prepared(tmp_path, with_expanded_places(), shapes, PAIRS, PlanOptions(planner))
    assert plan.planner == planner
    check_words(planned.artifacts, with_expanded_places(), empty, (3, 1, 4, 1))
    if planner == "tensor-parallel":
        whole = sum(array.nbytes for array in Alone.weights_of(decoder()))
        assert max(device.weight_bytes for device in planned.artifacts.devices) < 0.8 * whole


def hidden_length() -> bytes:
    """A cache of which the answer depends by its length, which folds to a constant."""
    nodes = [
        helper.make_node("Concat", ["past_0", "x"], ["present_0"], axis=1),
        helper.make_node("Shape", ["present_0"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["sizes"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["sizes"], ["length"], keepdims=0),
        helper.make_node("ReduceSum", ["present_0", "axes"], ["sum"], keepdims=0),
        helper.make_node("Div", ["sum", "length"], ["mean"]),
    ]
    inputs, outputs = {"x": [1, 1, 4], "past_0": [1, "past", 4]}, {"mean": [1, 4], "present_0": [1, "n", 4]}
    return model_of(nodes, inputs, outputs, {"axes": np.array([1], np.int64)}).SerializeToString()


def test_a_length_that_is_hidden_in_a_constant_is_found(tmp_path):
    """Loaded as other models are, with all folded that follows from shapes."""
    path, pairs = tmp_path / "m.onnx", {"past_0": "present_0"}
    path.write_bytes(hidden_length())
    loader = ReloadedModel(path)
    first = with_state(loader.graph(path, {"x": (1, 1, 4), "past_0": (1, 0, 4)}), pairs)
    with pytest.raises(PlanError, match="its state grows"):
        prepare_growing(first, lambda shapes, _: loader.graph(path, shapes), loader.declared, Cluster.even(2), PlanOptions("single"))


def test_a_length_of_which_the_answer_depends_is_told_by_every_request(tmp_path):
    empty = {"past_0": np.zeros((1, 0, 4), np.float32)}
    planned, _ = prepared(tmp_path, hidden_length(), {"x": (1, 1, 4), "past_0": (1, 0, 4)}, {"past_0": "present_0"}, PlanOptions("single"))
    first, further = halves(planned.artifacts)
    alone, random, held = Alone(hidden_length(), {"past_0": "present_0"}, empty), np.random.default_rng(0), [()] * first.host.host
    for number in range(6):
        x = random.standard_normal((1, 1, 4)).astype(np.float32)
        program, feeds = (further, [x]) if number else (first, [x, *empty.values()])
        outputs, held = simulate_step(program, feeds, held, local_kernels(program))
        np.testing.assert_allclose(outputs[0], alone.run({"x": x})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("planner", "batch"),
    [("tensor-parallel", 1), *(pytest.param(*more, marks=pytest.mark.broad) for more in (("auto", 1), ("tensor-parallel", 3)))],
)
def test_one_program_takes_prompts_and_words_of_any_number(planner, batch):
    """Of several sequences, too, whose rows are joined for a product."""
    path = zoo.materialize("tiny-decoder")
    loader = ReloadedModel(path)
    state = {name: name.replace("past_key_values", "present") for name in loader.declared if name.startswith("past")}
    empty = {name: np.zeros((batch, 4, 0, 16), np.float32) for name in state}
    shapes = {name: (batch, 1) for name in loader.declared if name not in state} | {name: array.shape for name, array in empty.items()}
    nodes = tuple(NodeProfile(f"node{number}", share=share) for number, share in enumerate((2, 1, 1)))
    first = with_state(loader.graph(path, shapes), state)
    planned, plan = prepare_growing(first, loader.open_graph, loader.declared, Cluster(nodes), PlanOptions(planner))
    assert not any(cuts_moving(plan.graph, node, plan.tiles[node.name]) for node in plan.graph.nodes)
    begins, further = halves(planned.artifacts)
    kernels = {True: local_kernels(begins), False: local_kernels(further)}
    for prompt in (1, 7):
        alone, random, total = Alone(path.read_bytes(), state, empty), np.random.default_rng(prompt), 0
        held = [()] * begins.host.host
        for count in (prompt, 1, 3, 1, 1, 8):
            total += count
            feed = {
                "input_ids": random.integers(0, 1000, (batch, count)),
                "attention_mask": np.ones((batch, total), np.int64),
                "position_ids": np.tile(np.arange(total - count, total), (batch, 1)),
            }
            is_first = total == count
            given = [(feed | empty)[name] for name in (first.inputs if is_first else first.given)]
            outputs, held = simulate_step(begins if is_first else further, given, held, kernels[is_first])
            np.testing.assert_allclose(outputs[0], alone.run(feed)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("planner", "count"),
    [("tensor-parallel", 1), *(pytest.param(*more, marks=pytest.mark.broad) for more in (("tensor-parallel", 5), ("auto", 2)))],
)
def test_the_likeliest_words_are_those_of_all_logits(planner, count):
    path = zoo.materialize("tiny-decoder")
    loader = ReloadedModel(path)
    state = {name: name.replace("past_key_values", "present") for name in loader.declared if name.startswith("past")}
    empty = {name: np.zeros((1, 4, 0, 16), np.float32) for name in state}
    shapes = {name: (1, 1) for name in loader.declared if name not in state} | {name: array.shape for name, array in empty.items()}

    def load(sizes, axes):
        return with_top(loader.open_graph(sizes, axes), {"logits": count}, blocks_for(2))

    first = with_state(with_top(loader.graph(path, shapes), {"logits": count}, blocks_for(2)), state)
    planned, _ = prepare_growing(first, load, loader.declared, Cluster.even(2), PlanOptions(planner))
    begins, further = halves(planned.artifacts)
    kernels = {True: local_kernels(begins), False: local_kernels(further)}
    alone, held, total = Alone(path.read_bytes(), state, empty), [()] * 2, 0
    words = np.random.default_rng(0).integers(0, 1000, (1, 6))
    for _ in range(12):
        is_first, total = total == 0, total + words.shape[1]
        feed = {
            "input_ids": words,
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(total - words.shape[1], total)[None],
        }
        given = [(feed | empty)[name] for name in (first.inputs if is_first else first.given)]
        (values, places), held = simulate_step(begins if is_first else further, given, held, kernels[is_first])
        logits = alone.run(feed)[0]
        np.testing.assert_array_equal(places, np.argsort(-logits, axis=-1, kind="stable")[..., :count])
        np.testing.assert_allclose(values, np.take_along_axis(logits, places, -1), rtol=1e-4, atol=1e-5)
        words = places[:, -1:, 0]


@pytest.mark.broad
def test_a_decoder_that_fits_no_node_runs_on_two(tmp_path):
    path = tmp_path / "m.onnx"
    graph = decoder_of("large", DecoderSizes(3, 384, 6, 6, 4_000, 64))
    save_graph(graph, path, free=free_axes(graph))
    loader = ReloadedModel(path)
    state = {name: name.replace("past_key_values", "present") for name in loader.declared if name.startswith("past")}
    shapes = {name: (1, 1) for name in loader.declared if name not in state} | dict.fromkeys(state, (1, 6, 0, 64))
    first = with_state(loader.graph(path, shapes), state)
    whole = sum(weight.type.nbytes for weight in graph.weights.values())
    nodes = tuple(NodeProfile(f"node{number}", memory_bytes=round(whole / 1.5)) for number in range(2))
    for planner in ("auto", "tensor-parallel"):
        planned, plan = prepare_growing(first, loader.open_graph, loader.declared, Cluster(nodes), PlanOptions(planner))
        assert plan.planner == planner
        assert max(device.weight_bytes for device in planned.artifacts.devices) < 0.55 * whole
    with pytest.raises(PlanError, match=r"has [0-9]+ MB"):
        prepare_growing(first, loader.open_graph, loader.declared, Cluster(nodes[:1]), PlanOptions("auto"))
