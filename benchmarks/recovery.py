"""How long are clients without an answer when something fails?

    python -m benchmarks.recovery --events agent0-killed,link-cut --json

Three agents of one thread, four clients that send ResNet50 one request after the other, planned by default; each event meets a cluster
whose plan serves. Machines have network namespaces of their own (root, Linux); without, links are not cut. Per event: requests that
failed, the longest time in which no client had an answer, from the fault to 30 s after it was healed, and when a plan served again. Every
answer is compared with onnxruntime's. What is allowed is a time plus that of one request on the standby, under the same load.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnxruntime

from bbgrap.cli.output import print_json, print_table, say
from bbgrap.errors import ClusterUnavailableError, UsageError
from benchmarks.exit_status import exit_status
from benchmarks.kept import RESULTS, keep
from benchmarks.lan import Lan, in_hub, lan_of
from benchmarks.machines import COORDINATOR, Machines, machines_at
from benchmarks.testbed import can_limit, terminable

AGENTS = ("agent0", "agent1", "agent2")
CLIENTS = 4
DEADLINE_S = 60.0
AFTER_S = 30.0
"""How long is looked after a fault was healed."""
_CALM_S = 3.0
_ENDS_WITHIN_S = DEADLINE_S + 5.0
"""How long clients that were told to end wait for what they have asked."""
_PLAN_WITHIN_S = 120.0
_STANDBY = {"standby", "", "nobody yet"}
"""What serves as long as no plan does."""

Line = dict[str, Any]


@dataclass
class Bed:
    """A cluster under load."""

    machines: Machines
    tell: Callable[[str], None]
    history: Path

    def lines(self) -> list[Line]:
        """Return what the clients have noted so far."""
        text = self.history.read_bytes()
        return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    def joined(self, name: str) -> None:
        """Wait until the coordinator knows an agent."""
        with self.machines.connect() as connection:
            self.machines.wait(name, lambda: name in {node.name for node in connection.nodes()})


@dataclass(frozen=True)
class Event:
    """Something that happens; it returns when it is healed. `within_s` may pass without an answer, besides a standby's request."""

    name: str
    happen: Callable[[Bed], None]
    within_s: float
    after_healing: bool = False
    """Whether `within_s` counts from the healing."""
    needs_lan: bool = False
    agent: str = ""
    """That shall be used again."""


def _killed(agent: str) -> Callable[[Bed], None]:
    return lambda bed: bed.machines.kill(agent)


def _stopped(machine: str, seconds: float) -> Callable[[Bed], None]:
    def happen(bed: Bed) -> None:
        bed.machines.signal(machine, signal.SIGSTOP)
        time.sleep(seconds)
        bed.machines.signal(machine, signal.SIGCONT)

    return happen


def _cut(bed: Bed) -> None:
    lan = bed.machines.lan
    assert lan is not None
    pairs = [("agent0", "agent1"), ("agent1", "agent0")]
    for source, target in pairs:
        lan.cut(source, target)
    time.sleep(15.0)
    for source, target in pairs:
        lan.join(source, target)


def _coordinator_killed(bed: Bed) -> None:
    bed.machines.kill(COORDINATOR)
    time.sleep(1.0)
    bed.machines.start_coordinator()
    bed.machines.wait_coordinator()


def _all_killed(bed: Bed) -> None:
    for agent in AGENTS:
        bed.machines.kill(agent)
    time.sleep(5.0)
    bed.machines.start_agent("agent1")
    bed.joined("agent1")


def _asked(task: str, count: int, deadline_s: float) -> Callable[[Bed], None]:
    def happen(bed: Bed) -> None:
        bed.tell(f"ask {task} {count} {deadline_s}")
        until = time.monotonic() + (count + 1) * (deadline_s + 2.0)
        while time.monotonic() < until:
            mine = {line["id"] for line in bed.lines() if line["what"] == "sent" and line["task"] == task}
            if sum(line["what"] in {"failed", "answered"} and line["id"] in mine for line in bed.lines()) == count:
                break
            time.sleep(0.2)

    return happen


EVENTS = (
    *(Event(f"{agent}-killed", _killed(agent), 0.5) for agent in AGENTS),
    Event("agent-stopped", _stopped("agent0", 30.0), 1.0, agent="agent0"),
    Event("link-cut", _cut, 1.0, needs_lan=True),
    Event("coordinator-killed", _coordinator_killed, 2.0, after_healing=True),
    Event("coordinator-stopped", _stopped(COORDINATOR, 6.0), 6.5),
    Event("all-killed", _all_killed, 3.0, after_healing=True),
    Event("killer", _asked("killer", 3, 20.0), 0.5),
    Event("endless", _asked("endless", 1, 5.0), 0.5),
    Event("deadly", _asked("deadly", 3, 20.0), 0.5),
    Event("stuck", _asked("stuck", 1, 5.0), 0.5),
)


