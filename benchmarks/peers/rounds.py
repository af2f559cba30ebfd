"""One model over one link: everybody has turns, round by round, each time another one first.

Laws: a peer is compared with bbgrap within a round, and the median of the rounds' ratios counts; one that fails is a row with the reason.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bbgrap.bench import SETTLE_S, MachineWatch
from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.inputs import read_inputs
from bbgrap.cli.models import find_model
from bbgrap.cli.output import say
from bbgrap.comparison import Comparison
from bbgrap.engine.reference import Reference
from bbgrap.errors import ExecutionError
from bbgrap.graph import Array
from benchmarks.peers.halves import Halves, halve
from benchmarks.peers.known import OURS
from benchmarks.peers.peer import Peer, Setting
from benchmarks.peers.peer_process import IN_FLIGHT, Judgement, PeerProcess, Single, Stream
from benchmarks.processes import tree, used_s
from benchmarks.testbed import CORES, Place, Rate, at, open_testbed, probe

STREAM_S = 1.5
"""What a stream takes one core, at least. Chosen: its slow beginning and end are a small part of it."""

_IDLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model with its inputs, the right answer, and its stages."""

    name: str
    path: Path
    feeds: Mapping[str, Array]
    expected: Sequence[Array]
    alone_s: float
    halves: Halves

    @property
    def stream(self) -> int:
        """Requests of a stream."""
        return max(3 * IN_FLIGHT, math.ceil(STREAM_S / self.alone_s))


