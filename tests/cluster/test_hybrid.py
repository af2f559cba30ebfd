"""A decoder with states of fixed size, a rolling cache and experts on real processes: two agents answer as plain onnxruntime does."""

import numpy as np
import pytest

import bbgrap
from bbgrap.graph.divided_experts import CHOSEN_EXPERTS
from bbgrap.graph.onnx_write import save_graph
from tests.bbgrap.graph.test_divided_experts import feeds_of, mixture
from tests.hybrid_models import WINDOW, WORDS, begin, hybrid
from tests.sequence_models import Alone

pytestmark = pytest.mark.cluster
PROMPT, FURTHER = 5, 12


def test_a_prompt_and_words_after_it(pair, tmp_path):
    path = tmp_path / "hybrid.onnx"
    path.write_bytes(hybrid())
    session = bbgrap.InferenceSession(path, cluster=pair, planner="tensor-parallel", state="auto")
    assert dict(session.options.state) == {name: name.replace("past_key_values", "past").replace("past", "present") for name in begin()}
    alone = Alone(path.read_bytes(), dict(session.options.state), begin())
    words, total = np.random.default_rng(3).integers(0, WORDS, (1, PROMPT)), 0
    with session.sequence(begin()) as sequence:
        for number in range(FURTHER):
            total += words.shape[1]
            places = np.broadcast_to(np.arange(total - words.shape[1], total), (3, 1, words.shape[1])).copy()
            feed = {"input_ids": words, "attention_mask": np.ones((1, total), np.int64), "position_ids": places}
            (logits,), timeline = sequence.run_recorded(["logits"], feed)
            assert timeline is not None, number
            (want,) = alone.run(feed)
            np.testing.assert_allclose(logits, want, rtol=1e-4, atol=2e-5)
            words = logits[:, -1:].argmax(axis=-1)
        assert total > WINDOW + 2, "nothing has left the cache"
        kept = sequence.state()
    for name, array in alone.state.items():
        np.testing.assert_allclose(kept[name], array, rtol=1e-4, atol=2e-5)
    cut = {layer["operator"] for layer in session.plan.report["layers"] if layer["axis"] != "whole"}
    assert {"CausalConvWithState", "LinearAttention", "LinearAttentionGate", "GatedRMSNorm"} <= cut


def test_experts_on_two_agents(pair, tmp_path):
    """Each holds half of them; a request's bits are those of plain onnxruntime, and weights of the other half are nowhere but there."""
    graph = mixture("MoE", (64,), 8, features=128, inner=1024)
    save_graph(graph, tmp_path / "mixture.onnx")
    feeds = dict(zip(graph.inputs, feeds_of(graph), strict=True))
    session = bbgrap.InferenceSession(tmp_path / "mixture.onnx", cluster=pair, planner="tensor-parallel")
    session.prepare({name: array.shape for name, array in feeds.items()})
    assert [len(layer["tiles"]) for layer in session.plan.report["layers"] if layer["operator"] == CHOSEN_EXPERTS] == [2]
    plain = Alone((tmp_path / "mixture.onnx").read_bytes(), {}, {})
    for got, expected in zip(session.run(None, feeds), plain.run(feeds), strict=True):
        np.testing.assert_array_equal(got, expected)
