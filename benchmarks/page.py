"""What does an open page of `bbgrap serve` cost while requests are answered?

    processors   time on processors per request of server, coordinator and agents, with an open page and without one, in blocks in turns;
                 on a machine that others use, too, this is the figure to look at
    throughput   requests per second in the same blocks; bound: 1 % fewer
    at rest      time on processors that one second of an open page takes while nobody asks for anything

An open page is a reader of what the server tells, which asks for pictures as often as the page does, in a process that is not counted:
people's browsers run elsewhere. `--json` prints the figures for programs. Linux only.
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
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import bbgrap
from bbgrap.engine.sessions import usable_cores
from benchmarks.serving import Http, Run, on_processors, server, session_of

COUNTED = ("server", "coordinator", "nannies", "workers")
PICTURES_EVERY_S = 5.0
"""How often a page asks for the pictures of the plan that it shows (`AGAIN_MS` in plans.js)."""


def read(place: str) -> None:
    """Be an open page until this process is ended: print a line once the first look is here."""
    stream, pictures = http.client.HTTPConnection(place), http.client.HTTPConnection(place)
    stream.request("GET", "/live")
    told, kind, asked_at = stream.getresponse(), "", 0.0
    while line := told.readline().decode().rstrip("\n"):
        told_kind, text = line.partition(": ")[::2]
        if told_kind == "event":
            kind = text
        elif told_kind == "data" and kind == "status":
            status = json.loads(text)
            if not asked_at:
                print("open", flush=True)
            if time.monotonic() - asked_at > PICTURES_EVERY_S:
                asked_at = time.monotonic()
                plans = [plan for model in status["models"] for plan in model["plans"]]
                pictures.request("GET", f"/live/plans/{max(plans, key=lambda plan: plan['requests'])['plan']}")
                answer = pictures.getresponse()
                assert answer.read()
                assert answer.status == 200
        if told_kind != "event":
            told.readline()


@contextmanager
def open_page(place: str) -> Iterator[None]:
    """Keep a page open."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.page", "--read", place], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "open\n", "the page does not open"
        yield
        assert process.poll() is None, "the page was closed meanwhile"
    finally:
        process.terminate()
        process.wait()


def block(run: Run, in_flight: int, seconds: float) -> dict[str, float]:
    """Return what a request takes of every process in microseconds, and requests per second, over so many seconds."""

    def work(until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            run()
            done += 1
        return done

    before, began = on_processors(), time.perf_counter()
    with ThreadPoolExecutor(in_flight) as pool:
        done = sum(pool.map(work, [began + seconds] * in_flight))
    took, after = time.perf_counter() - began, on_processors()
    return {"per_s": done / took} | {f"{name}_us": (after[name] - before[name]) / done for name in COUNTED}


def resting(seconds: float) -> float:
    """Return milliseconds on processors per second while nobody asks for anything."""
    before, began = on_processors(), time.perf_counter()
    time.sleep(seconds)
    took, after = time.perf_counter() - began, on_processors()
    return sum(after[name] - before[name] for name in COUNTED) / 1e3 / took


def measured(cluster: bbgrap.LocalCluster, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of `given.model`."""
    _, x, expected = session_of(cluster, given.model, "auto")
    with server(cluster.address, given.model, "auto", "--objective", "throughput") as place:
        run = Http(place, given.model, x, expected).run
        block(run, given.in_flight, 2.0)
        found: dict[str, list[Mapping[str, float]]] = {"closed": [], "open": []}
        rest: dict[str, list[float]] = {"closed": [], "open": []}
        for number in range(given.blocks):
            for name in ("closed", "open") if number % 2 else ("open", "closed"):
                with open_page(place) if name == "open" else nullcontext():
                    found[name].append(block(run, given.in_flight, given.seconds))
                    rest[name].append(resting(given.seconds / 2))
    figures: dict[str, Any] = {}
    for name, blocks in found.items():
        figures |= {f"{name}_{kind}": statistics.median(one[kind] for one in blocks) for kind in blocks[0]}
        figures[f"{name}_all_us"] = statistics.median(_all_us(one) for one in blocks)
        figures[f"{name}_at_rest_ms_per_s"] = statistics.median(rest[name])
    pairs = list(zip(found["open"], found["closed"], strict=True))
    figures["processors_more_percent"] = _percent([_all_us(page) / _all_us(none) for page, none in pairs])
    figures["throughput_more_percent"] = _percent([page["per_s"] / none["per_s"] for page, none in pairs])
    more = [page - none for page, none in zip(rest["open"], rest["closed"], strict=True)]
    figures["at_rest_more_ms_per_s"] = statistics.median(more)
    return figures


def _all_us(one: Mapping[str, float]) -> float:
    return sum(one[f"{name}_us"] for name in COUNTED)


def _percent(ratios: list[float]) -> dict[str, float]:
    """Return the median of what is more, and its quartiles."""
    low, middle, high = (100 * (quartile - 1) for quartile in statistics.quantiles(ratios, n=4))
    return {"median": middle, "low": low, "high": high}


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--read"]:  # this process is a page
        read(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--model", default="mobilenet_v2", help="of the zoo, with one input of [1, 3, 224, 224]")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a block")
    parser.add_argument("--blocks", type=int, default=12, help="with a page, and as many without one")
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    with bbgrap.LocalCluster(agents=given.agents) as cluster:
        figures = measured(cluster, given)
    if given.json:
        machine = {"cores": usable_cores(), "machine": platform.machine(), "python": platform.python_version(), "load": os.getloadavg()[0]}
        print(json.dumps(machine | {"model": given.model, "agents": given.agents} | figures, indent=2))
        return
    for name, value in figures.items():
        text = f"{value['median']:10.2f} ({value['low']:.2f} to {value['high']:.2f})" if isinstance(value, dict) else f"{value:10.2f}"
        print(f"{name:28}{text}")


if __name__ == "__main__":
    main()
