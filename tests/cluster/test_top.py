"""The largest elements of outputs from real processes: those of the whole outputs, whoever answers, and in few bytes."""

import numpy as np
import pytest

import bbgrap
from bbgrap.errors import ModelError, UsageError
from bbgrap.zoo import materialize
from tests.sequence_models import Alone

pytestmark = pytest.mark.cluster
STATE = {f"past_key_values.{layer}.{kind}": f"present.{layer}.{kind}" for layer in range(2) for kind in ("key", "value")}
EMPTY = {name: np.zeros((1, 4, 0, 16), np.float32) for name in STATE}


def feed_of(words, total):
    count = words.shape[1]
    places = np.arange(total - count, total)[None]
    return {"input_ids": words, "attention_mask": np.ones((1, total), np.int64), "position_ids": places}


def prepared(cluster, planner, **options):
    session = bbgrap.InferenceSession(materialize("tiny-decoder"), cluster=cluster, planner=planner, state="auto", **options)
    session.prepare({name: array.shape for name, array in (feed_of(np.zeros((1, 1), np.int64), 1) | EMPTY).items()})
    return session


def written(session, prompt, count, chosen):
    """Return the words that a sequence writes greedily after a prompt; `chosen` takes the answers, and returns the word of each place."""
    words, total, found = prompt, prompt.shape[1], []
    with session.sequence() as sequence:
        for _ in range(count):
            words = chosen(sequence.run(None, feed_of(words, total)))[:, -1:]
            found.append(int(words[0, 0]))
            total += 1
    return found


@pytest.mark.broad
def test_greedy_words_are_those_of_all_logits(pair):
    top, whole = (prepared(pair, "tensor-parallel", top=top) for top in ({"logits": 1}, None))
    random = np.random.default_rng(0)
    for prompt in (random.integers(0, 1000, (1, length)) for length in (1, 4, 17)):
        greedy = written(top, prompt, 24, lambda answers: answers[1][..., 0])
        assert greedy == written(whole, prompt, 24, lambda answers: answers[0].argmax(-1))
        alone, words, total, plain = Alone(materialize("tiny-decoder").read_bytes(), STATE, EMPTY), prompt, prompt.shape[1], []
        for _ in range(24):
            words = alone.run(feed_of(words, total))[0].argmax(-1)[:, -1:]
            plain.append(int(words[0, 0]))
            total += 1
        assert greedy == plain
    counts = [session.plan.report["optimized"] for session in (whole, top)]
    assert [session.plan.report["nodes_used"] for session in (whole, top)] == [["agent0", "agent1"]] * 2
    assert [count["gather_bytes"] for count in counts] == [4 * 1000, 4 + 8]
    # One node tells the other its half of the twelve candidates, each with its place.
    assert counts[1]["bytes"] - counts[0]["bytes"] == 6 * (4 + 8)
    assert counts[1]["transfers"] - counts[0]["transfers"] == 1


@pytest.mark.broad
def test_auto_and_the_standby_answer_the_same(pair):
    prompt = np.random.default_rng(1).integers(0, 1000, (1, 9))
    sessions = [prepared(pair, "auto", top={"logits": 4}), prepared(pair, "tensor-parallel", top={"logits": 4})]
    sessions.append(bbgrap.InferenceSession(materialize("tiny-decoder"), cluster=pair, state="auto", top={"logits": 4}, wait=False))
    answers = []
    for session in sessions:
        with session.sequence() as sequence:
            answers.append(sequence.run(["logits.indices", "logits.values"], feed_of(prompt, 9)))
    for places, values in answers[1:]:
        np.testing.assert_array_equal(places, answers[0][0])
        np.testing.assert_allclose(values, answers[0][1], rtol=1e-5, atol=1e-5)


@pytest.mark.broad
def test_a_model_without_state_and_any_planner(pair):
    whole = bbgrap.InferenceSession(materialize("tiny"), cluster=pair, planner="single")
    x = np.random.default_rng(2).standard_normal([size if isinstance(size, int) else 1 for size in whole.get_inputs()[0].shape])
    feed = {whole.get_inputs()[0].name: x.astype(np.float32)}
    name = whole.get_outputs()[0].name
    (all_of_it,) = whole.run([name], feed)
    places = np.argsort(-all_of_it, axis=-1, kind="stable")[..., :3]
    for planner in ("bbgrap", "auto", "widest"):
        top = bbgrap.InferenceSession(materialize("tiny"), cluster=pair, planner=planner, top={name: 3})
        assert [arg.name for arg in top.get_outputs()] == [f"{name}.values", f"{name}.indices"]
        for _ in range(3):
            values, indices = top.run(None, feed)
            np.testing.assert_array_equal(indices, places)
            np.testing.assert_allclose(values, np.take_along_axis(all_of_it, places, -1), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_is_refused_before_anything_is_sent(pair):
    with pytest.raises(
        ModelError, match=r"top 'probabilities' of model 'tiny-decoder.*': it is no output; the outputs are logits, present"
    ):
        bbgrap.InferenceSession(materialize("tiny-decoder"), cluster=pair, top={"probabilities": 1})
    with pytest.raises(UsageError, match="top 'logits': expected from 1 to 1048576 elements, got 0"):
        bbgrap.InferenceSession(materialize("tiny-decoder"), cluster=pair, top={"logits": 0})
