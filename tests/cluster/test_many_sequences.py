"""64 sequences at once on three agents: each writes the words that it writes alone on plain onnxruntime, whoever is lost meanwhile."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

import bbgrap
from bbgrap import zoo
from tests.known_agents import known_cluster
from tests.sequence_models import Alone, decoder

pytestmark = pytest.mark.cluster

MANY, PROMPT = 64, 4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return zoo.materialize("tiny-decoder", tmp_path_factory.mktemp("decoder")).read_bytes()


class Writer:
    """A prompt, and the words that a model writes after it; `run` is a sequence's."""

    def __init__(self, run, prompt, *, has_mask):
        self.run, self.words, self.before, self.has_mask = run, list(prompt), 0, has_mask

    def step(self):
        """Let the most likely word be the next one."""
        words, after = self.words[self.before :], len(self.words)
        feed = {"input_ids": np.array([words])}
        if self.has_mask:
            feed |= {"attention_mask": np.ones((1, after), np.int64), "position_ids": np.arange(self.before, after)[None]}
        logits = self.run(None, feed)[0]
        self.before = after
        self.words.append(int(logits[0, -1].argmax()))


def writers_of(session, prompts):
    has_mask = len(session.get_inputs()) > 4
    return [Writer(session.sequence().run, prompt, has_mask=has_mask) for prompt in prompts]


def step_all(pool, writers, meanwhile=lambda: None):
    """Let all of them write a word, at once."""
    running = [pool.submit(writer.step) for writer in writers]
    meanwhile()
    for future in running:
        future.result()


def alone(session, model, prompts, steps):
    """What plain onnxruntime writes, with the cache of each in memory."""
    inputs = {arg.name: arg.shape for arg in session.get_inputs()}
    pairs = dict(session.options.state)
    written = []
    plain = Alone(model, pairs, {})
    for prompt in prompts:
        plain.state = {name: np.zeros((1, inputs[name][1], 0, inputs[name][3]), np.float32) for name in pairs}
        writer = Writer(lambda _, feed: plain.run(feed), prompt, has_mask=len(inputs) > 4)
        for _ in range(steps):
            writer.step()
        written.append(writer.words)
    return written


def prompts_of(seed, words):
    return np.random.default_rng(seed).integers(0, words, (MANY, PROMPT)).tolist()


def test_each_writes_what_it_writes_alone_and_a_kill_changes_no_word(tiny, tmp_path_factory):
    """A model on nodes that have it whole, and one that is divided over all three: 64 sequences of each."""
    with known_cluster(3, tmp_path_factory.mktemp("weights"), pin=False) as cluster, ThreadPoolExecutor(2 * MANY) as pool:
        whole = bbgrap.InferenceSession(tiny, cluster=cluster, state="auto")
        divided = bbgrap.InferenceSession(decoder(), cluster=cluster, state="auto", planner="bbgrap", split="channels")
        cases = [(whole, tiny, prompts_of(1, 1000)), (divided, decoder(), prompts_of(2, 50))]
        writers = [writers_of(session, prompts) for session, _, prompts in cases]
        steps = 6

        def kill():
            assert len(divided.plan.report["nodes_used"]) == 3
            cluster.kill(whole.plan.report["standby"][0])

        for step in range(steps):
            step_all(pool, [*writers[0], *writers[1]], kill if step == 3 else lambda: None)
        told = {model.name: model for model in cluster.connection.status().models}
        assert all(model.sequences == MANY for model in told.values())
        assert all(0 < model.recovered <= model.replayed for model in told.values())
        for (session, model, prompts), mine in zip(cases, writers, strict=True):
            assert [writer.words for writer in mine] == alone(session, model, prompts, steps)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_words_take_no_memory(tiny, tmp_path_factory):
    """Rounds of 64 sequences; it is counted from what the first two rounds took."""
    with known_cluster(3, tmp_path_factory.mktemp("weights"), pin=False) as cluster, ThreadPoolExecutor(MANY) as pool:
        session = bbgrap.InferenceSession(tiny, cluster=cluster, state="auto")
        steps, taken = 40, []
        for number in range(6):
            prompts = prompts_of(number, 1000)
            sequences = [session.sequence() for _ in prompts]
            writers = [Writer(sequence.run, prompt, has_mask=True) for sequence, prompt in zip(sequences, prompts, strict=True)]
            for _ in range(steps):
                step_all(pool, writers)
            for sequence in sequences:
                sequence.close()
            assert [writer.words for writer in writers] == alone(session, tiny, prompts, steps)
            taken.append({name: resident(process.pid) >> 20 for name, process in cluster.processes.items()})
            print(taken[-1])  # noqa: T201 - figures for whoever runs it
        assert MANY * steps * (len(taken) - 2) > 10_000
        for name, start in taken[1].items():
            assert taken[-1][name] - start < 8, (name, taken)


def resident(pid):
    """Bytes of memory of a process and its children."""
    process = psutil.Process(pid)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
