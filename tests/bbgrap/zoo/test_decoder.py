"""The decoders: their cache does what computing all words again does, for any sizes, with padding, and with grouped queries."""

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest

from bbgrap import zoo
from bbgrap.cluster import Cluster
from bbgrap.engine.load import load_graph
from bbgrap.graph import check_graph
from bbgrap.graph.onnx_io import read_model, save_graph, to_graph, with_input_shapes
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo.decoder import DecoderSizes, decoder, free_axes
from tests.partition import all_values, assert_close, compiled, plain_outputs, run_checked

GROUPED = DecoderSizes(2, 48, 6, 2, 100, 64)


class Model:
    """A decoder in plain onnxruntime."""

    def __init__(self, path, sizes):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.sizes = sizes
        self.caches = [f"{n}.{part}" for n in range(sizes.depth) for part in ("key", "value")]

    def empty(self, batch):
        return [np.zeros((batch, self.sizes.key_heads, 0, self.sizes.head), np.float32)] * len(self.caches)

    def run(self, words, cache, mask=None, positions=None):
        """Return the logits and the cache of what comes next."""
        past = cache[0].shape[2]
        batch, count = words.shape
        feed = {
            "input_ids": words,
            "attention_mask": np.ones((batch, past + count), np.int64) if mask is None else mask,
            "position_ids": np.tile(np.arange(past, past + count), (batch, 1)) if positions is None else positions,
            **{f"past_key_values.{name}": value for name, value in zip(self.caches, cache, strict=True)},
        }
        logits, *cache = self.session.run(["logits", *(f"present.{name}" for name in self.caches)], feed)
        return logits, cache


@pytest.fixture(scope="module", params=["tiny-decoder", "grouped"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    if request.param == "tiny-decoder":
        return Model(zoo.materialize("tiny-decoder", folder), DecoderSizes(2, 64, 4, 4, 1000, 128))
    graph = decoder("grouped", GROUPED)
    save_graph(graph, folder / "grouped.onnx", free=free_axes(graph))
    return Model(folder / "grouped.onnx", GROUPED)


def words_of(model, *shape):
    return np.random.default_rng(5).integers(0, model.sizes.words, shape)


@pytest.mark.parametrize("batch", [1, 3])
def test_words_one_by_one_with_a_cache_get_what_all_of_them_get_at_once(model, batch):
    words = words_of(model, batch, 12)
    whole, caches = model.run(words, model.empty(batch))
    first, cache = model.run(words[:, :5], model.empty(batch))
    parts = [first]
    for k in range(5, 12):
        logits, cache = model.run(words[:, k : k + 1], cache)
        parts.append(logits)
    assert_close(np.concatenate(parts, axis=1), whole, "logits", 1e-5)
    for got, want in zip(cache, caches, strict=True):
        assert_close(got, want, "cache", 1e-5)


def test_several_words_behind_a_past_see_only_what_is_before_them(model):
    words = words_of(model, 1, 9)
    whole, _ = model.run(words, model.empty(1))
    _, cache = model.run(words[:, :4], model.empty(1))
    rest, _ = model.run(words[:, 4:], cache)
    assert_close(rest, whole[:, 4:], "logits", 1e-5)


def test_a_sequence_with_padding_in_front_gets_what_it_gets_alone(model):
    words = words_of(model, 1, 6)
    alone, _ = model.run(words, model.empty(1))
    padded = np.concatenate([np.zeros((1, 3), np.int64), words], axis=1)
    mask = np.array([[0, 0, 0, 1, 1, 1, 1, 1, 1]])
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    logits, _ = model.run(padded, model.empty(1), mask, positions)
    assert np.isfinite(logits).all()
    assert_close(logits[:, 3:], alone, "logits", 1e-5)


def test_answers_differ_by_every_word_and_position(model):
    words = words_of(model, 1, 6)
    whole, _ = model.run(words, model.empty(1))
    assert whole.std() > 0.05
    for changed in (np.roll(words, 1, axis=1), words[:, ::-1]):
        assert np.abs(model.run(changed.copy(), model.empty(1))[0][:, -1] - whole[:, -1]).max() > 1e-2
    assert len(np.unique(whole[0].argmax(axis=1))) > 1
    assert (whole[0].argmax(axis=1) != words[0]).any()


def norm(x, scale, bias):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias


def layer(x, w, n, sizes):
    """One layer of the decoder in numpy, head by head, query by query."""

    def linear(x, name):
        return x @ w[f"layer{n}.{name}.weight"] + w[f"layer{n}.{name}.bias"]

    y = norm(x, w[f"layer{n}.norm1.weight"], w[f"layer{n}.norm1.bias"])
    query, key, value = (linear(y, f"attention.{part}") for part in ("query", "key", "value"))
    mixed = np.zeros_like(x)
    for head in range(sizes.heads):
        own = slice(head * sizes.head, (head + 1) * sizes.head)
        group = head // (sizes.heads // sizes.key_heads)
        read = slice(group * sizes.head, (group + 1) * sizes.head)
        for position in range(len(x)):
            scores = key[: position + 1, read] @ query[position, own] / np.sqrt(sizes.head)
            weights = np.exp(scores - scores.max())
            mixed[position, own] = weights / weights.sum() @ value[: position + 1, read]
    x = x + linear(mixed, "attention.output")
    y = linear(norm(x, w[f"layer{n}.norm2.weight"], w[f"layer{n}.norm2.bias"]), "mlp.up")
    return x + linear(y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))), "mlp.down")


