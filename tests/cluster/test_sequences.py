"""Sequences on real processes: what plain onnxruntime answers with its state in memory, whoever is lost meanwhile."""

import numpy as np
import pytest

import bbgrap
from bbgrap.errors import PlanError, StateLostError, UsageError
from tests.known_agents import known_cluster
from tests.sequence_models import HEADS, SIZE, WIDTH, Alone, begun, bfloat16_sum, counter, decoder, found_places, lstm
from tests.waiting import until

pytestmark = pytest.mark.cluster
MANY, STEPS = 8, 6


def words(random, step):
    return {"input_ids": random.integers(0, 50, (1, 5 if step == 0 else 1))}


def sound(random, step):
    return {"input": random.standard_normal((4 - step % 2, 1, WIDTH)).astype(np.float32)}


def picture(random, step):
    return {"x": random.standard_normal((1, 3, 16, 16)).astype(np.float32)}


EMPTY = {f"past_key_values.0.{kind}": np.zeros((1, HEADS, 0, SIZE), np.float32) for kind in ("key", "value")}
CASES = {
    "decoder": (decoder, words, EMPTY),
    "lstm": (lstm, sound, {name: np.zeros((1, 1, WIDTH), np.float32) for name in "hc"}),
    "counter": (counter, picture, {"total": np.zeros((1, 4, 16, 16), np.float32)}),
}


