"""How much slower is a known client while strangers connect?

    python -m benchmarks.strangers --connections 512,5000 --manners idle,slow,hostile --json

A local cluster of two agents; one client sends one request after the other. Seconds in which strangers knock
(`benchmarks.connection_flood`, one process) take turns with calm ones, at the control port and at all data ports. Strangers run only when
nobody else wants the processor, as if they were on another machine: what is lost is what the cluster itself does for them, and the
kernel. `lost` is of the median round;
`work` is the processor time of the cluster's processes for a request, which other programs on this machine change little.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from zmq.utils import z85

from bbgrap.cli.output import print_json, print_table, say
from bbgrap.local import LocalCluster
from bbgrap.protocol.tokens import Token
from bbgrap.session import InferenceSession
from benchmarks.connection_flood import MANNERS
from benchmarks.processes import tree, used_s
from benchmarks.tasks import asked

PORTS = ("control", "data")
_GATHER_S = 2.5
"""Until all strangers are there."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a client got in some seconds: requests a second, milliseconds of a request, and of the cluster's processors for one."""

    per_s: float
    p50_ms: float
    p99_ms: float
    work_ms: float


@dataclass(frozen=True, slots=True)
class Row:
    """The calm rounds and the others, of one kind of strangers; `knocks` are connections a second, `peak` those at once."""

    model: str
    at: str
    manner: str
    connections: int
    calm: Speed
    knocked: Speed
    lost: float
    knocks: float
    peak: int


def speed(ask: Callable[[], object], seconds: float, processes: list[psutil.Process]) -> Speed:
    """Ask for so long."""
    times = []
    before = used_s(processes)
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    took = time.perf_counter() - began
    work = (used_s(processes) - before) / len(times)
    times.sort()
    return Speed(len(times) / took, 1e3 * statistics.median(times), 1e3 * times[int(len(times) * 0.99)], 1e3 * work)


def _median(speeds: list[Speed]) -> Speed:
    columns = zip(*((each.per_s, each.p50_ms, each.p99_ms, each.work_ms) for each in speeds), strict=True)
    return Speed(*(round(statistics.median(column), 3) for column in columns))


@contextmanager
def strangers(
    manner: str, connections: int, addresses: list[str], server: bytes, per_s: float, told: list[dict[str, float]]
) -> Iterator[None]:
    """Let strangers knock; what they did is told when they have gone."""
    at = [option for address in addresses for option in ("--at", address)]
    options = ["--manner", manner, "--connections", str(connections), "--per-s", str(per_s), "--server-key", server.decode(), *at]
    command = [sys.executable, "-m", "benchmarks.connection_flood", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as crowd:
        time.sleep(_GATHER_S)
        try:
            yield
        finally:
            out, _ = crowd.communicate()
            told.append(json.loads(out))


def _addresses(cluster: LocalCluster, at: str) -> list[str]:
    if at == "control":
        return [cluster.address.removeprefix("tcp://")]
    data = re.findall(r"data plane at tcp://([\d.:]+)", (cluster.logs / "coordinator.log").read_text())[-1]
    return [data, *(node.address.removeprefix("tcp://") for node in cluster.connection.nodes())]


def measure(model: str, given: argparse.Namespace) -> list[Row]:
    """Measure all that was asked for with one model."""
    rows = []
    with TemporaryDirectory() as folder, LocalCluster(2) as cluster:
        task = asked(model, Path(folder))
        session = InferenceSession(task.model, cluster=cluster.connection)
        session.prepare({name: array.shape for name, array in task.feeds[0].items()})
        processes = [process for main in cluster.processes.values() for process in tree(main.pid)]
        server = z85.encode(Token.parse((cluster.logs / "state" / "keys" / "local.token").read_text(), "the coordinator's token").server)

        def ask() -> None:
            answer = session.run(None, task.feeds[0])
            assert task.distance(0, answer) <= 1, "a wrong answer"

        speed(ask, given.warm_up, processes)
        for at in given.at:
            for manner in given.manners:
                for connections in given.connections:
                    if (at, manner) == ("data", "unknown"):
                        continue
                    calm, knocked, told = list[Speed](), list[Speed](), list[dict[str, float]]()
                    for _ in range(given.rounds):
                        calm.append(speed(ask, given.seconds, processes))
                        with strangers(manner, connections, _addresses(cluster, at), server, given.per_s, told):
                            knocked.append(speed(ask, given.seconds, processes))
                        time.sleep(0.5)
                    lost = statistics.median(1 - b.per_s / a.per_s for a, b in zip(calm, knocked, strict=True))
                    knocks = sum(each.get("connections", 0) for each in told) / sum(each["seconds"] for each in told)
                    peak = max(int(each.get("most at once", 0)) for each in told)
                    rows.append(
                        Row(model, at, manner, connections, _median(calm), _median(knocked), round(lost, 4), round(knocks, 1), peak)
                    )
                    say(f"{model} {at} {manner} {connections}: {lost:.1%} lost")
    return rows


def _show(rows: list[Row]) -> None:
    names = (
        "model",
        "at",
        "strangers",
        "",
        "req/s",
        "knocked",
        "lost",
        "p50",
        "knocked",
        "p99 ms",
        "knocked",
        "work ms",
        "knocked",
        "knocks/s",
    )
    lines = [
        (
            *(row.model, row.at, row.manner, row.connections),
            *(f"{row.calm.per_s:.1f}", f"{row.knocked.per_s:.1f}", f"{row.lost:.1%}"),
            *(f"{value:.2f}" for pair in zip(_times(row.calm), _times(row.knocked), strict=True) for value in pair),
            f"{row.knocks:.0f}",
        )
        for row in rows
    ]
    print_table(names, lines)


def _times(speed: Speed) -> tuple[float, float, float]:
    return speed.p50_ms, speed.p99_ms, speed.work_ms


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.strangers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", type=lambda text: text.split(","), default=["resnet50", "smooth"])
    parser.add_argument("--connections", type=lambda text: [int(part) for part in text.split(",")], default=[512, 5000])
    parser.add_argument("--manners", type=lambda text: text.split(","), default=list(MANNERS[:3]), help=", ".join(MANNERS))
    parser.add_argument("--at", type=lambda text: text.split(","), default=list(PORTS), help="control, data")
    parser.add_argument("--per-s", type=float, default=5000.0, help="connections a second, at most (default: 5,000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round, calm and knocked at")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds: agents that are new measure themselves")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [row for model in given.models for row in measure(model, given)]
    if given.json:
        print_json([asdict(row) for row in rows])
    else:
        _show(rows)


if __name__ == "__main__":
    main()
