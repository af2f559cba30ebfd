"""64 sequences at once on three agents: each writes the words that it writes alone on plain onnxruntime, whoever is lost meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

import bbgrap
from bbgrap import zoo
from bbgrap.cluster import NodeProfile
from bbgrap.graph.onnx_io import save_graph
from bbgrap.zoo.decoder import DecoderSizes, free_axes
from bbgrap.zoo.decoder import decoder as decoder_of
from tests.known_agents import SPEED, known_cluster
from tests.sequence_models import Alone, decoder

pytestmark = pytest.mark.cluster

MANY, PROMPT = 64, 4
SESSIONS = 48 << 20
"""What onnxruntime's sessions and arenas may take besides what a plan counts, in bytes (seen: 0 to 12 MiB)."""


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


@pytest.mark.faults
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


def anonymous(pid):
    """Bytes of memory of a process and its children that no file backs: mapped weights the kernel takes back by itself."""
    processes = (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
    rollups = (Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in processes)
    return sum(int(line.split()[1]) << 10 for text in rollups for line in text.splitlines() if line.startswith("Anonymous:"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_decoder_of_one_and_a_half_times_a_nodes_memory_writes_on_two(tmp_path):
    """Either agent says that it may take two thirds of the weights, and the memory that it cannot give back is looked at."""
    graph = decoder_of("large", DecoderSizes(12, 768, 12, 12, 16_000, 64))
    save_graph(graph, tmp_path / "large.onnx", free=free_axes(graph))
    model, weights = (tmp_path / "large.onnx").read_bytes(), sum(weight.type.nbytes for weight in graph.weights.values())
    memory = weights * 2 // 3
    with known_cluster(2, tmp_path / "weights", pin=False) as cluster, ThreadPoolExecutor(2) as pool:
        for name in ("agent0", "agent1"):
            cluster.connection.add_profile(NodeProfile(name, work=(SPEED,), memory_bytes=memory))
        before = {name: anonymous(cluster.processes[name].pid) for name in ("agent0", "agent1")}
        session = bbgrap.InferenceSession(model, cluster=cluster, state="auto")
        prompts = prompts_of(5, 1000)[:2]
        writers = writers_of(session, prompts)
        for _ in range(20):
            step_all(pool, writers)
        assert [writer.words for writer in writers] == alone(session, model, prompts, 20)
        assert len(session.plan.report["nodes_used"]) == 2
        assert not session.plan.report["standby"]
        taken = {name: anonymous(cluster.processes[name].pid) - size for name, size in before.items()}
        print({name: f"{size / weights:.2f}" for name, size in taken.items()})  # noqa: T201 - figures for whoever runs it
        assert all(size < memory + SESSIONS for size in taken.values()), (taken, memory)
