"""The honest measurement: plain onnxruntime on one node against the cluster, run by run in turns.

The single node is onnxruntime at all optimisations on the unmodified file, in this process, its input at hand, bound to as many cores
as it has threads (the first ones that this process may use). Then every planner's session has its turn, each time another one first; and
so on. Warm-up is not counted. Whoever is not in turn sleeps: agents wait for messages, and this process waits for the answer without
computing. Cores that have slept are slow at first, so everybody's counted run comes right after one that is not counted.

Laws: times are medians and 95th percentiles; the speed-up is the median of the ratios *within* a turn, so that what slows the
whole machine for a while slows both sides; every answer is compared, not only the first.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import psutil

from bbgrap.comparison import Comparison, Evidence, Judge
from bbgrap.engine.reference import Reference
from bbgrap.engine.sessions import usable_cores
from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.errors import ExecutionError, UsageError
from bbgrap.graph import Array
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.status_messages import NodeStatus
from bbgrap.session import Connection, InferenceSession
from bbgrap.session.answers import PreparedPlan

WARM_UP = 3
"""Turns that are not counted: caches, memory pools and the clock of the processor settle in them."""

SETTLE_S = 0.05
"""A pause between turns where there are helper threads: onnxruntime's spin for about 40 ms after a run, on cores that others need."""

LEAD_S = 1.0
"""Runs that take longer than this are not led in by one that is not counted: the first milliseconds are nothing to them."""

BUSY_PERCENT = 10.0
"""Of this machine's processors, used by others: from here on times are not to be trusted. Chosen; a quiet machine is at 0-3."""

LOOK_S = 0.5
"""How long is looked, before and after the measurement, whether somebody else uses this machine."""

ReportLine = Callable[[str], None]


class SingleNode:
    """Plain onnxruntime on some cores of this machine, with the times of its turns."""

    def __init__(self, model: Path, threads: int, cores: frozenset[int]) -> None:
        self.threads = threads
        self.cores = cores
        self.times: list[float] = []
        self.last_s = 0.0
        with bound_to(cores):
            self._reference = Reference(model, threads=threads)

    def turn(self, feeds: Mapping[str, Array], *, counted: bool) -> list[Array]:
        """Run once, and return the answer."""
        with bound_to(self.cores):
            start = time.perf_counter()
            try:
                answer = self._reference.run(feeds)
            except ExecutionError as error:
                raise ExecutionError(f"single node: {error}") from None
            took = time.perf_counter() - start
        self.last_s = took
        if counted:
            self.times.append(took)
        return answer

    def result(self) -> dict[str, Any]:
        """Return the object `single_node` of `bench --json`."""
        return {**_times(self.times), "threads": self.threads, "cores": sorted(self.cores), "onnxruntime": ort.__version__}


