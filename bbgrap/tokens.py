"""How many tokens per second a decoder writes on a cluster, against plain onnxruntime on one node: greedily, in blocks of words, in turns.

    prompt ──► word 1 ──► word 2 ──► ...        the single node: onnxruntime with its cache bound in memory (IOBinding)
                                                every contender: a sequence, whose cache is on the agents

Every contender gets the words that the single node chose, so that all always answer the same question. Laws: a token's time is from the
word to its logits in this process, or to the largest of them (of the single node always to all); rates are of medians, the prompt and
the first word of a block are not among them; the ratio is the median of the ratios word by word; every answer's logits are compared, and
which word is the likeliest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from bbgrap.bench import MachineWatch, ReportLine, bound_to, first_cores, head_of, threads_beside
from bbgrap.engine.sessions import reason_of, session_options
from bbgrap.errors import ModelError, UsageError
from bbgrap.graph import Array, DType
from bbgrap.graph.onnx_read import OnnxModel, read_model
from bbgrap.graph.top_k import top_names
from bbgrap.planners.options import PlanOptions
from bbgrap.session import Connection, InferenceSession
from bbgrap.session.signature import NodeArg, Signature
from bbgrap.session.state_pairs import pairs_of

TOLERANCE = 1e-4
"""Of logits, of the largest: what a sum in another order may differ by."""

WARM_UP = 3
"""Words that are not counted, of a sequence before."""

BLOCK = 16
"""Words that everybody writes in a row. Chosen: so few that what slows the machine slows all."""

FEWEST_WORDS = 1000
"""Prompts are drawn of so many words where a model does not say how many it has."""

_Feed = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model's inputs and outputs as a decoder's.

    `words` [B, S] are the tokens of a request; `masks` [B, P + S] are ones, `places` [B, S] or [3, B, S] count from 0;
    `logits` [B, S, words].
    """

    words: str
    masks: tuple[str, ...]
    places: Mapping[str, tuple[int, ...]]
    """And the axes before those of words."""
    logits: str
    state: Mapping[str, str]
    empty: Mapping[str, Array]
    """The state before the first word."""

    @classmethod
    def of(cls, model: OnnxModel) -> Decoder:
        """Find out by the usual names.

        Raises:
            UsageError: if it is no decoder that is understood.
        """
        signature = replace(Signature.of(model), overridable=())
        state = {name: output for name, output in pairs_of("auto", signature, model.name) if name != output}
        kinds = {arg.name: arg.dtype for arg in signature.inputs if arg.name not in state}
        given = list(kinds)
        made = [arg.name for arg in signature.outputs if arg.name not in state.values()]
        masks = tuple(name for name in given if "mask" in name)
        leading = {arg.name: tuple(size for size in arg.shape[:-2] if isinstance(size, int)) for arg in signature.inputs}
        places = {name: leading[name] for name in given if "position" in name}
        words = [name for name in given if name not in (*masks, *places)]
        logits = [name for name in made if "logits" in name] or made
        if len(words) != 1 or len(logits) != 1 or kinds[words[0]] is not DType.INT64:
            expected = "one input of words (int64) besides masks and positions, and one output 'logits' besides the state"
            raise UsageError(f"tokens: expected a decoder with {expected}; got inputs {', '.join(given)}, outputs {', '.join(made)}")
        empty = {arg.name: _empty(arg, signature.windows) for arg in signature.inputs if arg.name in state}
        return cls(words[0], masks, places, logits[0], state, empty)

    def feed(self, words: Array, total: int) -> _Feed:
        """Return the inputs of a request whose last word is the `total`-th."""
        count = words.shape[1]
        found = {self.words: words} | dict.fromkeys(self.masks, np.ones((1, total), np.int64))
        places = np.arange(total - count, total, dtype=np.int64)
        return found | {name: np.broadcast_to(places, (*leading, 1, count)).copy() for name, leading in self.places.items()}


def _empty(arg: NodeArg, windows: Mapping[str, int]) -> Array:
    """Return a state of one sequence and no word; a cache that keeps the last ones only has room for these."""
    free = [windows.get(str(size), int(axis == 0)) for axis, size in enumerate(arg.shape)]
    return np.zeros([size if isinstance(size, int) else other for size, other in zip(arg.shape, free, strict=True)], arg.dtype.numpy)


class PlainDecoder:
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
        self._total = 0
        self.times: list[float] = []
        self.latest_s = 0.0

    def turn(self, feed: _Feed, *, counted: bool) -> Array:
        """Return the logits of the last word [words].

        Raises:
            ModelError: if onnxruntime does not take these words, as beyond the places that the model has.
        """
        with bound_to(self.cores):
            start = time.perf_counter()
            binding = self._session.io_binding()
            for name, array in feed.items():
                binding.bind_cpu_input(name, array)
            for name, value in self._state.items():
                binding.bind_ortvalue_input(name, value)
            for name in (self.decoder.logits, *self.decoder.state.values()):
                binding.bind_output(name, "cpu")
            try:
                self._session.run_with_iobinding(binding)
            except Exception as error:  # onnxruntime's have no common base
                what = f"plain onnxruntime takes no {feed[self.decoder.words].shape[1]} words after {self._total}"
                raise ModelError(f"tokens: {what}: {reason_of(error)}; if the model has no places for more, ask for fewer words") from None
            self._total += feed[self.decoder.words].shape[1]
            logits, *state = binding.get_outputs()
            self._state = dict(zip(self.decoder.state, state, strict=True))
            last: Array = logits.numpy().reshape(-1, logits.shape()[-1])[-1]
            self.latest_s = time.perf_counter() - start
        self.times += [self.latest_s] * counted
        return last