def interleaved(session, model, feeds, state, meanwhile=lambda step: None):
    """Run sequences in turns, and compare each answer with that of plain onnxruntime."""
    alone = [Alone(model, dict(session.options.state), state) for _ in range(MANY)]
    sequences = [session.sequence() for _ in range(MANY)]
    random = np.random.default_rng(0)
    for step in range(STEPS):
        meanwhile(step)
        for sequence, other in zip(sequences, alone, strict=True):
            feed = feeds(random, step)
            for got, want in zip(sequence.run(None, feed), other.run(feed), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for sequence in sequences:
        sequence.close()


@pytest.mark.parametrize("name", ["lstm", "counter"])
def test_interleaved_sequences_answer_as_each_does_alone(three, name):
    model, feeds, state = CASES[name]
    session = bbgrap.InferenceSession(model(), cluster=three, state="auto")
    interleaved(session, model(), feeds, state)


@pytest.mark.broad
@pytest.mark.parametrize(("name", "planner"), [("counter", "bbgrap"), ("decoder", "tensor-parallel"), ("counter", "auto")])
def test_a_state_that_the_file_says_is_what_sequences_begin_with(three, name, planner):
    """It is a weight that a caller may override."""
    model, feeds, state = CASES[name]
    random = np.random.default_rng(2)
    lengths = {key: [size or 2 for size in array.shape] for key, array in state.items()}
    said = begun(model(), **{key: random.standard_normal(shape).astype(np.float32) for key, shape in lengths.items()})
    session = bbgrap.InferenceSession(said, cluster=three, state="auto", planner=planner)
    interleaved(session, said, feeds, {})
    assert planner == "auto" or session.plan.report["planner"] == planner
    with session.sequence(state) as sequence:
        feed = feeds(random, 0)
        np.testing.assert_allclose(sequence.run(None, feed)[0], Alone(said, {}, state).run(feed)[0], rtol=1e-5, atol=1e-5)


def test_a_cache_that_grows_plans_nothing_and_deploys_nothing(tmp_path):
    """On agents of its own: what others have loaded leaves no room for both copies of the standby, and is in the log."""
    with known_cluster(3, tmp_path, pin=False) as cluster:
        session = bbgrap.InferenceSession(decoder(), cluster=cluster, state="auto", planner="bbgrap", split="channels")
        before = []

        def loaded():
            lines = cluster.log("coordinator", 10_000).splitlines()
            return [line for line in lines if "is ready on" in line or "no plan" in line or "sends weights" in line]

        def count(step):
            if step == 1:
                until(lambda: len(session.plan.report["standby"]) == 2)
                before.extend(loaded())

        interleaved(session, decoder(), words, EMPTY, count)
        assert len(session.plan.report["nodes_used"]) == 3
        assert before
        assert loaded() == before


def test_a_request_of_another_length_takes_its_sequence_to_the_standby(three):
    session = bbgrap.InferenceSession(decoder(), cluster=three, state="auto", planner="bbgrap", split="channels")
    alone = Alone(decoder(), dict(session.options.state), EMPTY)
    random = np.random.default_rng(2)
    with session.sequence() as sequence:
        for count in (5, 1, 1, 3, 1, 2):
            feed = {"input_ids": random.integers(0, 50, (1, count))}
            np.testing.assert_allclose(sequence.run(None, feed)[0], alone.run(feed)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.broad
def test_a_plan_over_all_agents_leaves_state_where_it_is_made(three):
    session = bbgrap.InferenceSession(counter(), cluster=three, state="auto", planner="bbgrap")
    interleaved(session, counter(), picture, CASES["counter"][2])
    assert session.plan.report["serving"] == "bbgrap"
    assert len(session.plan.report["nodes_used"]) == 3


def test_a_state_that_cannot_be_planned_is_refused_as_often_as_a_plan_is_waited_for_and_else_stays_whole(three):
    waiting = bbgrap.InferenceSession(found_places(), cluster=three, state="auto", planner="bbgrap")
    with waiting.sequence() as sequence:
        for _ in range(2):
            with pytest.raises(PlanError, match="only a run tells its shape"):
                sequence.run(None, {"x": np.ones(6, np.float32)})
    session = bbgrap.InferenceSession(found_places(), cluster=three, state="auto", planner="bbgrap", wait=False)
    alone = Alone(found_places(), dict(session.options.state), {"places": np.zeros((1, 0), np.int64)})
    with session.sequence() as sequence:
        for step in range(3):
            feed = {"x": (np.arange(6) % (step + 2)).astype(np.float32)}
            np.testing.assert_array_equal(sequence.run(None, feed)[0], alone.run(feed)[0])
    assert "only a run tells its shape" in session.plan.report["why_not"]


def test_a_state_of_numbers_that_numpy_lacks(three):
    session = bbgrap.InferenceSession(bfloat16_sum(), cluster=three, state="auto")
    feed = {"x": np.full(4, 1.5, np.float32)}
    with session.sequence() as sequence:
        assert [sequence.run(None, feed)[0][0] for _ in range(3)] == [1.5, 3, 4.5]
        state = sequence.state()
        assert (state["total"].dtype.name, state["total"][0]) == ("bfloat16", 4.5)
        sequence.reset(state)
        assert sequence.run(None, feed)[0][0] == 6


def test_forks_and_resets(three):
    session = bbgrap.InferenceSession(decoder(), cluster=three, state="auto")
    alone = Alone(decoder(), dict(session.options.state), EMPTY)
    random = np.random.default_rng(1)
    with session.sequence() as sequence:
        feeds = [words(random, step) for step in range(4)]
        for feed in feeds[:3]:
            want = alone.run(feed)
            np.testing.assert_array_equal(sequence.run(None, feed)[0], want[0])
        kept = alone.state
        with sequence.fork() as other:
            answers = [each.run(["logits"], feeds[3])[0] for each in (sequence, other, sequence)]
        np.testing.assert_array_equal(answers[0], answers[1])
        np.testing.assert_array_equal(answers[0], alone.run(feeds[3])[0])
        np.testing.assert_array_equal(answers[2], alone.run(feeds[3])[0])
        sequence.reset(kept)
        np.testing.assert_array_equal(sequence.run(None, feeds[3])[0], answers[0])


@pytest.mark.parametrize(("name", "options"), [("decoder", {}), ("lstm", {}), ("counter", {"planner": "bbgrap"})])
def test_a_state_is_read_and_others_begin_with_it(three, name, options):
    """That of a plan over all agents, too: its sequence goes to where the model is whole."""
    model, feeds, initial = CASES[name]
    session = bbgrap.InferenceSession(model(), cluster=three, state="auto", **options)
    alone = Alone(model(), dict(session.options.state), initial)
    random = np.random.default_rng(4)
    with session.sequence() as sequence:
        with pytest.raises(UsageError, match="before its first request"):
            sequence.state()
        for step in range(4):
            feed = feeds(random, step)
            want = alone.run(feed)
            np.testing.assert_allclose(sequence.run(None, feed)[0], want[0], rtol=1e-5, atol=1e-5)
            if step:
                state = sequence.state()
                assert state.keys() == alone.state.keys()
                for key, array in alone.state.items():
                    np.testing.assert_allclose(state[key], array, rtol=1e-5, atol=1e-5)
        feed = feeds(random, 1)
        (want,), (got,) = alone.run(feed), sequence.run(None, feed)
        with session.sequence(state) as other:
            for array in (got, other.run(None, feed)[0]):
                np.testing.assert_allclose(array, want, rtol=1e-5, atol=1e-5)


def test_what_has_no_state_or_another_is_refused_in_words(three):
    session = bbgrap.InferenceSession(lstm(), cluster=three, state={"h": "hn", "c": "cn"})
    with pytest.raises(UsageError, match="session has state"):
        session.run(None, sound(np.random.default_rng(0), 0))
    for call in (lambda feed: session.run_recorded(None, feed), session.trace):
        with pytest.raises(UsageError, match=r"session has state: .* s\.run_recorded"):
            call(sound(np.random.default_rng(0), 0) | CASES["lstm"][2])
    with pytest.raises(UsageError, match="has no state"):
        bbgrap.InferenceSession(lstm(), cluster=three).sequence()
    with pytest.raises(UsageError, match="expected an input and an output"):
        bbgrap.InferenceSession(lstm(), cluster=three, state={"h": "nothing"})
    sequence = session.sequence()
    sequence.run(None, sound(np.random.default_rng(0), 0))
    other = sequence.fork()
    sequence.close()
    for call in (lambda: sequence.run(None, sound(np.random.default_rng(0), 1)), sequence.state, sequence.fork):
        with pytest.raises(UsageError, match=r"was closed; reset\(\) begins it again"):
            call()
    sequence.reset()
    sequence.run(None, sound(np.random.default_rng(0), 0))
    other.run(None, sound(np.random.default_rng(0), 1))
    session.connection.tell(bbgrap.protocol.client_messages.EndSequence(other._number))
    with pytest.raises(StateLostError, match="sequence"):
        other.run(None, sound(np.random.default_rng(0), 1))


@pytest.mark.faults
def test_an_agent_killed_in_the_middle_changes_no_answer(tmp_path_factory):
    with known_cluster(3, tmp_path_factory.mktemp("weights"), pin=False) as cluster:
        whole = bbgrap.InferenceSession(decoder(), cluster=cluster, state="auto")
        divided = bbgrap.InferenceSession(counter(), cluster=cluster, state="auto", planner="bbgrap")

        def kill(step):
            if step == 3:
                assert len(divided.plan.report["nodes_used"]) == 3
                cluster.kill(whole.plan.report["standby"][0])

        interleaved(whole, decoder(), words, EMPTY)
        interleaved(divided, counter(), picture, CASES["counter"][2], kill)
        survivors = whole.plan.report["standby"]
        interleaved(whole, decoder(), words, EMPTY, lambda step: cluster.kill(survivors[0]) if step == 3 else None)
        assert len(cluster.connection.nodes()) == 1


@pytest.mark.faults
def test_a_state_that_an_agent_may_not_keep_ends_its_sequence_in_words(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BBGRAP_STATE_MEMORY", "1")
    with known_cluster(1, tmp_path_factory.mktemp("weights"), pin=False) as cluster:
        session = bbgrap.InferenceSession(decoder(), cluster=cluster, state="auto")
        long = {name: np.zeros((1, HEADS, 40_000, SIZE), np.float32) for name in EMPTY}
        feed = words(np.random.default_rng(0), 1)
        with session.sequence(long) as sequence, session.sequence() as other:
            other.run(None, feed)
            sequence.run(None, feed)
            with pytest.raises(StateLostError, match=r"may take 1,048,576 bytes on this agent \(--state-memory\)"):
                sequence.run(None, feed)
            other.run(None, feed)


@pytest.mark.faults
def test_a_coordinator_that_is_started_anew_says_that_a_sequence_is_to_begin_again(tmp_path_factory):
    with known_cluster(1, tmp_path_factory.mktemp("weights"), pin=False) as cluster:
        session = bbgrap.InferenceSession(lstm(), cluster=cluster, state="auto")
        feed = sound(np.random.default_rng(0), 0)
        with session.sequence() as sequence:
            first = sequence.run(None, feed)
            state = sequence.state()
            cluster.kill("coordinator")
            cluster.start_coordinator()
            with pytest.raises(StateLostError, match="begin it again"):
                sequence.run(None, feed)
            sequence.reset()
            np.testing.assert_allclose(sequence.run(None, feed)[0], first[0], rtol=1e-6)
            np.testing.assert_allclose(sequence.state()["h"], state["h"], rtol=1e-6)
