"""What does `bbgrap serve` cost, against the Python client on the same cluster?

    latency      p50 of one request after the other, in turns: `InferenceSession.run`, and raw tensors over HTTP; bound: 1.5 ms more
    throughput   requests per second with so many in flight, in blocks in turns: threads with a session, threads with a connection each to a
                 server, and to one that batches (`--max-batch`); bound: 90 % of the session's
    processors   time on processors that a request of MobileNetV2 on one node takes of every process, in blocks in turns; on a machine that
                 others use, too, these are the figures to look at (Linux)

Client, servers and agents share this machine: what a server computes, agents cannot. `--json` prints the figures for programs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil

import bbgrap
from bbgrap.engine.sessions import usable_cores
from bbgrap.graph.types import Array
from bbgrap.zoo import materialize

JSON_LENGTH = "Inference-Header-Content-Length"

Run = Callable[[], None]


@contextmanager
def server(address: str, model: str, planner: str, *options: str) -> Iterator[str]:
    """Start `bbgrap serve` for a model of the zoo, and give its HOST:PORT."""
    words = ["serve", f"zoo:{model}", "--http", "127.0.0.1:0", "--coordinator", address, "--planner", planner, *options]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.serving", "--serve", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip().removeprefix("http://")
    finally:
        process.terminate()
        process.wait()


class Http:
    """A request of raw tensors over connections of this process, one for each thread."""

    def __init__(self, place: str, model: str, x: Array, expected: Array) -> None:
        spec = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "parameters": {"binary_data_size": x.nbytes}}
        text = json.dumps({"inputs": [spec], "parameters": {"binary_data_output": True}}).encode()
        self._place, self._path, self._body = place, f"/v2/models/{model}/infer", text + x.tobytes()
        self._headers = {JSON_LENGTH: str(len(text))}
        self._expected = expected
        self._own = threading.local()

    def run(self) -> None:
        """Send it, and look at the answer."""
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPConnection(self._place)
        self._own.connection.request("POST", self._path, self._body, self._headers)
        answer = self._own.connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        _check(np.frombuffer(content[int(answer.headers[JSON_LENGTH]) :], np.float32).reshape(self._expected.shape), self._expected)


def latency(cluster: bbgrap.LocalCluster, runs: int) -> dict[str, float]:
    """Return p50 of ResNet50 in milliseconds, both ways in turns."""
    ask, x, expected = session_of(cluster, "resnet50", "single")
    with server(cluster.address, "resnet50", "single") as place:
        ways: Mapping[str, Run] = {"session": ask, "http": Http(place, "resnet50", x, expected).run}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(-3, runs):
            for name, run in ways.items():
                began = time.perf_counter()
                run()
                if number >= 0:
                    times[name].append(1e3 * (time.perf_counter() - began))
    more = [over - alone for over, alone in zip(times["http"], times["session"], strict=True)]
    return {f"{name}_p50_ms": statistics.median(taken) for name, taken in times.items()} | {"http_more_ms": statistics.median(more)}


def throughput(cluster: bbgrap.LocalCluster, requests: int, in_flight: int, blocks: int) -> dict[str, Any]:
    """Return requests per second of MobileNetV2, each way."""
    ask, x, expected = session_of(cluster, "mobilenet_v2", "auto")
    plain, batching = (
        server(cluster.address, "mobilenet_v2", "auto", "--objective", "throughput", *more) for more in ((), ("--max-batch", "4"))
    )
    with plain as place, batching as batching_place:
        ways: Mapping[str, Run] = {
            "session": ask,
            "http": Http(place, "mobilenet_v2", x, expected).run,
            "http_batching": Http(batching_place, "mobilenet_v2", x, expected).run,
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(-1, blocks):
            for name, run in ways.items():
                with ThreadPoolExecutor(in_flight) as pool:
                    began = time.perf_counter()
                    for done in [pool.submit(run) for _ in range(requests)]:
                        done.result()
                    if number >= 0:
                        rates[name].append(requests / (time.perf_counter() - began))
    medians = {f"{name}_per_s": statistics.median(found) for name, found in rates.items()}
    ratios = {
        f"{name}_of_session": statistics.median(mine / alone for mine, alone in zip(rates[name], rates["session"], strict=True))
        for name in ("http", "http_batching")
    }
    return {"in_flight": in_flight, **medians, **ratios}


def processors(cluster: bbgrap.LocalCluster, requests: int, blocks: int) -> dict[str, float]:
    """Return microseconds on processors per request, of each process and both ways."""
    ask, x, expected = session_of(cluster, "mobilenet_v2", "single")
    with server(cluster.address, "mobilenet_v2", "single") as place:
        ways: Mapping[str, Run] = {"session": ask, "http": Http(place, "mobilenet_v2", x, expected).run}
        taken: dict[str, list[float]] = {}
        for number in range(-1, blocks):
            for way, run in ways.items():
                before = on_processors()
                for _ in range(requests):
                    run()
                for name, after in on_processors().items() if number >= 0 else ():
                    taken.setdefault(f"{way}_{name}_us", []).append((after - before.get(name, 0.0)) / requests)
    return {name: statistics.median(found) for name, found in taken.items()}


def on_processors() -> dict[str, float]:
    """Return how many microseconds this process and those that it started have been on processors, by what they are."""
    sums: dict[str, float] = {}
    for process in (this := psutil.Process(), *this.children(recursive=True)):
        words = " ".join(process.cmdline())
        kinds = ("benchmarks.serving --serve", "bbgrap_coordinator.main", "bbgrap_agent.main", "bbgrap_agent.worker")
        names = dict(zip(kinds, ("server", "coordinator", "nannies", "workers"), strict=True))
        name = "client" if process == this else next((name for kind, name in names.items() if kind in words), "others")
        # The number of the clock of a process, as `clock_getcpuclockid` makes it.
        sums[name] = sums.get(name, 0.0) + time.clock_gettime_ns(~process.pid << 3 | 2) / 1e3
    return sums


def session_of(cluster: bbgrap.LocalCluster, model: str, planner: str) -> tuple[Run, Array, Array]:
    """Return a request of a session that is ready, its input, and the answer to it."""
    options = bbgrap.PlanOptions(planner, objective="throughput" if planner == "auto" else "latency")
    session = bbgrap.InferenceSession(materialize(model), cluster=cluster, options=options)
    x = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    session.prepare({"input": x.shape}, {"input": x})
    expected: Array = session.run(None, {"input": x})[0]
    return lambda: _check(session.run(None, {"input": x})[0], expected), x, expected


def _check(got: Array, expected: Array) -> None:
    assert np.allclose(got, expected, atol=1e-3), "another answer"


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--serve"]:  # this process is a server
        from bbgrap.cli.main import app

        app(sys.argv[2:], prog_name="bbgrap")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--runs", type=int, default=100, help="turns of the latency")
    parser.add_argument("--requests", type=int, default=200, help="in each block of the throughput")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    with bbgrap.LocalCluster(agents=given.agents) as cluster:
        figures: dict[str, Any] = {"agents": given.agents, **latency(cluster, given.runs)}
        figures |= throughput(cluster, given.requests, given.in_flight, given.blocks)
        if sys.platform == "linux":
            figures |= processors(cluster, given.requests, given.blocks)
    if given.json:
        machine = {"cores": usable_cores(), "machine": platform.machine(), "python": platform.python_version(), "load": os.getloadavg()[0]}
        print(json.dumps(machine | figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:24}{value:10.2f}")


if __name__ == "__main__":
    main()