class _Contender:
    """A sequence on the cluster, and how its answers compare."""

    def __init__(self, model: Path, cluster: Connection, options: PlanOptions, decoder: Decoder, top: int) -> None:
        wanted = {decoder.logits: top} if top else None
        self.session = InferenceSession(model, cluster=cluster, options=options, state=decoder.state, top=wanted)
        self.decoder = decoder
        self.asked = top_names(decoder.logits) if top else (decoder.logits,)
        self.begin()

    def prepare(self) -> None:
        """Wait for the plan."""
        feed = self.decoder.feed(np.zeros((1, 1), np.int64), 1)
        self.plan = self.session.prepare({name: array.shape for name, array in (feed | dict(self.decoder.empty)).items()})

    def begin(self) -> None:
        """Begin a sequence, and count from here on."""
        self.sequence = self.session.sequence()
        self.times: list[float] = []
        self.latest_s = self.worst = 0.0
        self.elsewhere = 0
        self.differs = False

    def turn(self, feed: _Feed, expected: Array, *, counted: bool) -> None:
        """Run a request, and compare its last word."""
        start = time.perf_counter()
        answer = self.sequence.run(self.asked, feed)
        self.latest_s = time.perf_counter() - start
        self.times += [self.latest_s] * counted
        self.elsewhere += self.sequence.epoch != self.plan.epoch
        self._compare(*(array.reshape(-1, array.shape[-1])[-1] for array in answer), expected=expected)

    def _compare(self, values: Array, places: Array | None = None, *, expected: Array) -> None:
        """Compare the logits of a word, or the largest of them and whose they are."""
        largest = np.argsort(-expected, kind="stable")[: values.size]
        found = np.arange(values.size) if places is None else places
        wanted = [expected[found]] if places is None else [expected[found], expected[largest]]
        self.worst = max(self.worst, *(float(np.abs(values - want).max() / np.abs(expected).max()) for want in wanted))
        self.differs |= bool(found[values.argmax()] != largest[0])

    def result(self, alone: Sequence[float], prompt_s: float) -> dict[str, Any]:
        """Return the entry of `results`."""
        report = self.session.plan.report
        traffic = report.get("optimized", {})
        return {
            "planner": self.session.options.planner,
            "top": sum(count for _, count in self.session.options.top),
            "tokens_per_s": 1 / statistics.median(self.times),
            "ratio": statistics.median(one / mine for one, mine in zip(alone, self.times, strict=True)),
            "prompt_ms": 1e3 * prompt_s,
            "elsewhere": self.elsewhere,
            "same_tokens": not self.differs,
            "max_rel_err": self.worst,
            "verified": not self.differs and self.worst <= TOLERANCE,
            "bytes_between_nodes": traffic.get("bytes"),
            "messages_between_nodes": traffic.get("transfers"),
            "bytes_answered": traffic.get("gather_bytes"),
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
    top: int = 1,
    seed: int = 0,
    threads: int | None = None,
    name: str = "",
    report: ReportLine = lambda _: None,
) -> dict[str, Any]:
    """Measure how fast a decoder writes.

    Args:
        model: The file, with a cache as inputs and outputs.
        cluster: Where the agents are.
        contenders: One sequence each.
        tokens: So many words are written, and timed, after the first one.
        prompt: Words before them, drawn at random.
        top: So many largest logits are asked for; 0: all.
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
    count = threads_beside(agents, threads)
    report("bringing the model")
    decoder = Decoder.of(read_model(model))
    others = [_Contender(model, cluster, options, decoder, top) for options in contenders]
    alone = PlainDecoder(model, decoder, count)
    report("planning and deploying")
    for other in others:
        other.prepare()
    random = np.random.default_rng(seed).integers(0, alone.vocabulary, (1, prompt))
    _block(alone, others, random, prompt, WARM_UP, 0)
    alone.begin()
    for other in others:
        other.begin()
    watch = MachineWatch()
    words = _block(alone, others, random, prompt, 1, 0)
    prompts = [alone.latest_s, *(other.latest_s for other in others)]
    for number, first in enumerate(range(0, tokens, BLOCK)):
        words = _block(alone, others, words, prompt + 1 + first, min(BLOCK, tokens - first), number)
        report(f"word {first} of {tokens}")
    return {
        **head_of(name or model.stem, agents),
        "prompt": prompt,
        "tokens": tokens,
        "single_node": {"threads": count, "tokens_per_s": 1 / statistics.median(alone.times), "prompt_ms": 1e3 * prompts[0]},
        "machine": watch.machine(),
        "results": [other.result(alone.times, took) for other, took in zip(others, prompts[1:], strict=True)],
    }


def _block(alone: PlainDecoder, others: Sequence[_Contender], words: Array, total: int, count: int, number: int) -> Array:
    """Let the single node write some words, then every contender the same, each time another one first; return the word after them.

    Whoever is not in turn sleeps, on cores and with caches that others use, so the first word of a block is not counted.
    """
    asked = []
    for place in range(count):
        feed = alone.decoder.feed(words, total + place)
        logits = alone.turn(feed, counted=place > 0)
        asked.append((feed, logits))
        words = np.array([[logits.argmax()]], np.int64)
    for turn in range(len(others)):
        for place, (feed, logits) in enumerate(asked):
            others[(turn + number) % len(others)].turn(feed, logits, counted=place > 0)
    return words
