"""How many tokens per second a decoder writes on a cluster, against plain onnxruntime on one node: greedily, word by word, in turns.

    prompt ──► word 1 ──► word 2 ──► ...        the single node: onnxruntime with its cache bound in memory (IOBinding)
                                                every contender: a sequence, whose cache is on the agents

Every turn everybody gets the word that the single node chose, so that all always answer the same question. Laws: a token's time is from
the word to its logits in this process; rates are of medians, the prompt is not among them; the ratio is the median of the ratios within
a turn; every answer's logits are compared, and which word is the likeliest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from bbgrap.bench import MachineWatch, Report, bound_to, first_cores
from bbgrap.engine.sessions import session_options, usable_cores
from bbgrap.errors import UsageError
from bbgrap.graph import Array
from bbgrap.planners.options import PlanOptions
from bbgrap.session import Connection, InferenceSession
from bbgrap.session.signature import NodeArg

TOLERANCE = 1e-4
"""Of logits, of the largest: what a sum in another order may differ by."""

WARM_UP = 3
"""Words that are not counted, of a sequence before."""

FEWEST_WORDS = 1000
"""Prompts are drawn of so many words where a model does not say how many it has."""

_Feed = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model's inputs and outputs as a decoder's.

    `words` [B, S] are the tokens of a request; `masks` [B, P + S] are ones, `places` [B, S] count from 0. `logits` [B, S, words].
    """

    words: str
    masks: tuple[str, ...]
    places: tuple[str, ...]
    logits: str
    state: Mapping[str, str]
    empty: Mapping[str, Array]
    """The state before the first word."""

    @classmethod
    def of(cls, session: InferenceSession) -> Decoder:
        """Find out by the usual names.

        Raises:
            UsageError: if it is no decoder that is understood.
        """
        state = dict(session.options.state)
        given = [arg.name for arg in session.get_inputs() if arg.name not in state]
        made = [arg.name for arg in session.get_outputs() if arg.name not in state.values()]
        masks = tuple(name for name in given if "mask" in name)
        places = tuple(name for name in given if "position" in name)
        words = [name for name in given if name not in (*masks, *places)]
        logits = [name for name in made if "logits" in name] or made
        if len(words) != 1 or len(logits) != 1:
            expected = "one input of words besides masks and positions, and one output 'logits' besides the state"
            raise UsageError(f"tokens: expected a decoder with {expected}; got inputs {', '.join(given)}, outputs {', '.join(made)}")
        empty = {arg.name: _empty(arg) for arg in session.get_inputs() if arg.name in state}
        return cls(words[0], masks, places, logits[0], state, empty)

    def feed(self, words: Array, total: int) -> _Feed:
        """Return the inputs of a request whose last word is the `total`-th."""
        count = words.shape[1]
        found = {self.words: words} | dict.fromkeys(self.masks, np.ones((1, total), np.int64))
        return found | dict.fromkeys(self.places, np.arange(total - count, total, dtype=np.int64)[None])


def _empty(arg: NodeArg) -> Array:
    """Return a state of one sequence and no word."""
    sizes = [size if isinstance(size, int) else 1 if axis == 0 else 0 for axis, size in enumerate(arg.shape)]
    return np.zeros(sizes, arg.dtype.numpy)


class _Alone:
    """Plain onnxruntime with the cache as values of its own, never copied."""

    def __init__(self, model: Path, decoder: Decoder, threads: int) -> None:
        self.cores, self.decoder = first_cores(threads), decoder
        with bound_to(self.cores):
            self._session = ort.InferenceSession(str(model), session_options(threads=threads))
        size = next(arg.shape[-1] for arg in self._session.get_outputs() if arg.name == decoder.logits)
        self.vocabulary = size if isinstance(size, int) else FEWEST_WORDS
        self.begin()

    def begin(self) -> None:
        """Begin with an empty cache."""
        self._state = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self.decoder.empty.items()}

    def turn(self, feed: _Feed) -> tuple[Array, float]:
        """Return the logits of the last word [words], and the seconds this took."""
        with bound_to(self.cores):
            start = time.perf_counter()
            binding = self._session.io_binding()
            for name, array in feed.items():
                binding.bind_cpu_input(name, array)
            for name, value in self._state.items():
                binding.bind_ortvalue_input(name, value)
            for name in (self.decoder.logits, *self.decoder.state.values()):
                binding.bind_output(name, "cpu")
            self._session.run_with_iobinding(binding)
            logits, *state = binding.get_outputs()
            self._state = dict(zip(self.decoder.state, state, strict=True))
            return logits.numpy().reshape(-1, logits.shape()[-1])[-1], time.perf_counter() - start