def measure(event: Event, lan: Lan | None, home: Path, model: str) -> dict[str, Any]:
    """Let an event happen to a fresh cluster, and return its row."""
    allowed = sorted(os.sched_getaffinity(0))
    cores = dict(zip(AGENTS, allowed, strict=False)) if len(allowed) > len(AGENTS) else {}
    with machines_at(home, lan, AGENTS, cores) as machines, clients_of(machines, home) as clients:
        tell = clients.tell
        bed = Bed(machines, tell, clients.history)
        tell(f"send {model} {CLIENTS} {DEADLINE_S}")
        tell(f"watch {model}")
        wait_for_plan(bed)
        time.sleep(_CALM_S)
        began = time.monotonic()
        event.happen(bed)
        healed = time.monotonic()
        time.sleep(AFTER_S)
        lines = bed.lines()
        tell("stop")
        deaths = sum("the worker of agent" in line for line in machines.log(COORDINATOR).read_text(errors="replace").splitlines())
    return {**row_of(event, lines, began, healed, model), "workers_ended": deaths}


@dataclass(frozen=True)
class ClientProcess:
    """A process with clients, what tells it something, and its history."""

    pid: int
    tell: Callable[[str], None]
    history: Path


@contextmanager
def clients_of(machines: Machines, home: Path, name: str = "clients", token: Path | None = None) -> Iterator[ClientProcess]:
    """Start a process with clients on the hub; without a token file of their own they have that of the coordinator's user."""
    history = home / f"{name}.jsonl"
    history.touch()
    command = ["-m", "benchmarks.clients", "--cluster", machines.address, "--history", str(history), "--folder", str(home / "models")]
    surroundings = {**os.environ, "BBGRAP_TOKEN_FILE": str(token or machines.token("local"))}
    with (home / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, bufsize=1, env=surroundings
        )
    assert process.stdin is not None
    stream = process.stdin

    def tell(line: str) -> None:
        stream.write(line + "\n")
        stream.flush()

    try:
        yield ClientProcess(process.pid, tell, history)
    finally:
        with suppress(BrokenPipeError):
            stream.close()
        try:
            process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_plan(bed: Bed) -> None:
    """Wait until a plan serves.

    Raises:
        ClusterUnavailableError: if none does.
    """
    deadline = time.monotonic() + _PLAN_WITHIN_S
    while True:
        serving = [line for line in bed.lines() if line["what"] == "serving"]
        if serving and serving[-1]["by"] not in _STANDBY:
            return
        if time.monotonic() > deadline:
            raise ClusterUnavailableError(f"no plan serves after {_PLAN_WITHIN_S:g} s:\n{bed.machines.logged(COORDINATOR)}")
        time.sleep(0.2)


# --- what the history says ----------------------------------------------------------------------------------------------------------


def row_of(event: Event, lines: Sequence[Line], began: float, healed: float, model: str) -> dict[str, Any]:
    """Return what a history says of an event."""
    sent = {line["id"]: line for line in lines if line["what"] == "sent"}
    mine = {name for name, line in sent.items() if line["task"] == model}
    answered = [line for line in lines if line["what"] == "answered" and line["id"] in mine]
    failed = [line for line in lines if line["what"] == "failed" and line["t"] >= began]
    serving = [line for line in lines if line["what"] == "serving"]
    until = healed + AFTER_S
    standby_s = standby_request_s(sent, answered, serving)
    gap_s, gap_at = longest_gap([line["t"] for line in answered], began, until)
    after_s, _ = longest_gap([line["t"] for line in answered], healed, until)
    counted = after_s if event.after_healing else gap_s
    others = [line for line in failed if line["id"] in mine]
    hostile = [line for line in failed if line["id"] not in mine]
    lost = others and [line["text"] for line in others[:3]]
    used = [line["t"] for line in serving if line["t"] >= healed and event.agent in {*line["nodes"], *line["standby"]}]
    slowest = max((line["t"] - sent[line["id"]]["t"] for line in answered if line["t"] >= began), default=0.0)
    return {
        "event": event.name,
        "model": model,
        "requests": sum(began <= line["t"] <= until for line in answered),
        "failed": len(others),
        "wrong": sum(line["off"] > 1 for line in answered),
        "faults": lost or [],
        "hostile_faults": [{"after_s": round(line["t"] - sent[line["id"]]["t"], 2), "text": line["text"]} for line in hostile],
        "longest_gap_s": round(gap_s, 3),
        "gap_began_after_s": round(gap_at - began, 2),
        "after_healing_s": round(after_s, 3),
        "slowest_request_s": round(slowest, 3),
        "standby_request_s": round(standby_s, 3),
        "allowed_s": event.within_s,
        "within": counted <= event.within_s + standby_s and not others,
        "healed_after_s": round(healed - began, 2),
        "plan_after_s": plan_again(serving, began, healed),
        "planned_anew": planned_anew(serving, began),
        "used_again_after_s": round(used[0] - healed, 2) if event.agent and used else None,
        "requests_per_s": {"before": rate(answered, began - _CALM_S, began), "at_the_end": rate(answered, until - 5.0, until)},
    }


