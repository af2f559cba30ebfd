"""New input shapes: how soon the first answer and a plan come, what a shape costs in memory, and how many requests of many shapes are done.

    python -m benchmarks.shapes --models resnet50,yolo,reader.onnx
    python -m benchmarks.shapes --models resnet50 --only stream --json

Two agents with a thread each on this machine, the default planner. A model of the zoo gets free sizes of images; a file is one that has
them. Answers are compared with plain onnxruntime's on one thread, in this process.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import psutil
from onnx import numpy_helper

from bbgrap.local import LocalCluster
from bbgrap.session import InferenceSession
from bbgrap.zoo import materialize, names

Shape = tuple[int, ...]

FIRST_FACTOR, FIRST_MORE_S = 1.3, 0.02
"""A first answer is to take at most so many times onnxruntime's first run of the shape, plus so long."""
EARNED = 3
PLAN_S, WATCHED_S = 1.0, 5.0
_POLL_S = 0.02
REQUESTS, SHAPES, AT_ONCE = 2000, 200, 8
ANSWERS_AGREE = 1e-3
"""Of the largest magnitude of an output: plans add in another order, and random weights make large cancellations."""


def freed(name: str, folder: Path) -> Path:
    """Return a file of a zoo model whose images may have any number, height and width."""
    model = onnx.load(materialize(name))
    for axis, symbol in ((0, "N"), (2, "H"), (3, "W")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = symbol
    targets = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for tensor in model.graph.initializer:
        if tensor.name in targets:  # how many boxes there are follows from the image
            sizes = [0 if place == 0 else -1 if size > 255 else size for place, size in enumerate(numpy_helper.to_array(tensor))]
            tensor.CopyFrom(numpy_helper.from_array(np.array(sizes), tensor.name))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


def shapes_of(kind: str, count: int, seed: int = 0) -> list[Shape]:
    """Return different shapes: images of 96 to 640 pixels in batches of 1 to 8, lines of text, or images of whole strides."""
    random = np.random.default_rng(seed)
    found: dict[Shape, None] = {}
    while len(found) < count:
        if kind == "text":
            shape = (int(random.integers(1, 7)), 3, 48, int(random.integers(20, 320)) * 4)
        elif kind == "boxes":
            shape = (1, 3, int(random.integers(3, 21)) * 32, int(random.integers(3, 21)) * 32)
        else:
            batch = int(random.choice([1, 1, 1, 2, 4, 8]))
            most = 640 if batch <= 2 else 256
            shape = (batch, 3, int(random.integers(96, most + 1)), int(random.integers(96, most + 1)))
        found[shape] = None
    return list(found)


class Bench:
    """One model on one cluster, and beside it in onnxruntime."""

    def __init__(self, path: Path, cluster: LocalCluster) -> None:
        """Make both sessions."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.plain = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.cluster = cluster
        self.session = InferenceSession(path, cluster=cluster)
        self.input = self.plain.get_inputs()[0].name
        self.random = np.random.default_rng(1)

    def feed(self, shape: Shape) -> Mapping[str, Any]:
        """Return random inputs."""
        return {self.input: self.random.standard_normal(shape, np.float32)}

    def timed_run(self, session: Any, feed: Mapping[str, Any]) -> tuple[float, list[Any]]:  # noqa: ANN401 - of either kind
        """Run once; returns the seconds and the answer."""
        began = time.perf_counter()
        answer = session.run(None, feed)
        return time.perf_counter() - began, answer

    def warm_up(self, shape: Shape) -> None:
        """Let a plan for one shape serve, and both sessions run."""
        self.session.prepare({self.input: shape})
        for _ in range(5):
            self.timed_run(self.plain, self.feed(shape))
            self.timed_run(self.session, self.feed(shape))

    def firsts(self, shapes: Sequence[Shape]) -> list[dict[str, Any]]:
        """Time the first answer of each shape, here and there, in turns."""
        rows = []
        for number, shape in enumerate(shapes):
            feed = self.feed(shape)
            order = (self.plain, self.session) if number % 2 else (self.session, self.plain)
            (one, a), (two, b) = (self.timed_run(session, feed) for session in order)
            plain_s, ours_s = (one, two) if order[0] is self.plain else (two, one)
            row = {"shape": shape, "plain_ms": 1e3 * plain_s, "ours_ms": 1e3 * ours_s, "off": _off(a, b)}
            rows.append(row | {"holds": ours_s <= FIRST_FACTOR * plain_s + FIRST_MORE_S})
        return rows

    def plans(self, shapes: Sequence[Shape]) -> list[dict[str, Any]]:
        """Let shapes come back, request after request, until a plan serves: seconds from the third one on, and what it is worth."""
        rows = []
        for shape in shapes:
            feed = self.feed(shape)
            standby = [self.timed_run(self.session, feed)[0] for _ in range(EARNED - 1)]
            times: list[float] = []
            done = threading.Event()

            def come_back(feed: Mapping[str, Any] = feed, times: list[float] = times, done: threading.Event = done) -> None:
                while not done.is_set():
                    times.append(self.timed_run(self.session, feed)[0])

            earned, served_s = time.perf_counter(), None
            thread = threading.Thread(target=come_back)
            thread.start()
            while (since := time.perf_counter() - earned) < WATCHED_S and served_s is None:
                time.sleep(_POLL_S)
                report = self.session.plan.report
                served_s = since if report.get("scaled_from") else None
                if served_s is None and report.get("why_not"):
                    break
            done.set()
            thread.join()
            later = [self.timed_run(self.session, feed) for _ in range(5)]
            plain_s, want = self.timed_run(self.plain, feed)
            row = {"shape": shape, "served_s": served_s, "longest_ms": 1e3 * max(times), "standby_ms": 1e3 * min(standby)}
            row |= {"after_ms": 1e3 * median(s for s, _ in later), "plain_ms": 1e3 * plain_s, "off": _off(later[-1][1], want)}
            rows.append(row | {"why": self.session.plan.report.get("why_not", ""), "agent_bytes": self.agent_bytes()})
        return rows

    def stream(self, shapes: Sequence[Shape], requests: int) -> dict[str, Any]:
        """Run requests of these shapes in turns, several at once; returns requests per second here and on one core there.

        There, the first of a shape takes longer than those that come again: both are counted as often as they come here.
        """
        feeds = [self.feed(shape) for shape in shapes]
        work = [feeds[number % len(feeds)] for number in range(requests)]
        began = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answered = sum(1 for _ in pool.map(lambda feed: self.session.run(None, feed), work))
        ours_s = time.perf_counter() - began
        turns = [(self.timed_run(self.plain, feed)[0], self.timed_run(self.plain, feed)[0]) for feed in feeds]
        plain_s = sum(first + (requests / len(feeds) - 1) * again for first, again in turns) / requests
        return {"requests": answered, "per_s": answered / ours_s, "plain_per_s": 1 / plain_s, "times": answered / ours_s * plain_s}

    def agent_bytes(self) -> list[int]:
        """Return the resident bytes of each agent's worker."""
        return [p.memory_info().rss for p in _workers()]


def _workers() -> Iterator[psutil.Process]:
    for process in psutil.Process().children(recursive=True):
        if any("bbgrap_agent.worker" in word for word in process.cmdline()):
            yield process


def _off(a: Sequence[Any], b: Sequence[Any]) -> float:
    """Return how far two answers are apart, as a part of their largest magnitude."""
    return max(
        (float(np.abs(x - y).max(initial=0)) / max(float(np.abs(y).max(initial=0)), 1e-9) for x, y in zip(a, b, strict=True)), default=0.0
    )


def measure(name: str, only: Sequence[str], count: int) -> dict[str, Any]:
    """Measure one model on a cluster of its own."""
    with TemporaryDirectory(prefix="bbgrap-shapes-") as folder, LocalCluster(2) as cluster:
        path = freed(name, Path(folder)) if name in names() else Path(name)
        kind = "boxes" if "yolo" in name else "images" if name in names() else "text"
        bench = Bench(path, cluster)
        shapes = shapes_of(kind, count + SHAPES)
        bench.warm_up({"text": (1, 3, 48, 320), "boxes": (1, 3, 320, 320), "images": (1, 3, 224, 224)}[kind])
        found: dict[str, Any] = {"model": name}
        if "first" in only:
            found["first"] = bench.firsts(shapes[:count])
        if "plans" in only:
            # The largest first: what its values take is no price of those that follow.
            found["plans"] = bench.plans(sorted(shapes[:count], key=prod, reverse=True))
        if "stream" in only:
            found["stream"] = bench.stream(shapes[count:], REQUESTS)
        return found


def show(found: Mapping[str, Any]) -> None:
    """Print a summary."""
    print(f"\n{found['model']}", flush=True)
    if rows := found.get("first"):
        held, worst = sum(row["holds"] for row in rows), max(rows, key=lambda row: row["ours_ms"] - FIRST_FACTOR * row["plain_ms"])
        ratio = median(row["ours_ms"] / row["plain_ms"] for row in rows)
        print(f"  first answers: {held} of {len(rows)} within bounds; median {ratio:.2f} times; worst {_row(worst)}")
    if rows := found.get("plans"):
        served = [row for row in rows if row["served_s"] is not None]
        soon = sum(row["served_s"] <= PLAN_S for row in served)
        gain = median([row["standby_ms"] / row["after_ms"] for row in served] or [0.0])
        ends = zip(rows[len(rows) // 4]["agent_bytes"], rows[-1]["agent_bytes"], strict=True)
        each = [(after - before) / (len(rows) - len(rows) // 4) / 2**20 for before, after in ends]
        print(f"  plans: {len(served)} of {len(rows)} shapes, {soon} within {PLAN_S:g} s; {gain:.2f} times as fast as before")
        print(f"  memory: {', '.join(f'{mib:.1f}' for mib in each)} MiB a shape and agent")
    if stream := found.get("stream"):
        print(f"  stream: {stream['per_s']:.1f} a second, {stream['times']:.2f} times one core")
    worst_off = max((row["off"] for key in ("first", "plans") for row in found.get(key, ())), default=0.0)
    print(f"  answers: at most {worst_off:.1e} of their magnitude off")


def _row(row: Mapping[str, Any]) -> str:
    return f"{'x'.join(map(str, row['shape']))} {row['ours_ms']:.0f} ms for {row['plain_ms']:.0f}"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shapes", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="resnet50", help="names of the zoo, or files, separated by commas")
    parser.add_argument("--only", default="first,plans,stream", help="what to measure (default: %(default)s)")
    parser.add_argument("--shapes", type=int, default=50, help="how many (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print all rows")
    options = parser.parse_args()
    results = []
    for name in options.models.split(","):
        results.append(measure(name, options.only.split(","), options.shapes))
        show(results[-1])
    if options.json:
        json.dump(results, sys.stdout)
    off = [row["off"] for found in results for key in ("first", "plans") for row in found.get(key, ())]
    return int(any(value > ANSWERS_AGREE for value in off))


if __name__ == "__main__":
    sys.exit(main())
