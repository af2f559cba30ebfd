"""One full core and one half core: does planner `auto` give the slow node less work, and is that faster than the fast node alone?

    python -m benchmarks.unequal --model vgg16 --runs 15 --json          (Linux, as root: the half core is a cgroup quota)

Two agents, a core each; the second one's processor time is limited to a part of its core. Both are profiled under that limit. Plain
onnxruntime on the first core, an even split by rows that knows nothing of the profiles, and `auto` take turns, run by run.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from bbgrap.bench import WARM_UP, Contender, SingleNode, first_cores
from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.inputs import read_inputs
from bbgrap.cli.models import find_model
from bbgrap.cli.output import print_table, say
from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.local import LocalCluster
from bbgrap.planners.options import PlanOptions

CGROUP = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 4_000
"""A throttled agent stalls for at most half of this at a time. Half a core by quota is less in fact: a loop on one thread got 0.46 of
a core with periods of 4 ms, 0.40 with 2 ms (measured here)."""


@contextmanager
def limited(pid: int, part: float) -> Iterator[None]:
    """Hold a process, its children, and what they start, to a part of one core.

    Raises:
        OSError: where there are no cgroups of version 1, or this is not root.
    """

    def move(to: Path) -> None:
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            (to / "cgroup.procs").write_text(str(process.pid))

    group = CGROUP / f"bbgrap-unequal-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(round(PERIOD_US * part)))
        move(group)
        yield
        move(CGROUP)
    finally:
        group.rmdir()


def measure(model: str, part: float, runs: int) -> dict[str, Any]:
    """Return the medians of all contenders, and how much work the slow node got."""
    path = find_model(f"zoo:{model}")
    feeds = read_inputs(path, GivenInputs()).feeds(0)
    fast = SingleNode(path, 1, first_cores(1))
    expected = fast.turn(feeds, counted=False)
    with LocalCluster(agents=2) as cluster, limited(cluster.processes["agent1"].pid, part):
        even = Contender(path, PlanOptions(), cluster.connection, expected, say)
        even.prepare(feeds)  # before anything is measured: both nodes count as equal
        say("measuring the nodes")
        cluster.connection.profile()
        auto = Contender(path, PlanOptions("auto"), cluster.connection, expected, say)
        auto.prepare(feeds)
        for turn in range(-WARM_UP, runs):
            fast.turn(feeds, counted=turn >= 0)
            for contender in (even, auto):
                contender.turn(feeds, counted=turn >= 0)
        report = auto.session.plan.report
    evidence = ReferenceAnswers(path, feeds, expected)
    return {
        "model": model,
        "part_of_a_core": part,
        "fast_node_ms": 1e3 * statistics.median(fast.times),
        "even_ms": 1e3 * statistics.median(even.times),
        "auto_ms": 1e3 * statistics.median(auto.times),
        "auto_against_fast_node": statistics.median(a / b for a, b in zip(fast.times, auto.times, strict=True)),
        "auto_against_even": statistics.median(a / b for a, b in zip(even.times, auto.times, strict=True)),
        "predicted_ms": report["predicted_ms"],
        "predicted_compute_ms": {name: of["compute_ms"] for name, of in report["predicted_nodes"].items()},
        "measured": report.get("measured"),
        "verified": even.verdict(evidence).verified and auto.verdict(evidence).verified,
    }


def main(
    model: Annotated[str, typer.Option(help="A zoo model.")] = "vgg16",
    part: Annotated[float, typer.Option(min=0.1, max=1.0, help="What the second agent has of its core.")] = 0.5,
    runs: Annotated[int, typer.Option(min=3)] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, alone on stdout.")] = False,
) -> None:
    """Measure planner auto on unequal nodes."""
    if not CGROUP.is_dir() or os.geteuid():
        say("unequal: it needs Linux with cgroups of version 1, and root")
        sys.exit(1)
    found = measure(model, part, runs)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_table(("", ""), list(found.items()), title=f"{model}: one core and {part} of a core")


if __name__ == "__main__":
    typer.run(main)
