"""Decoders of fused operators on real processes: two agents write the words that plain onnxruntime writes."""

import numpy as np
import pytest

import bbgrap
from bbgrap import zoo
from tests.sequence_models import Alone

pytestmark = pytest.mark.cluster
PROMPT, WORDS = 16, 64


@pytest.mark.parametrize("room", [pytest.param(0, id="growing"), pytest.param(96, id="filled", marks=pytest.mark.broad)])
@pytest.mark.parametrize("name", [pytest.param("tiny-llama", marks=pytest.mark.broad), "tiny-llama-int4"])
def test_a_prompt_and_words_after_it(pair, name, room):
    path = zoo.materialize(name)
    session = bbgrap.InferenceSession(path, cluster=pair, planner="tensor-parallel", state="auto")
    begin = {state: np.zeros((1, 2, room, 16), np.float32) for state, _ in session.options.state}
    alone = Alone(path.read_bytes(), dict(session.options.state), begin)
    words, total = np.random.default_rng(1).integers(0, 1000, (1, PROMPT)), 0
    with session.sequence(begin if room else None) as sequence:
        for number in range(WORDS):
            total += words.shape[1]
            feed = {"input_ids": words, "attention_mask": np.ones((1, total), np.int64)}
            # What is recorded is known of a plan only: none of these requests ran elsewhere.
            if number % 8:
                (logits,) = sequence.run(["logits"], feed)
            else:
                (logits,), timeline = sequence.run_recorded(["logits"], feed)
                assert timeline is not None
            (want,) = alone.run(feed)
            np.testing.assert_allclose(logits, want, rtol=1e-4, atol=2e-5)
            words = logits[:, -1:].argmax(axis=-1)
            assert words == want[:, -1:].argmax(axis=-1)
        assert len(session.plan.report["nodes_used"]) == 2
        shapes = {array.shape for array in sequence.state().values()}
        assert shapes == {(1, 2, room or total, 16)}
