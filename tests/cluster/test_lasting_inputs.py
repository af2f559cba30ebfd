"""Inputs that come with the first request of a sequence and stay: what an encoder made of a sound, for all words."""

import numpy as np
import pytest

import bbgrap
from bbgrap.errors import InputError
from tests.known_agents import known_cluster
from tests.sequence_models import HEADS, SIZE, Alone, listener
from tests.waiting import until

pytestmark = pytest.mark.cluster
CACHES = ("past_key_values.0.encoder.key", "past_key_values.0.encoder.value")
EMPTY = {f"past_key_values.0.{kind}": np.zeros((1, HEADS, 0, SIZE), np.float32) for kind in ("key", "value")}
STEPS = 5


def heard(random):
    return {name: random.standard_normal((1, HEADS, 7, SIZE)).astype(np.float32) for name in CACHES}


def words(random, step):
    return {"input_ids": random.integers(0, 50, (1, 5 if step == 0 else 1))}


def assert_answers(sequence, alone, feed, lasting):
    np.testing.assert_allclose(sequence.run(None, feed | lasting)[0], alone.run(feed)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("planner", ["auto", "tensor-parallel"])
def test_sequences_go_on_with_what_their_first_requests_had(three, planner):
    session = bbgrap.InferenceSession(listener(), cluster=three, state="auto", planner=planner)
    assert {name: output for name, output in session.options.state if name == output} == {name: name for name in CACHES}
    random, sequences = np.random.default_rng(0), [session.sequence() for _ in range(3)]
    lasting = [heard(random) for _ in sequences]
    alone = [Alone(listener(), dict(session.options.state), EMPTY | had) for had in lasting]
    for step in range(STEPS):
        for number, sequence in enumerate(sequences):
            # Who gives them again, as onnxruntime wants it, may do so.
            assert_answers(sequence, alone[number], words(random, step), lasting[number] if step in (0, number) else {})
    assert planner == "auto" or len(session.plan.report["nodes_used"]) == 3
    with sequences[0].fork() as other:
        feed = words(random, 1)
        np.testing.assert_array_equal(other.run(None, feed)[0], sequences[0].run(None, feed)[0])
        with pytest.raises(InputError, match=r"'past_key_values.0.encoder.\w+' of sequence \d+: expected what its first request had"):
            other.run(None, feed | lasting[1])
    state = sequences[1].state()
    for name, array in lasting[1].items():
        np.testing.assert_array_equal(state[name], array)
    sequences[2].reset(state)
    with pytest.raises(InputError, match="its first request had"):
        sequences[2].run(None, words(random, 1) | lasting[0])
    feed = words(random, 1)
    np.testing.assert_allclose(sequences[2].run(None, feed)[0], alone[1].run(feed)[0], rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=r"expected .*'past_key_values.0.encoder.key'"):
        session.sequence().run(None, feed)


def test_of_a_merged_decoder_stays_what_its_first_request_made(three):
    """Its later requests put out fillers; a state that was read is one to begin with in any of its branches."""
    model = listener(merged=True)
    session = bbgrap.InferenceSession(model, cluster=three, state="auto")
    pairs = dict(session.options.state)
    assert [name for name in CACHES if pairs[name] == name.replace("past_key_values", "present")] == list(CACHES)
    random = np.random.default_rng(1)
    sound = {"encoder_hidden_states": random.standard_normal((1, HEADS, 7, SIZE)).astype(np.float32)}
    nothing = {name: np.zeros((1, HEADS, 0, SIZE), np.float32) for name in CACHES}
    alone = Alone(model, pairs, EMPTY | nothing | sound)
    with session.sequence() as sequence:
        for step in range(STEPS):
            feed = words(random, step) | {"use_cache_branch": np.array([step > 0])}
            assert_answers(sequence, alone, feed, {} if step else sound)
            alone.keep(CACHES)
        state = sequence.state()
    for name, array in alone.state.items():
        np.testing.assert_allclose(state[name], array, rtol=1e-6)
    until(lambda: "only a sequence's first request makes 'present.0.encoder.key'" in session.plan.report.get("why_not", ""))
    with session.sequence(state) as other:
        for _ in range(2):
            assert_answers(other, alone, words(random, 1) | {"use_cache_branch": np.array([True])}, {})


@pytest.mark.faults
@pytest.mark.parametrize("merged", [False, True])
def test_they_outlive_the_agent_that_had_them(tmp_path_factory, merged):
    with known_cluster(2, tmp_path_factory.mktemp("weights"), pin=False) as cluster:
        session = bbgrap.InferenceSession(listener(merged=merged), cluster=cluster, state="auto")
        random = np.random.default_rng(2)
        made, sound = heard(random), random.standard_normal((1, HEADS, 7, SIZE)).astype(np.float32)
        lasting = {"encoder_hidden_states": sound} if merged else made
        began = EMPTY | lasting | {name: np.zeros((1, HEADS, 0, SIZE), np.float32) for name in CACHES if merged}
        alone = Alone(listener(merged=merged), dict(session.options.state), began)
        with session.sequence() as sequence:
            for step in range(STEPS):
                branch = {"use_cache_branch": np.array([step > 0])} if merged else {}
                assert_answers(sequence, alone, words(random, step) | branch, {} if step else lasting)
                alone.keep(CACHES)
                if step == 2:
                    cluster.kill(session.plan.report["standby"][0])