class _Contender:
    """A sequence on the cluster, and how its answers compare."""

    def __init__(self, model: Path, cluster: Connection, options: PlanOptions) -> None:
        self.session = InferenceSession(model, cluster=cluster, options=options, state="auto")
        self.decoder = Decoder.of(self.session)
        self.begin()

    def prepare(self) -> None:
        """Wait for the plan."""
        feed = self.decoder.feed(np.zeros((1, 1), np.int64), 1)
        self.session.prepare({name: array.shape for name, array in (feed | dict(self.decoder.empty)).items()})

    def begin(self) -> None:
        """Begin a sequence, and count from here on."""
        self.sequence = self.session.sequence()
        self.times: list[float] = []
        self.worst, self.same = 0.0, 0

    def turn(self, feed: _Feed, expected: Array) -> None:
        """Run a request, and compare its last word."""
        start = time.perf_counter()
        (logits,) = self.sequence.run([self.decoder.logits], feed)
        self.times.append(time.perf_counter() - start)
        last = logits.reshape(-1, logits.shape[-1])[-1]
        self.worst = max(self.worst, float(np.abs(last - expected).max() / np.abs(expected).max()))
        self.same += int(last.argmax() == expected.argmax())

    def result(self, alone: Sequence[float]) -> dict[str, Any]:
        """Return the entry of `results`."""
        report, turns = self.session.plan.report, len(alone)
        traffic = report.get("optimized", {})
        return {
            "planner": self.session.options.planner,
            "tokens_per_s": 1 / statistics.median(self.times[1:]),
            "ratio": statistics.median(one / mine for one, mine in zip(alone[1:], self.times[1:], strict=True)),
            "prompt_ms": 1e3 * self.times[0],
            "same_tokens": self.same == turns,
            "max_rel_err": self.worst,
            "verified": self.same == turns and self.worst <= TOLERANCE,
            "bytes_between_nodes": traffic.get("bytes"),
            "messages_between_nodes": traffic.get("transfers"),
            "weight_bytes": report.get("weight_bytes"),
            "nodes_used": report.get("nodes_used"),
            "changed": report.get("changed"),
            "why_not": report.get("why_not"),
        }


def measure_tokens(
    model: Path,
    cluster: Connection,
    contenders: Sequence[PlanOptions],
    *,
    tokens: int,
    prompt: int,
    seed: int = 0,
    threads: int | None = None,
    name: str = "",
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Measure how fast a decoder writes.

    Args:
        model: The file, with a cache as inputs and outputs.
        cluster: Where the agents are.
        contenders: One sequence each.
        tokens: So many words are written, and timed, after the first one.
        prompt: Words before them, drawn at random.
        seed: Of the prompt.
        threads: Of the single node; None: as many as the cluster's largest agent has.
        name: What to call the model; default: as its file.
        report: Told how far it is.

    Returns:
        The object of `bench --tokens --json`.

    Raises:
        BbgrapError: if the model is no decoder, or the cluster fails.
    """
    agents = cluster.nodes()
    count = min(threads or max((agent.threads for agent in agents), default=1), usable_cores())
    report("bringing the model")
    others = [_Contender(model, cluster, options) for options in contenders]
    decoder = others[0].decoder
    alone = _Alone(model, decoder, count)
    report("planning and deploying")
    for other in others:
        other.prepare()
    random = np.random.default_rng(seed).integers(0, alone.vocabulary, (1, prompt))
    for word in range(WARM_UP):
        _turn(alone, others, decoder.feed(random[:, word : word + 1], word + 1), word)
    alone.begin()
    for other in others:
        other.begin()
    watch = MachineWatch()
    words, total, times = random, prompt, list[float]()
    for turn in range(tokens + 1):
        logits, took = _turn(alone, others, decoder.feed(words, total), turn)
        times.append(took)
        words, total = np.array([[logits.argmax()]], np.int64), total + 1
        report(f"word {turn} of {tokens}")
    return {
        "schema": 1,
        "model": name or model.stem,
        "prompt": prompt,
        "tokens": tokens,
        "agents": [{key: value for key, value in asdict(agent).items() if key != "profile"} for agent in agents],
        "single_node": {"threads": count, "tokens_per_s": 1 / statistics.median(times[1:]), "prompt_ms": 1e3 * times[0]},
        "machine": watch.machine(),
        "results": [other.result(times) for other in others],
    }


def _turn(alone: _Alone, others: Sequence[_Contender], feed: _Feed, turn: int) -> tuple[Array, float]:
    """Give everybody a word, every time another contender first; return the single node's logits of the last word, and its seconds."""
    logits, took = alone.turn(feed)
    for number in range(len(others)):
        others[(number + turn) % len(others)].turn(feed, logits)
    return logits, took