class Contender:
    """A session on the cluster for one planner, with the times and the worst answer of its turns."""

    def __init__(self, model: Path, options: PlanOptions, cluster: Connection, expected: Sequence[Array], report: ReportLine) -> None:
        """Make the session; nothing is deployed yet. Its answers will be compared with the expected one."""

        def on_progress(progress: Any) -> None:  # noqa: ANN401 - the protocol's message; its text is plain
            report(f"{options.planner}: {progress.text}")

        self.options = options
        self.session = InferenceSession(model, cluster=cluster, options=options, on_progress=on_progress)
        self.times: list[float] = []
        self.last_s = 0.0
        self._judge = Judge(expected, options.transfer_dtype)

    def prepare(self, feeds: Mapping[str, Array]) -> None:
        """Wait for the plan."""
        self._plan = self.session.prepare({name: array.shape for name, array in feeds.items()}, feeds)

    def turn(self, feeds: Mapping[str, Array], *, counted: bool) -> None:
        """Run once, and compare the answer."""
        start = time.perf_counter()
        answers = self.session.run(None, feeds)
        took = time.perf_counter() - start
        self._judge.count(answers)
        self.last_s = took
        if counted:
            self.times.append(took)

    def verdict(self, evidence: Evidence) -> Comparison:
        """Return the worst comparison of all turns; it may ask for the evidence, which takes its time."""
        return self._judge.verdict(evidence)

    def result(self, evidence: Evidence, single: Sequence[float], whole_machine: Sequence[float] | None = None) -> dict[str, Any]:
        """Return the entry of `results` in `bench --json`; times of the others in the same turns."""
        now = self.session.plan
        comparison, plan, done = self.verdict(evidence), now.report, now.report.get("optimized", {})
        return {
            "planner": self.options.planner,
            "split": self.options.split,
            **_times(self.times),
            "speedup": _median_ratio(single, self.times),
            "whole_machine_ratio": None if whole_machine is None else _median_ratio(whole_machine, self.times),
            **comparison.as_dict(),
            "verified": comparison.verified,
            "fault": comparison.fault or None,
            "dictionaries": plan.get("dictionaries", []),
            "bytes_sent": done.get("bytes"),
            **{key: done.get(key) for key in ("scatter_bytes", "gather_bytes", "transfers", "syncs", "segments")},
            "predicted_ms": plan.get("predicted_ms"),
            "nodes_used": plan.get("nodes_used", []),
            "replaced": replaced(self._plan, now),
        }


def bench(
    model: Path,
    feeds: Mapping[str, Array],
    cluster: Connection,
    contenders: Sequence[PlanOptions],
    *,
    runs: int = 30,
    threads: int | None = None,
    whole_machine: frozenset[int] = frozenset(),
    name: str = "",
    report: ReportLine = lambda _: None,
) -> dict[str, Any]:
    """Measure a model on one node and on the cluster, in turns.

    Args:
        model: The file.
        feeds: Its inputs.
        cluster: Where the agents are.
        contenders: One session each.
        runs: Turns that are counted.
        threads: Of the single node; None: as many as the cluster's largest agent has.
        whole_machine: Cores on which plain onnxruntime has turns of its own, with a thread on each: what shared memory would give.
            None: no such turns.
        name: What to call the model; default: as its file.
        report: Told how far it is; called between turns only.

    Returns:
        The object of `bench --json`.

    Raises:
        BbgrapError: if the model, its inputs or the cluster fail.
    """
    if runs < 1 or not contenders:
        raise UsageError(f"bench: expected at least one run and one planner, got {runs} and {len(contenders)}")
    agents = cluster.nodes()
    count = threads_beside(agents, threads)
    report("loading the single node")
    single = SingleNode(model, count, first_cores(count))
    expected = single.turn(feeds, counted=False)
    whole = [SingleNode(model, len(whole_machine), whole_machine)] if whole_machine else []
    sessions = [Contender(model, options, cluster, expected, report) for options in contenders]
    for contender in sessions:
        report(f"{contender.options.planner}: planning and deploying")
        contender.prepare(feeds)
    pause = SETTLE_S if count > 1 or any(agent.threads > 1 for agent in agents) else 0.0
    watch = MachineWatch()
    for turn in range(-WARM_UP, runs):
        for alone in (*whole, single):
            for counted in _led(alone.last_s, turn):
                alone.turn(feeds, counted=counted)
            time.sleep(SETTLE_S if alone in whole else pause)
        first = turn % len(sessions)
        for contender in (*sessions[first:], *sessions[:first]):
            for counted in _led(contender.last_s, turn):
                contender.turn(feeds, counted=counted)
            time.sleep(pause)
        report(_standing(turn, runs, single.times, sessions))
    machine, evidence = watch.machine(), ReferenceAnswers(model, feeds, expected)
    return {
        **head_of(name or model.stem, agents),
        "inputs": {name: list(array.shape) for name, array in feeds.items()},
        "batch": next((array.shape[0] for array in feeds.values() if array.ndim), 1),
        "runs": runs,
        "warm_up": WARM_UP,
        "single_node": single.result(),
        "whole_machine": whole[0].result() if whole else None,
        "machine": machine,
        "results": [contender.result(evidence, single.times, whole[0].times if whole else None) for contender in sessions],
    }