def longest_gap(times: Sequence[float], began: float, until: float) -> tuple[float, float]:
    """Return the longest time without an answer in a window, and when it began."""
    inside = [began, *(t for t in sorted(times) if began < t < until), until]
    return max((b - a, a) for a, b in pairwise(inside))


def rate(answered: Sequence[Line], began: float, until: float) -> float:
    """Return the answers per second in a window."""
    return round(sum(began <= line["t"] < until for line in answered) / (until - began), 1)


def standby_request_s(sent: Mapping[str, Line], answered: Sequence[Line], serving: Sequence[Line]) -> float:
    """Return what a request took in the middle, in seconds, before a plan served; the first ones, which load the model, left out."""
    first_plan = next((line["t"] for line in serving if line["by"] not in _STANDBY), float("inf"))
    took = [line["t"] - sent[line["id"]]["t"] for line in answered if line["t"] < first_plan]
    return statistics.median(took[CLIENTS:]) if len(took) > CLIENTS else 0.0


def plan_again(serving: Sequence[Line], began: float, healed: float) -> float | None:
    """Return how long after the fault a plan served again for good; 0: it never ceased; None: it did not."""
    later = [line for line in serving if began <= line["t"] <= healed + AFTER_S]
    gone = [place for place, line in enumerate(later) if line["by"] in _STANDBY]
    if not gone:
        return 0.0
    return round(later[gone[-1] + 1]["t"] - began, 2) if gone[-1] + 1 < len(later) else None


def planned_anew(serving: Sequence[Line], began: float) -> bool:
    """Whether another plan serves at the end than before."""
    before = [line["epoch"] for line in serving if line["t"] < began and line.get("epoch") and line["by"] not in _STANDBY]
    after = [line["epoch"] for line in serving if line["t"] >= began and line.get("epoch") and line["by"] not in _STANDBY]
    return bool(before and after and before[-1] != after[-1])


# --- the command --------------------------------------------------------------------------------------------------------------------


def _work(given: argparse.Namespace) -> int:
    by_name = {event.name: event for event in EVENTS}
    names = [name for name in given.events.split(",") if name]
    if unknown := [name for name in names if name not in by_name]:
        raise UsageError(f"events: expected some of {', '.join(by_name)}, got {', '.join(unknown)}")
    rows, facts = [], {"onnxruntime": onnxruntime.__version__, "cores": os.cpu_count()}
    for event in (by_name[name] for name in names):
        if event.needs_lan and not can_limit():
            say(f"{event.name}: left out: network namespaces need root on Linux")
            continue
        say(event.name)
        home = Path(tempfile.mkdtemp(prefix=f"bbgrap-{event.name}-"))
        date = datetime.now(UTC).isoformat(timespec="seconds")
        if can_limit():
            with terminable(), lan_of((COORDINATOR, *AGENTS)) as lan, in_hub(lan):
                row = measure(event, lan, home, given.model)
        else:
            row = measure(event, None, home, given.model)
        say("  ".join(str(cell) for cell in _cells(row)))
        rows.append({**row, "facts": {"date": date, **facts, "load": os.getloadavg()[0]}})
        if given.keep:
            say(f"logs and history: {home}")
        else:
            subprocess.run(["rm", "-rf", str(home)], check=False)  # noqa: S607
        if given.save:
            keep(rows[-1:], RESULTS / "recovery.json", ("event", "model"))
    if given.json:
        print_json(rows)
    else:
        header = ("event", "failed", "wrong", "no answer, s", "allowed, s", "after healing, s", "standby, s", "plan again, s", "per s")
        print_table(header, [_cells(row) for row in rows], title=f"{given.model}, {len(AGENTS)} agents, {CLIENTS} clients")
        for row in rows:
            for fault in row["faults"] + [f"{hostile['text']} (after {hostile['after_s']} s)" for hostile in row["hostile_faults"]]:
                print(f"{row['event']}: {fault}")
    return 0 if all(row["within"] and not row["wrong"] for row in rows) else 1


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    again = "never" if row["plan_after_s"] is None else f"{row['plan_after_s']:.1f}"
    keys = ("longest_gap_s", "allowed_s", "after_healing_s", "standby_request_s")
    times = (f"{row[key]:.2f}" for key in keys)
    rates = row["requests_per_s"]
    return (row["event"], row["failed"], row["wrong"], *times, again, f"{rates['before']:g} → {rates['at_the_end']:g}")


def main() -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default=",".join(event.name for event in EVENTS), help="default: all of %(default)s")
    parser.add_argument("--model", default="resnet50", help="a zoo name; default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="keep logs and histories, and say where")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save", action="store_true", help="keep the rows in benchmarks/results")
    given = parser.parse_args()
    return exit_status(lambda: _work(given))


if __name__ == "__main__":
    sys.exit(main())
