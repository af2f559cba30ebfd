"""What locks cost: the same plan on two clusters that are locked in different ways, request by request in turns.

Both clusters have their agents on the same two cores and the same link, and are given the profiles that were measured on the first one, so
that they plan alike; whether they did is checked, tile by tile, before and after. They must come to rest before anything is timed.

Laws: each cluster's counted request comes right after one that is not counted, for the other one had the caches; who is first alternates;
the price is the median of the ratios within a turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bbgrap.bench import WARM_UP, Contender, MachineWatch
from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.inputs import read_inputs
from bbgrap.cli.models import find_model
from bbgrap.cli.output import print_table, step
from bbgrap.engine.reference import Reference
from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.errors import ClusterUnavailableError, UsageError
from bbgrap.planners.options import PlanOptions
from benchmarks.processes import tree, used_s
from benchmarks.testbed import Reached

REST_PERCENT = 8.0
"""Of a core, used by a cluster that nobody asks; its heartbeats take 2 to 5, measured."""
_REST_WITHIN_S = 120.0
_LOOK_S = 1.0


@dataclass
class _Side:
    """One of the clusters, with its session and the times of its turns."""

    lock: str
    reached: Reached
    contender: Contender
    idle_percent: float = 0.0

    @property
    def report(self) -> Mapping[str, Any]:
        """What its plan says."""
        return self.contender.session.plan.report

    @property
    def layout(self) -> object:
        """What makes two plans the same: every tile of every node, and what travels."""
        report = self.report
        return report["nodes"], report["optimized"]

    @property
    def used_s(self) -> float:
        """Seconds that the cluster's processes have computed."""
        return sum(used_s(tree(number)) for number in self.reached.processes)


def compare(
    clusters: Mapping[str, Reached], source: str, batch: int, options: PlanOptions, runs: int, pictures: bool = False
) -> dict[str, Any]:
    """Measure a model on clusters by the names of their locks; from inside the first machine.

    Raises:
        UsageError: if they do not plan alike.
        ClusterUnavailableError: if they do not come to rest.
    """
    path = find_model(source)
    feeds = read_inputs(path, GivenInputs(batch=batch)).feeds(0, pictures=pictures)
    expected = Reference(path, threads=1).run(feeds)
    with ExitStack() as stack, step("measuring") as progress:
        connections = [stack.enter_context(reached.connect()) for reached in clusters.values()]
        progress.update("profiling nodes and link")
        for profile in connections[0].profile():
            for connection in connections:
                connection.add_profile(profile)
        sides = []
        for (lock, reached), connection in zip(clusters.items(), connections, strict=True):
            progress.update(f"{lock}: planning and deploying")
            sides.append(_Side(lock, reached, Contender(path, options, connection, expected, progress.update)))
            sides[-1].contender.prepare(feeds)
        progress.update("waiting for rest")
        _rest(sides)
        _check_alike(sides)
        watch = MachineWatch()
        for turn in range(-WARM_UP, runs):
            for side in sides if turn % 2 else reversed(sides):
                for counted in (False, True) if turn >= 0 else (False,):
                    side.contender.turn(feeds, counted=counted)
            progress.update(f"run {turn + 1} of {runs}")
        machine = watch.machine()
        _check_alike(sides)
        evidence = ReferenceAnswers(path, feeds, expected)
        report = sides[0].report
        return {
            "planner": options.planner,
            "split": options.split,
            "serving": report.get("serving", ""),
            "bytes": report["optimized"]["bytes"],
            "exchanges": report["optimized"]["syncs"],
            "nodes_used": report["nodes_used"],
            "runs": runs,
            "machine": machine,
            **prices({side.lock: side.contender.times for side in sides}),
            "idle_percent": {side.lock: round(side.idle_percent, 2) for side in sides},
            "verified": all(side.contender.verdict(evidence).verified for side in sides),
        }


def prices(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return medians in ms by lock, and what the first costs more than the second, in percent: median and quartiles of paired ratios."""
    first, second = list(times.values())[:2]
    ratios = [100 * (mine / its - 1) for mine, its in zip(first, second, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "median_ms": {lock: round(1e3 * statistics.median(each), 3) for lock, each in times.items()},
        "times_ms": {lock: [round(1e3 * value, 3) for value in each] for lock, each in times.items()},
        "more_percent": round(statistics.median(ratios), 2),
        "more_percent_quartiles": [round(low, 2), round(high, 2)],
        "more_ms": round(1e3 * statistics.median(mine - its for mine, its in zip(first, second, strict=True)), 3),
    }


def print_prices(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of a measurement."""
    locks = list(rows[0]["median_ms"])
    columns = ("model", "batch", "link", "plan", *(f"{lock} ms" for lock in locks), "more %", "quartiles", "more ms", "bytes", "exchanges")
    cells = [
        (
            *(row[key] for key in ("model", "batch", "link")),
            f"{row['planner']}: {row['serving']}",
            *(row["median_ms"][lock] for lock in locks),
            row["more_percent"],
            " to ".join(f"{value:g}" for value in row["more_percent_quartiles"]),
            *(row[key] for key in ("more_ms", "bytes", "exchanges")),
        )
        for row in rows
    ]
    print_table(columns, cells, title=f"what {locks[0]} costs over {locks[1]}: two agents each, one core each, request by request in turns")


def _check_alike(sides: Sequence[_Side]) -> None:
    """See that all run the same plan.

    Raises:
        UsageError: if not.
    """
    if any(side.layout != sides[0].layout for side in sides):
        plans = ", ".join(f"{side.lock}: {side.report.get('serving', '')}" for side in sides)
        raise UsageError(f"locks: the clusters run different plans ({plans}); name a planner, as --planners bbgrap:rows, or measure again")


def _rest(sides: Sequence[_Side]) -> None:
    """Wait until no cluster does anything by itself, and note how much each still does.

    Raises:
        ClusterUnavailableError: if one goes on.
    """
    until = time.monotonic() + _REST_WITHIN_S
    while True:
        before = [side.used_s for side in sides]
        began = time.monotonic()
        time.sleep(_LOOK_S)
        for side, used in zip(sides, before, strict=True):
            side.idle_percent = 100 * (side.used_s - used) / (time.monotonic() - began)
        if all(side.idle_percent < REST_PERCENT for side in sides):
            return
        if time.monotonic() > until:
            busy = ", ".join(f"{side.lock} uses {side.idle_percent:.0f} % of a core" for side in sides)
            raise ClusterUnavailableError(f"locks: after {_REST_WITHIN_S:g} s without requests {busy}; expected below {REST_PERCENT:g} %")