@dataclass
class _Contender:
    """A peer and what was measured of it, by round; a reason if it failed."""

    peer: Peer
    process: PeerProcess | None
    times: list[list[float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    idle_percent: float = 0.0
    memory_mib: float = 0.0
    comparison: Comparison | None = None
    failure: str = ""

    def attempt(self, work: Callable[[PeerProcess], None]) -> None:
        """Do something with its process; if that fails, it has no more turns."""
        if self.process is None:
            return
        try:
            work(self.process)
        except ExecutionError as error:
            self.failure = str(error)
            say(self.failure)
            self.process.close()
            self.process = None

    def turn(self, requests: int, stream: int) -> None:
        """Measure once."""

        def work(process: PeerProcess) -> None:
            times = process.ask(Single(requests))
            self.rates.append(stream / process.ask(Stream(stream)))
            self.times.append(times)

        self.attempt(work)

    def judge(self) -> None:
        """Ask what its answers were like."""

        def work(process: PeerProcess) -> None:
            self.comparison = process.ask(Judgement())

        self.attempt(work)


def prepare(model: str, folder: Path) -> Prepared:
    """Find a model of the zoo, run it alone, and cut it in two, on the first core."""
    path = find_model(f"zoo:{model}")
    return at(Place("", CORES[0]), _prepare, model, path, folder)


def _prepare(model: str, path: Path, folder: Path) -> Prepared:
    feeds = read_inputs(path, GivenInputs()).feeds(0)
    reference = Reference(path, threads=1)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        expected = reference.run(feeds)
        times.append(time.perf_counter() - began)
    return Prepared(model, path, feeds, expected, min(times), halve(path, feeds, folder))


def measure(model: Prepared, rate: Rate, peers: Sequence[Peer], rounds: int, requests: int) -> list[dict[str, Any]]:
    """Return a row for each peer; those that do not run the model are left out with a line."""
    before = MachineWatch().machine()
    with ExitStack() as stack:
        bed = stack.enter_context(open_testbed(rate))
        bits_per_s, round_trip_s = probe(bed.places, bed.hosts[1])
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bbgrap-peers-", ignore_cleanup_errors=True)))
        setting = Setting(model.name, model.path, model.feeds, model.halves, bed.places, bed.hosts, bed.coordinator, home)
        contenders = []
        for peer in (OURS, *peers):
            if why := peer.refuses(model.path):
                say(f"{model.name}: left out: {peer.title}: {why}")
                continue
            say(f"{model.name}, {rate.name}: opening {peer.title}")
            contenders.append(_opened(peer, setting, model.expected))
            stack.callback(_close, contenders[-1])
        _look_at_rest(contenders, bed.coordinator.processes)
        for number in range(rounds):
            first = number % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                time.sleep(SETTLE_S)
                contender.turn(requests, model.stream)
            say(f"{model.name}, {rate.name}: round {number + 1} of {rounds}: {_standing(contenders)}")
        for contender in contenders:
            contender.judge()
        facts = {contender.peer.name: contender.process.facts for contender in contenders if contender.process}
    after = MachineWatch().machine()
    machine = {**after, "others_percent": before["others_percent"] + after["others_percent"], "busy": before["busy"] or after["busy"]}
    common = {
        "model": model.name,
        "link": rate.name,
        "rounds": rounds,
        "requests_per_round": requests,
        "stream": model.stream,
        "in_flight": IN_FLIGHT,
        "facts": {
            **machine,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "measured_mbit_per_s": round(bits_per_s / 1e6, 1),
            "round_trip_us": round(round_trip_s * 1e6, 1),
        },
    }
    rows = []
    for contender in contenders:
        peer = contender.peer
        row = {**common, **row_of(contender, contenders[0]), "versions": peer.versions, "peer_facts": facts.get(peer.name, {})}
        rows.append(row)
    return rows


def _opened(peer: Peer, setting: Setting, expected: Sequence[Array]) -> _Contender:
    home = setting.home / peer.name
    home.mkdir()
    try:
        return _Contender(peer, PeerProcess(peer, replace(setting, home=home), expected))
    except ExecutionError as error:
        say(str(error))
        return _Contender(peer, None, failure=str(error))


def _close(contender: _Contender) -> None:
    if contender.process is not None:
        contender.process.close()


def _look_at_rest(contenders: Sequence[_Contender], cluster: Sequence[int]) -> None:
    """Note what everybody holds, and computes while nobody asks: the others' turns have that beside them."""
    owned = [[] if contender.process is None else contender.process.processes() for contender in contenders]
    owned[0] += [process for number in cluster for process in tree(number)]
    earlier, began = [used_s(processes) for processes in owned], time.monotonic()
    time.sleep(_IDLE_S)
    took = time.monotonic() - began
    for contender, then, processes in zip(contenders, earlier, owned, strict=True):
        contender.idle_percent = 100 * (used_s(processes) - then) / took
        contender.memory_mib = _memory_bytes(processes) / 2**20


def _memory_bytes(processes: Sequence[psutil.Process]) -> int:
    """Return the memory of processes; what several share is counted once."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total


def _standing(contenders: Sequence[_Contender]) -> str:
    return ", ".join(
        f"{each.peer.name} {1e3 * statistics.median(each.times[-1]):.1f} ms {each.rates[-1]:.1f}/s" for each in contenders if each.process
    )


def row_of(contender: _Contender, ours: _Contender) -> dict[str, Any]:
    """Return what was measured of a peer; its ratios to bbgrap are above 1 where it is ahead."""
    peer = contender.peer
    row: dict[str, Any] = {
        "peer": peer.name,
        "title": peer.title,
        "nodes": peer.nodes,
        "informative": peer.informative,
        "idle_percent": round(contender.idle_percent, 2),
        "memory_mib": round(contender.memory_mib),
        "failure": contender.failure,
    }
    comparison = contender.comparison
    if comparison is None or contender.failure:
        return row
    milliseconds = [1e3 * value for times in contender.times for value in times]
    row |= {
        "p50_ms": statistics.median(milliseconds),
        "p95_ms": float(np.percentile(milliseconds, 95)),
        "per_s": statistics.median(contender.rates),
        "p50_ms_by_round": [round(1e3 * statistics.median(times), 3) for times in contender.times],
        "per_s_by_round": [round(rate, 3) for rate in contender.rates],
        **comparison.as_dict(),
        "verified": comparison.verified,
        "fault": comparison.fault or None,
    }
    if ours.failure:
        return row
    pairs = list(zip(contender.times, ours.times, strict=True))
    latency = statistics.median(statistics.median(own) / statistics.median(its) for its, own in pairs)
    throughput = statistics.median(its / own for its, own in zip(contender.rates, ours.rates, strict=True))
    ratios = {"latency": latency, "throughput": throughput}
    ahead = [what for what, ratio in ratios.items() if ratio > 1 and peer is not OURS and not peer.informative and comparison.verified]
    return row | {"latency_against_bbgrap": latency, "throughput_against_bbgrap": throughput, "ahead": ahead}
