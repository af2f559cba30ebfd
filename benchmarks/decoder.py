"""How many words per second would a decoder write on machines of their own? `python -m benchmarks.decoder` (a minute a model).

Cores of one machine share its memory, which a decoder reads all the time. So every machine's segments are run here one machine after the
other, word by word in turns with plain onnxruntime (its cache bound in memory); then the clock puts them together, with links of 1 Gbit/s:

    seconds a word = clock(measured segments, messages as predicted)

Seconds are those of the processor: other programs on a busy machine take part only by what they leave in its caches.

What real processes take on this machine, `bbgrap bench --tokens` measures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bbgrap import zoo
from bbgrap.cluster import Cluster
from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.predict import Predictor
from bbgrap.compiler.simulate import simulate_step
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.engine.growing_state import prepare_growing
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.reload import ReloadedModel
from bbgrap.graph import Array, Graph
from bbgrap.graph.onnx_read import read_model
from bbgrap.graph.state import with_state
from bbgrap.graph.top_k import blocks_for, with_top
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan
from bbgrap.tokens import Decoder, PlainDecoder

PROMPT, WORDS = 32, 40


class Machines:
    """A decoder over some machines, each of whose segments is timed."""

    def __init__(self, model: ReloadedModel, path: Path, nodes: int, decoder: Decoder, top: Mapping[str, int]) -> None:
        blocks = blocks_for(nodes)
        shapes = dict.fromkeys(model.declared, (1, 1)) | {given: array.shape for given, array in decoder.empty.items()}
        self.first = with_state(with_top(model.graph(path, shapes), top, blocks), decoder.state)

        def load(sizes: Mapping[str, tuple[int, ...]], axes: Mapping[str, frozenset[int]]) -> Graph:
            return with_top(model.open_graph(sizes, axes), top, blocks)

        options = PlanOptions("tensor-parallel")
        planned, self.plan = prepare_growing(self.first, load, model.declared, Cluster.even(nodes), options)
        self.traffic = planned.report["optimized"]
        self.weights = [device.weight_bytes for device in planned.artifacts.devices]
        self.times: list[dict[int, list[float]]] = [{} for _ in range(nodes)]
        self._begins, self._further = (_half(planned, further=further) for further in (False, True))
        kernels = local_kernels(self._further)
        self._kernels = [self._timed(device, kernel) for device, kernel in enumerate(kernels)]
        self._state: Sequence[Sequence[Array]] = []

    def _timed(
        self, device: int, kernel: Callable[[int, Sequence[Array]], Sequence[Array]]
    ) -> Callable[[int, Sequence[Array]], Sequence[Array]]:
        def run(segment: int, inputs: Sequence[Array]) -> Sequence[Array]:
            start = time.thread_time()
            made = kernel(segment, inputs)
            self.times[device].setdefault(segment, []).append(time.thread_time() - start)
            return made

        return run

    def begin(self, feed: Mapping[str, Array]) -> None:
        """Take the prompt, untimed."""
        nothing: list[Sequence[Array]] = [()] * len(self._kernels)
        _, self._state = simulate_step(self._begins, [feed[name] for name in self.first.inputs], nothing, self._kernels)
        for times in self.times:
            times.clear()

    def word(self, feed: Mapping[str, Array]) -> None:
        """Take a word."""
        _, self._state = simulate_step(self._further, [feed[name] for name in self.first.given], self._state, self._kernels)

    def seconds(self) -> tuple[float, float]:
        """Return the seconds of a word on these machines, and those of the busiest one's segments."""
        medians = [{segment: statistics.median(of) for segment, of in times.items()} for times in self.times]
        return timed(self.plan, medians), max(sum(of.values()) for of in medians)


def timed(plan: Plan, measured: Sequence[Mapping[int, float]]) -> float:
    """Return the seconds of a further request whose segments take what was measured, by number."""
    program = compile_plan(plan, all_descriptions(plan.graph), open_sizes=True).optimized
    return Predictor(plan.cluster).timeline(program, measured).total_s


def _half(planned: PlannedVariant, *, further: bool) -> Artifacts:
    """Return one of the two programs of a deployment."""
    made = planned.artifacts
    host = made.further if further else made.host
    assert host is not None, "the model has state"
    schedules = [(device.further if further else device.schedule, device.segments) for device in made.devices]
    devices = tuple(DeviceArtifacts(schedule, segments) for schedule, segments in schedules if schedule is not None)
    return Artifacts(devices, host, made.weights)


def measure(name: str, counts: Sequence[int], top: int) -> list[dict[str, Any]]:
    """Return a row for every number of machines, of which so many largest logits are asked for (0: all)."""
    path = zoo.materialize(name)
    model, decoder = ReloadedModel(path), Decoder.of(read_model(path))
    alone = PlainDecoder(path, decoder, 1)
    wanted = {decoder.logits: top} if top else {}
    machines = [Machines(model, path, nodes, decoder, wanted) for nodes in counts]
    singles: list[float] = []
    for word in range(-1, WORDS):
        feed = decoder.feed(np.arange(PROMPT)[None] if word < 0 else np.array([[word]]), PROMPT + word + 1)
        start = time.thread_time()
        alone.turn(feed, counted=False)
        if word >= 0:
            singles.append(time.thread_time() - start)
        for each in machines:
            if word < 0:
                each.begin(feed | dict(decoder.empty))
            else:
                each.word(feed)
    single = statistics.median(singles)
    rows = []
    for nodes, each in zip(counts, machines, strict=True):
        seconds, busiest = each.seconds()
        rows.append(
            {
                "model": name,
                "machines": nodes,
                "single_ms": 1e3 * single,
                "ms": 1e3 * seconds,
                "segments_ms": 1e3 * busiest,
                "ratio": single / seconds,
                "bytes": each.traffic["bytes"],
                "answered": each.traffic["gather_bytes"],
                "weights": max(each.weights) / sum(w.type.nbytes for w in each.first.weights.values()),
            }
        )
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="gpt2")
    parser.add_argument("--machines", default="2,4")
    parser.add_argument("--top", type=int, default=1, help="so many largest logits are asked for; 0: all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    machines = [int(count) for count in options.machines.split(",")]
    rows = [row for name in options.models.split(",") for row in measure(name, machines, options.top)]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    columns = ("", "machines", "one core, ms a word", "ms a word", "segments of the busiest, ms", "ratio", "bytes between", "answered")
    print(f"| {' | '.join((*columns, 'weights a machine'))} |")
    print("|---" * 9 + "|")
    for row in rows:
        numbers = [format(row[key], ".1f") for key in ("single_ms", "ms", "segments_ms")]
        counts = [f"{row['ratio']:.2f}", f"{row['bytes']:,}", f"{row['answered']:,}", f"{row['weights']:.0%}"]
        print(f"| {' | '.join((row['model'], str(row['machines']), *numbers, *counts))} |")


if __name__ == "__main__":
    main()
