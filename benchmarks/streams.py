"""How many single requests per second do two machines answer, against one core of plain onnxruntime?

    python -m benchmarks.streams --models resnet50 --links loopback,1gbit --part 0.5 --json

Two agents, a core each, joined by every link in turn; with `--part`, then on loopback with the second held to a part of its core. Client
and coordinator share the first machine's core. Several requests are on their way at once, answers are compared. Links and parts of a core
need root on Linux. Rows are added to `benchmarks/results/streams.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.inputs import read_inputs
from bbgrap.cli.models import find_model
from bbgrap.cli.output import print_json, print_table, say
from bbgrap.local import LocalCluster
from bbgrap.planners.options import PlanOptions
from bbgrap.session import Connection
from bbgrap.stream import measure_stream
from benchmarks.exit_status import exit_status
from benchmarks.kept import RESULTS, keep
from benchmarks.testbed import Rate, Reached, at, can_limit, open_testbed
from benchmarks.unequal import CGROUP, limited

KEY = ("model", "link", "part_of_second_core")
"""What makes two rows the same measurement."""


def measure(connection: Connection, model: str, requests: int) -> dict[str, Any]:
    """Measure a stream over a cluster, by planner `auto` for throughput."""
    path = find_model(f"zoo:{model}")
    feeds = read_inputs(path, GivenInputs()).feeds(0)
    options = PlanOptions("auto", objective="throughput")
    return measure_stream(path, feeds, connection, [options], requests=requests, threads=1, name=model, report=say)


def over_link(coordinator: Reached, model: str, requests: int) -> dict[str, Any]:
    """Measure as a client of a test-bed's coordinator, on this process's core."""
    with coordinator.connect() as connection:
        return measure(connection, model, requests)


def on_part(model: str, part: float, requests: int) -> dict[str, Any]:
    """Measure with the second agent held to a part of its core, and profiled under that limit."""
    with LocalCluster(agents=2) as cluster, limited(cluster.processes["agent1"].pid, part):
        say("measuring the nodes")
        cluster.connection.profile()
        return measure(cluster.connection, model, requests)


def row_of(report: Mapping[str, Any], link: str, part: float, date: str) -> dict[str, Any]:
    """Return the row of one stream."""
    result = report["results"][0]
    return {
        "model": report["model"],
        "link": link,
        "part_of_second_core": part,
        "in_flight": report["in_flight"],
        "requests": report["requests"],
        "single_per_s": result["single_per_s"],
        "throughput_per_s": result["throughput_per_s"],
        "throughput_ratio": result["throughput_ratio"],
        "per_s": result["per_s"],
        "verified": result["verified"],
        "facts": {"date": date, "onnxruntime": report["single_node"]["onnxruntime"], **report["machine"]},
    }


def _work(given: argparse.Namespace) -> int:
    rows = []
    for model in given.models.split(","):
        for rate in [Rate.parse(name) for name in given.links.split(",") if name]:
            say(f"{model}, {rate.name}")
            with open_testbed(rate) as bed:
                report = at(bed.places[0], over_link, bed.coordinator, model, given.requests)
            rows.append(row_of(report, rate.name, 1.0, datetime.now(UTC).isoformat(timespec="seconds")))
        if given.part is not None:
            say(f"{model}, one core and {given.part:g} of a core")
            report = on_part(model, given.part, given.requests)
            rows.append(row_of(report, "loopback", given.part, datetime.now(UTC).isoformat(timespec="seconds")))
    if given.save:
        keep(rows, RESULTS / "streams.json", KEY)
    if given.json:
        print_json(rows)
    else:
        header = ("model", "link", "second core", "one core, per s", "cluster, per s", "ratio")
        keys = ("part_of_second_core", "single_per_s", "throughput_per_s", "throughput_ratio")
        cells = [(row["model"], row["link"], *(f"{row[key]:.3g}" for key in keys)) for row in rows]
        print_table(header, cells, title="Streams of single requests")
    return 0


def main() -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50", help="zoo names; default: %(default)s")
    parser.add_argument("--links", default="loopback,1gbit" if can_limit() else "loopback", help="default: %(default)s")
    parser.add_argument("--part", type=float, default=None, help="also measure with the second agent on this part of its core, like 0.5")
    parser.add_argument("--requests", type=int, default=400, help="of every stream; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save", action="store_true", help="keep the rows in benchmarks/results")
    given = parser.parse_args()
    if given.part is not None and (not can_limit() or not CGROUP.is_dir() or not 0 < given.part <= 1):
        parser.error(f"part: expected a number up to 1, Linux with cgroups of version 1, and root, got {given.part}")
    return exit_status(lambda: _work(given))


if __name__ == "__main__":
    sys.exit(main())
