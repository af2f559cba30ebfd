"""The decoders with fused operators: what standard operators make of their weights, for any lengths, and cut in parts."""

import numpy as np
import onnxruntime as ort
import pytest

from bbgrap import zoo
from bbgrap.engine.load import load_graph
from bbgrap.graph import check_graph
from bbgrap.tdl import describe
from bbgrap.zoo.decoder import DecoderSizes
from tests.partition import assert_close
from tests.plain_llama import plain

SIZES = DecoderSizes(2, 64, 4, 2, 1000, 128)
CACHES = [f"{n}.{part}" for n in range(SIZES.depth) for part in ("key", "value")]


def session(model):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(model, words, cache, total=None):
    """Return logits and caches; `total` are the words so far, where the caches have room for more."""
    total = words.shape[1] + (cache[0].shape[2] if total is None else total - words.shape[1])
    feed = {"input_ids": words, "attention_mask": np.ones((len(words), total), np.int64)}
    return model.run(None, feed | {f"past_key_values.{name}": array for name, array in zip(CACHES, cache, strict=True)})


def empty(batch, room=0):
    return [np.zeros((batch, SIZES.key_heads, room, SIZES.head), np.float32)] * len(CACHES)


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-llama-int4"])
def models(request, tmp_path_factory):
    fused = session(zoo.materialize(request.param, tmp_path_factory.mktemp("zoo")))
    return fused, session(plain(zoo.build(request.param), SIZES).SerializeToString())


def test_fused_operators_are_what_standard_ones_make_of_the_weights(models):
    fused, standard = models
    words = np.random.default_rng(3).integers(0, SIZES.words, (1, 12))
    whole = run(standard, words, empty(1))
    assert whole[0].std() > 0.05
    assert len(np.unique(whole[0][0].argmax(axis=1))) > 1
    assert_close(run(fused, words, empty(1))[0], whole[0], "at once", 1e-5)
    first = run(fused, words[:, :5], empty(1))
    for ours, theirs in zip(first[1:], run(standard, words[:, :5], empty(1))[1:], strict=True):
        assert_close(ours, theirs, "cache", 1e-5)
    further = run(fused, words[:, 5:11], first[1:])
    last = run(fused, words[:, 11:], further[1:])
    assert_close(np.concatenate([first[0], further[0], last[0]], axis=1), whole[0], "in steps", 1e-5)


def test_a_cache_with_room_is_filled_in_place(models):
    fused, _ = models
    words = np.random.default_rng(4).integers(0, SIZES.words, (2, 6))
    whole = run(fused, words, empty(2))
    cache, logits = empty(2, 32), []
    for start, stop in ((0, 4), (4, 5), (5, 6)):
        made, *cache = run(fused, words[:, start:stop], cache, stop)
        logits.append(made)
    assert cache[0].shape[2] == 32
    assert_close(np.concatenate(logits, axis=1), whole[0], "logits", 1e-5)
    assert_close(cache[0][:, :, :6], whole[1], "cache", 1e-5)


@pytest.mark.parametrize(("past", "room"), [(0, 0), (5, 5), (5, 64)])
def test_types_are_what_onnxruntime_makes_and_all_is_described(past, room):
    shapes = {"input_ids": (1, 2), "attention_mask": (1, past + 2)} | {
        f"past_key_values.{name}": (1, SIZES.key_heads, room, SIZES.head) for name in CACHES
    }
    path = zoo.materialize("tiny-llama")
    graph = load_graph(path, shapes)
    check_graph(graph)
    feed = {name: np.ones(shape, np.float32 if name.startswith("past") else np.int64) for name, shape in shapes.items()}
    for name, array in zip(graph.outputs, session(path).run(list(graph.outputs), feed), strict=True):
        assert graph.types[name].known_shape == array.shape, name
    assert all(describe(graph, node) is not None for node in graph.nodes)