def test_a_decoder_is_what_numpy_makes_of_its_weights(model):
    sizes = model.sizes
    graph = decoder("tiny-decoder" if sizes.words == 1000 else "grouped", sizes)
    w = {name: weight.array.astype(np.float64) for name, weight in graph.weights.items() if weight.array.dtype == np.float32}
    words = words_of(model, 1, 7)
    x = w["words"][words[0]] + w["positions"][:7]
    for n in range(sizes.depth):
        x = layer(x, w, n, sizes)
    want = norm(x, w["norm.weight"], w["norm.bias"]) @ w["words"].T
    assert_close(model.run(words, model.empty(1))[0][0], want, "logits", 1e-5)


def test_grouped_queries_are_those_of_a_decoder_whose_key_heads_are_repeated(tmp_path):
    grouped, full = decoder("grouped", GROUPED), decoder("full", replace(GROUPED, key_heads=GROUPED.heads))
    weights = dict(full.weights)
    for name, weight in grouped.weights.items():
        if name in weights and weight.type.dtype is weights[name].type.dtype and weight.array.dtype == np.float32:
            array = weight.array
            if ".attention.key" in name or ".attention.value" in name:
                heads = array.reshape(*array.shape[:-1], GROUPED.key_heads, GROUPED.head)
                array = np.repeat(heads, GROUPED.heads // GROUPED.key_heads, axis=-2).reshape(*array.shape[:-1], GROUPED.width)
            weights[name] = make_weight(name, array)
    models = []
    for graph, sizes in ((grouped, GROUPED), (replace(full, weights=weights), replace(GROUPED, key_heads=GROUPED.heads))):
        save_graph(graph, tmp_path / f"{graph.name}.onnx", free=free_axes(graph))
        models.append(Model(tmp_path / f"{graph.name}.onnx", sizes))
    words = words_of(models[0], 2, 8)
    one, two = (model.run(words, model.empty(2))[0] for model in models)
    assert_close(one, two, "logits", 1e-5)


@pytest.mark.parametrize(("batch", "sequence", "past"), [(1, 1, 31), (2, 5, 0), (3, 4, 9)])
def test_the_types_are_those_that_onnx_infers_of_the_file(batch, sequence, past, tmp_path):
    built = decoder("grouped", GROUPED, batch=batch, sequence=sequence, past=past)
    assert check_graph(built) == ()
    save_graph(built, tmp_path / "m.onnx", free=free_axes(built))
    model = read_model(tmp_path / "m.onnx")
    assert {item.name: item.shape for item in model.inputs if item.name.endswith(("_ids", "mask", "0.key"))} == {
        "input_ids": ("batch_size", "sequence_length"),
        "attention_mask": ("batch_size", "past_sequence_length + sequence_length"),
        "position_ids": ("batch_size", "sequence_length"),
        "past_key_values.0.key": ("batch_size", 2, "past_sequence_length", 8),
    }
    assert {item.name: item.shape for item in model.outputs if item.name in ("logits", "present.1.value")} == {
        "logits": ("batch_size", "sequence_length", 100),
        "present.1.value": ("batch_size", 2, "past_sequence_length + sequence_length", 8),
    }
    read = to_graph(with_input_shapes(model, {name: built.types[name].known_shape for name in built.inputs}))
    for name in (*built.inputs, *built.outputs):
        assert read.types[name].dtype is built.types[name].dtype
    for name, kind in read.types.items():
        assert kind.shape is None or name not in built.types or kind == built.types[name], name


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters"), [("gpt2", 124_439_808), ("gpt2-gqa", 124_439_808 - 12 * 2 * 769 * 512)])
def test_parameter_counts(name, parameters):
    weights = zoo.build(name).weights.values()
    assert sum(weight.array.size for weight in weights if weight.array.dtype == np.float32 and weight.array.ndim) == parameters


@pytest.mark.parametrize("planner", ["model-parallel", "soybean", "fewer-exchanges"])
@pytest.mark.parametrize(("sequence", "past"), [(1, 7), (6, 0)])
def test_a_divided_decoder_answers_the_same(planner, sequence, past, tmp_path):
    built = decoder("grouped", GROUPED, sequence=sequence, past=past)
    save_graph(built, tmp_path / "m.onnx", free=free_axes(built))
    graph = load_graph(tmp_path / "m.onnx", {name: built.types[name].known_shape for name in built.inputs})
    assert None not in all_descriptions(graph).values()
    random = np.random.default_rng(0)
    shapes = [graph.types[name].known_shape for name in graph.inputs]
    feeds = [random.standard_normal(shape, np.float32) if len(shape) == 4 else np.ones(shape, np.int64) for shape in shapes]
    parts = compiled(graph, Cluster.even(2), PlanOptions(planner=planner))
    for name, got, want in zip(
        graph.outputs, run_checked(parts.optimized, feeds, all_values(graph, feeds)), plain_outputs(graph, feeds), strict=True
    ):
        assert_close(got, want, name)
