"""Many small requests, many at once: is every one answered, with its own answer, and does no process grow?

Every request has an input of its own, and its answer is compared with the one that this process works out by itself: whole numbers, so
they are equal to the bit. The model is two convolutions in a row, of which each of two agents computes half of the rows; so every request
is scattered, exchanged and gathered. Memory (resident set) of client, coordinator and agents is looked at after a warm-up and at the end.

Exit code 1 if an answer is missing or wrong, or a process has grown by more than 2 %.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from onnx import TensorProto, helper, numpy_helper

from bbgrap.cli.output import print_json, print_table, step
from bbgrap.graph.types import Array
from bbgrap.local import LocalCluster
from bbgrap.session import InferenceSession

REQUESTS = 20_000
IN_FLIGHT = 32
WARM_UP = 2_000
MAX_GROWTH_PERCENT = 2.0
SIDE = 16
_LOOKS = 10
"""How often memory is looked at between warm-up and end."""
_KEPT_FAULTS = 10

Answer = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Task:
    """A model of one input, and what is asked of it: the input of request number n, and the answer to an input."""

    model: bytes
    feed: Callable[[int], Array]
    answer: Answer


def smooth_model() -> bytes:
    """Return two convolutions that add up the nine neighbours of every number, zeros outside."""
    shape = [1, 1, SIDE, SIDE]
    weight = numpy_helper.from_array(np.ones((1, 1, 3, 3), np.float32), "w")
    convs = [
        helper.make_node("Conv", [source, "w"], [result], result, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        for source, result in (("x", "once"), ("once", "y"))
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph(convs, "smooth", ends[:1], ends[1:], [weight])
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def smooth_feed(number: int) -> Array:
    """Return the input of a request: whole numbers below 1,000, so that all sums are exact in float32."""
    return np.random.default_rng(number).integers(0, 1000, (1, 1, SIDE, SIDE)).astype(np.float32)


def smooth_answer(x: Array) -> Array:
    """Return what the model makes of an input."""
    for _ in range(2):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        x = sum(padded[:, :, i : i + SIDE, j : j + SIDE] for i in range(3) for j in range(3))
    return x


SMOOTH = Task(smooth_model(), smooth_feed, smooth_answer)


class Soak:
    """Requests from several threads, one in flight per thread.

    Invariants: `answered` counts requests whose answer was compared; `faults` are the first few that failed, `failed` counts all.
    """

    def __init__(self, session: InferenceSession, task: Task) -> None:
        """Ask nothing yet."""
        self.answered = 0
        self.failed = 0
        self.faults: list[str] = []
        self.slowest_s = 0.0
        self._session = session
        self._task = task
        self._name = session.get_inputs()[0].name
        self._next = 0
        self._lock = threading.Lock()

    def run(self, until: int, in_flight: int) -> None:
        """Ask all requests up to a number and return when all have been answered or have failed."""
        threads = [threading.Thread(target=self._ask, args=(until,)) for _ in range(in_flight)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _ask(self, until: int) -> None:
        while (number := self._take(until)) is not None:
            feed = self._task.feed(number)
            began = time.perf_counter()
            try:
                (got,) = self._session.run(None, {self._name: feed})
                fault = "" if np.array_equal(got, self._task.answer(feed)) else "the answer is not its own"
            except Exception as error:  # whatever it is, this request is lost
                fault = f"{type(error).__name__}: {error}"
            self._note(number, fault, time.perf_counter() - began)

    def _take(self, until: int) -> int | None:
        with self._lock:
            if self._next >= until:
                return None
            self._next += 1
            return self._next - 1

    def _note(self, number: int, fault: str, took_s: float) -> None:
        with self._lock:
            self.slowest_s = max(self.slowest_s, took_s)
            self.answered += not fault
            self.failed += bool(fault)
            if fault and len(self.faults) < _KEPT_FAULTS:
                self.faults.append(f"request {number}: {fault}")


def soak(
    cluster: LocalCluster,
    task: Task = SMOOTH,
    *,
    requests: int = REQUESTS,
    in_flight: int = IN_FLIGHT,
    warm_up: int = WARM_UP,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Ask a cluster many requests; returns the object of `--json`."""
    warm_up = min(warm_up, requests // 2)
    processes = {"client": psutil.Process(os.getpid())} | {name: psutil.Process(child.pid) for name, child in cluster.processes.items()}
    work = Soak(InferenceSession(task.model, cluster=cluster), task)
    began = time.perf_counter()
    work.run(warm_up, in_flight)
    looks = [resident(processes)]
    for part in range(1, _LOOKS + 1):
        work.run(warm_up + (requests - warm_up) * part // _LOOKS, in_flight)
        looks.append(resident(processes))
        report(f"{work.answered + work.failed:,} of {requests:,} requests")
    seconds = time.perf_counter() - began
    growth = {name: 100 * (looks[-1][name] / looks[0][name] - 1) for name in processes}
    lost = requests - work.answered
    return {
        "schema": 1,
        "requests": requests,
        "in_flight": in_flight,
        "warm_up": warm_up,
        "answered": work.answered,
        "lost": lost,
        "faults": work.faults,
        "seconds": round(seconds, 2),
        "requests_per_s": round(requests / seconds, 1),
        "slowest_ms": round(1e3 * work.slowest_s, 1),
        "resident_bytes": {name: [look[name] for look in looks] for name in processes},
        "growth_percent": {name: round(value, 2) for name, value in growth.items()},
        "passed": not lost and max(growth.values()) <= MAX_GROWTH_PERCENT,
    }


def resident(processes: Mapping[str, psutil.Process]) -> dict[str, int]:
    """Return the bytes of memory that processes hold, after this one has let go of what it can."""
    gc.collect()
    return {name: process.memory_info().rss for name, process in processes.items()}


def main() -> int:
    """Soak, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"how many; default: {REQUESTS}")
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT, help=f"how many at once; default: {IN_FLIGHT}")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help=f"requests before memory counts; default: {WARM_UP}")
    parser.add_argument("--agents", type=int, default=2, help="agents on this machine; default: 2")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    with step("soaking") as progress, LocalCluster(agents=given.agents) as cluster:
        found = soak(cluster, requests=given.requests, in_flight=given.in_flight, warm_up=given.warm_up, report=progress.update)
    if given.json:
        print_json(found)
        return 0 if found["passed"] else 1
    rows = [
        (name, looks[0] / 2**20, max(looks) / 2**20, looks[-1] / 2**20, found["growth_percent"][name])
        for name, looks in found["resident_bytes"].items()
    ]
    answered, lost, took = found["answered"], found["lost"], found["seconds"]
    title = f"{answered:,} answered, {lost:,} lost, {given.in_flight} in flight, {took:.1f} s, slowest {found['slowest_ms']:.0f} ms"
    print_table(("process", f"MiB after {found['warm_up']:,}", "most", "at the end", "growth %"), rows, title=title)
    for fault in found["faults"]:
        print(fault)
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