def threads_beside(agents: Sequence[NodeStatus], threads: int | None) -> int:
    """Return how many threads the single node has: those asked for, or as many as the largest agent."""
    return min(threads or max((agent.threads for agent in agents), default=1), usable_cores())


def head_of(model: str, agents: Sequence[NodeStatus]) -> dict[str, Any]:
    """Return what every measurement says first: of which model it is, and on which agents."""
    told = [{key: value for key, value in asdict(agent).items() if key != "profile"} for agent in agents]
    return {"schema": 1, "model": model, "agents": told}


def replaced(plan: PreparedPlan, now: PreparedPlan) -> str | None:
    """Return in words that not all of a measurement was of the plan that it began with; None if that was for the same agents."""
    if plan.agents == now.agents:
        return None
    return f"agents were lost or joined: not all requests had the plan for {', '.join(plan.agents)}; measure again"


def _led(last_s: float, turn: int) -> tuple[bool, ...]:
    """Return for every run of somebody's turn whether it is counted."""
    return (False,) if turn < 0 else (True,) if last_s > LEAD_S else (False, True)


def _median_ratio(theirs: Sequence[float], mine: Sequence[float]) -> float:
    return statistics.median(their / my for their, my in zip(theirs, mine, strict=True))


def _times(seconds: Sequence[float]) -> dict[str, Any]:
    milliseconds = [1e3 * value for value in seconds]
    return {
        "median_ms": statistics.median(milliseconds),
        "p95_ms": float(np.percentile(milliseconds, 95)),
        "times_ms": [round(value, 3) for value in milliseconds],
    }


def _standing(turn: int, runs: int, single: Sequence[float], sessions: Sequence[Contender]) -> str:
    if turn < 0:
        return f"warm-up {turn + WARM_UP + 1} of {WARM_UP}"
    medians = [f"{contender.options.planner} {1e3 * statistics.median(contender.times):.1f} ms" for contender in sessions]
    return f"run {turn + 1} of {runs}: single node {1e3 * statistics.median(single):.1f} ms, {', '.join(medians)}"


def first_cores(count: int) -> frozenset[int]:
    """Return the first cores that this process may use; none where the system does not say."""
    allowed: list[int] = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return frozenset(allowed[:count])


@contextmanager
def bound_to(cores: frozenset[int]) -> Iterator[None]:
    """Bind this thread, and those it starts, to some cores; where the system cannot, leave it free."""
    if sys.platform != "linux" or not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    with suppress(OSError):  # a sandbox may forbid it
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


def _used_by_others() -> float:
    """Return the seconds that this machine's processors have worked for other programs than bbgrap's, since some start."""
    times = psutil.cpu_times()
    total = sum(getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))
    for process in psutil.process_iter(["pid", "cmdline", "cpu_times"]):
        ours = process.pid == os.getpid() or any("bbgrap" in Path(word).name for word in (process.info["cmdline"] or ())[:3])
        if ours and process.info["cpu_times"]:
            total -= process.info["cpu_times"].user + process.info["cpu_times"].system
    return total


class MachineWatch:
    """Looks whether somebody else uses this machine, before, during and after a measurement."""

    def __init__(self) -> None:
        self._before = psutil.cpu_percent(LOOK_S)
        self._used = _used_by_others()
        self._start = time.perf_counter()

    def machine(self) -> dict[str, Any]:
        """End, look again, and return `machine` of `bench --json`."""
        during = 100 * (_used_by_others() - self._used) / (time.perf_counter() - self._start) / (psutil.cpu_count() or 1)
        others = [self._before, max(0.0, during), psutil.cpu_percent(LOOK_S)]
        return {
            "processor": processor_name(),
            "cores": usable_cores(),
            "system": platform.platform(),
            "others_percent": [round(value, 1) for value in others],  # before, during and after the measurement
            "busy": max(others) > BUSY_PERCENT,
        }


def processor_name() -> str:
    """Return what this machine's processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
