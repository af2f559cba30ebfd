"""How many requests a cluster answers per second, against plain onnxruntime on one node: in blocks, in turns.

In its block the single node runs one request after the other, as in `bench`; in the block of a cluster's session several are on their way
at once. A block's rate is its requests over all the time from the first request to the last answer, its slow beginning and end included.
Laws: rates are medians over blocks, the ratio is the median of the ratios within a pair of blocks; every answer is compared.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bbgrap.bench import SETTLE_S, Contender, MachineWatch, ReportLine, SingleNode, first_cores, head_of, replaced, threads_beside
from bbgrap.comparison import Evidence
from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.errors import UsageError
from bbgrap.graph import Array
from bbgrap.planners.options import PlanOptions
from bbgrap.session import Connection

BLOCKS = 5
"""Turns of the single node and of the cluster. Chosen: a median that one disturbed pair of blocks does not move."""

PER_AGENT = 2
"""Requests on their way per agent, unless told otherwise: one that it works on, and the input of the next one."""


def measure_stream(
    model: Path,
    feeds: Mapping[str, Array],
    cluster: Connection,
    contenders: Sequence[PlanOptions],
    *,
    requests: int,
    in_flight: int | None = None,
    threads: int | None = None,
    name: str = "",
    report: ReportLine = lambda _: None,
) -> dict[str, Any]:
    """Measure how many requests per second a cluster answers.

    Args:
        model: The file.
        feeds: The inputs of every request.
        cluster: Where the agents are.
        contenders: One session each.
        requests: So many per contender and for the single node, in `BLOCKS` blocks.
        in_flight: Requests on their way at once; None: `PER_AGENT` for each agent.
        threads: Of the single node; None: as many as the cluster's largest agent has.
        name: What to call the model; default: as its file.
        report: Told how far it is, between blocks.

    Returns:
        The object of `bench --stream --json`.

    Raises:
        BbgrapError: if the model, its inputs or the cluster fail.
    """
    if requests < BLOCKS or not contenders:
        raise UsageError(f"stream: expected at least {BLOCKS} requests and one planner, got {requests} and {len(contenders)}")
    agents = cluster.nodes()
    together = in_flight or PER_AGENT * max(1, len(agents))
    count = threads_beside(agents, threads)
    report("loading the single node")
    alone = SingleNode(model, count, first_cores(count))
    expected = alone.turn(feeds, counted=False)
    sessions = [_Stream(model, options, cluster, expected, report) for options in contenders]
    for session in sessions:
        report(f"{session.options.planner}: planning and deploying")
        session.prepare(feeds)
        session.block(feeds, together, together, counted=False)
    each = requests // BLOCKS
    watch = MachineWatch()
    single: list[float] = []
    for block in range(BLOCKS):
        time.sleep(SETTLE_S)
        alone.turn(feeds, counted=False)
        for _ in range(each):
            alone.turn(feeds, counted=True)
        single.append(each / sum(alone.times[-each:]))
        for session in sessions:
            time.sleep(SETTLE_S)
            session.block(feeds, each, together, counted=True)
        rates = [f"{session.options.planner} {statistics.median(session.rates):.1f}" for session in sessions]
        report(f"block {block + 1} of {BLOCKS}: single node {statistics.median(single):.1f} per second, {', '.join(rates)}")
    machine, evidence = watch.machine(), ReferenceAnswers(model, feeds, expected)
    return {
        **head_of(name or model.stem, agents),
        "inputs": {key: list(array.shape) for key, array in feeds.items()},
        "requests": BLOCKS * each,
        "blocks": BLOCKS,
        "in_flight": together,
        "single_node": alone.result() | {"per_s": _rounded(single)},
        "machine": machine,
        "results": [session.rated(evidence, single) for session in sessions],
    }


class _Stream(Contender):
    """A session on the cluster, with the rates of its blocks."""

    def __init__(self, model: Path, options: PlanOptions, cluster: Connection, expected: Sequence[Array], report: ReportLine) -> None:
        super().__init__(model, options, cluster, expected, report)
        self.rates: list[float] = []

    def block(self, feeds: Mapping[str, Array], requests: int, at_once: int, *, counted: bool) -> None:
        """Run requests, so many at once, and compare their answers."""

        def one(_: int) -> None:
            self._judge.count(self.session.run(None, feeds))

        with ThreadPoolExecutor(at_once, "stream") as pool:
            start = time.perf_counter()
            list(pool.map(one, range(requests)))
            took = time.perf_counter() - start
        if counted:
            self.rates.append(requests / took)

    def rated(self, evidence: Evidence, single: Sequence[float]) -> dict[str, Any]:
        """Return the entry of `results`; it may ask for the evidence."""
        comparison = self.verdict(evidence)
        now = self.session.plan
        shown = json.loads(self.session.connection.shown_plan(now.key).report)  # with what its requests took by now
        return {
            "planner": self.options.planner,
            "objective": self.options.objective,
            "throughput_per_s": statistics.median(self.rates),
            "single_per_s": statistics.median(single),
            "throughput_ratio": statistics.median(mine / alone for alone, mine in zip(single, self.rates, strict=True)),
            "per_s": _rounded(self.rates),
            **comparison.as_dict(),
            "verified": comparison.verified,
            "fault": comparison.fault or None,
            "nodes_used": now.report.get("nodes_used", []),
            "measured": shown.get("measured"),
            "replaced": replaced(self._plan, now),
        }


def _rounded(rates: Sequence[float]) -> list[float]:
    return [round(rate, 3) for rate in rates]
