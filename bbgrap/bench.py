"""The honest measurement: plain onnxruntime on one node against the cluster, run by run in turns.

The single node is onnxruntime at all optimisations on the unmodified file, in this process, its input at hand, bound to as many cores
as it has threads (the first ones that this process may use). Then every planner's session has its turn; and so on. Warm-up is not
counted. Whoever is not in turn sleeps: agents wait for messages, and this process waits for the answer without computing.

Laws: times are medians and 95th percentiles; the speed-up is the median of the ratios *within* a turn, so that what slows the
whole machine for a while slows both sides; every answer is compared, not only the first.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import psutil

from bbgrap.engine.reference import Reference
from bbgrap.engine.sessions import usable_cores
from bbgrap.errors import ExecutionError, UsageError
from bbgrap.graph import Array
from bbgrap.planners.options import PlanOptions
from bbgrap.session import Connection, InferenceSession

TOLERANCE = {2: 1e-2, 4: 1e-4, 8: 1e-4}
"""Relative error up to which answers count as equal, by bytes per number: sums in another order change single operators by up to 2e-6
(float32, measured), which deep models add up; a wrong row changes answers by more than 1e-3."""

WARM_UP = 3
"""Turns that are not counted: caches, memory pools and the clock of the processor settle in them."""

SETTLE_S = 0.05
"""A pause between turns where there are helper threads: onnxruntime's spin for about 40 ms after a run, on cores that others need."""

BUSY_PERCENT = 10.0
"""Of this machine's processors, used by others: from here on times are not to be trusted. Chosen; a quiet machine is at 0-3."""

LOOK_S = 0.5
"""How long is looked, before and after the measurement, whether somebody else uses this machine."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far answers are from those of plain onnxruntime.

    `max_rel_err` is relative to the largest magnitude in the same output. `fault` says what is wrong beyond numbers, if anything.
    """

    max_abs_err: float
    max_rel_err: float
    bit_identical: bool
    within_tolerance: bool
    fault: str = ""

    @property
    def verified(self) -> bool:
        """Whether the answers are the same up to rounding."""
        return self.within_tolerance and not self.fault

    @property
    def text(self) -> str:
        """One line for people."""
        if self.fault:
            return f"NOT verified against plain onnxruntime: {self.fault}"
        errors = f"max absolute error {self.max_abs_err:.3g}, relative {self.max_rel_err:.3g}"
        verdict = "verified" if self.verified else "NOT verified"
        return f"{verdict} against plain onnxruntime: {'identical to the bit' if self.bit_identical else errors}"

    def as_dict(self) -> dict[str, Any]:
        """Return the keys of `bench --json`."""
        return {"max_abs_err": self.max_abs_err, "max_rel_err": self.max_rel_err, "bit_identical": self.bit_identical}

    def worse(self, other: Comparison) -> Comparison:
        """Return the worst of two comparisons, number by number."""
        return Comparison(
            max(self.max_abs_err, other.max_abs_err),
            max(self.max_rel_err, other.max_rel_err),
            self.bit_identical and other.bit_identical,
            self.within_tolerance and other.within_tolerance,
            self.fault or other.fault,
        )


SAME = Comparison(0.0, 0.0, bit_identical=True, within_tolerance=True)


def compare(got: Sequence[Array], expected: Sequence[Array]) -> Comparison:
    """Compare all outputs of a model with those of plain onnxruntime."""
    if len(got) != len(expected):
        return Comparison(0.0, 0.0, bit_identical=False, within_tolerance=False, fault=f"{len(got)} outputs instead of {len(expected)}")
    result = SAME
    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        result = result.worse(_compare_one(f"output {number}", np.asarray(mine), np.asarray(theirs)))
    return result


def _compare_one(who: str, mine: Array, theirs: Array) -> Comparison:
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        fault = f"{who}: expected {theirs.dtype}{list(theirs.shape)}, got {mine.dtype}{list(mine.shape)}"
        return Comparison(0.0, 0.0, bit_identical=False, within_tolerance=False, fault=fault)
    if theirs.dtype.kind == "O":
        identical = bool(np.array_equal(mine, theirs))
    else:
        identical = np.ascontiguousarray(mine).tobytes() == np.ascontiguousarray(theirs).tobytes()
    if identical:
        return SAME
    if theirs.dtype.kind not in "fc":
        return Comparison(0.0, 0.0, bit_identical=False, within_tolerance=False, fault=f"{who}: {theirs.dtype} values differ")
    wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
    known = np.isfinite(theirs)
    if not np.array_equal(mine[~known], theirs[~known], equal_nan=True) or not np.isfinite(mine[known]).all():
        return Comparison(0.0, 0.0, bit_identical=False, within_tolerance=False, fault=f"{who}: infinities or NaN differ")
    error = float(np.max(np.abs(mine[known].astype(wide) - theirs[known].astype(wide)), initial=0.0))
    largest = float(np.max(np.abs(theirs[known].astype(wide)), initial=0.0))
    relative = error / largest if largest else float(error > 0)
    allowed = TOLERANCE.get(theirs.dtype.itemsize, 1e-4)
    return Comparison(error, relative, bit_identical=False, within_tolerance=relative <= allowed)


class Contender:
    """A session on the cluster for one planner, with the times and the worst answer of its turns."""

    def __init__(self, model: Path, options: PlanOptions, cluster: Connection, report: Report) -> None:
        """Make the session; nothing is deployed yet."""

        def on_progress(progress: Any) -> None:  # noqa: ANN401 - the protocol's message; its three fields are plain
            report(f"{options.planner}: {progress.stage} {progress.done} of {progress.total}")

        self.options = options
        self.session = InferenceSession(model, cluster=cluster, options=options, on_progress=on_progress)
        self.times: list[float] = []
        self.comparison = SAME

    def turn(self, feeds: Mapping[str, Array], expected: Sequence[Array], *, counted: bool) -> None:
        """Run once, and compare the answer."""
        start = time.perf_counter()
        answers = self.session.run(None, feeds)
        took = time.perf_counter() - start
        self.comparison = self.comparison.worse(compare(answers, expected))
        if counted:
            self.times.append(took)

    def result(self, single: Sequence[float]) -> dict[str, Any]:
        """Return the entry of `results` in `bench --json`."""
        plan = self.session.plan.report
        done = plan["optimized"]
        return {
            "planner": self.options.planner,
            "split": self.options.split,
            **_times(self.times),
            "speedup": statistics.median(alone / mine for alone, mine in zip(single, self.times, strict=True)),
            **self.comparison.as_dict(),
            "verified": self.comparison.verified,
            "fault": self.comparison.fault or None,
            "bytes_sent": done["bytes"],
            "scatter_bytes": done["scatter_bytes"],
            "gather_bytes": done["gather_bytes"],
            "transfers": done["transfers"],
            "syncs": done["syncs"],
            "segments": done["segments"],
            "predicted_ms": plan["predicted_ms"],
            "nodes_used": plan["nodes_used"],
        }


def bench(
    model: Path,
    feeds: Mapping[str, Array],
    cluster: Connection,
    contenders: Sequence[PlanOptions],
    *,
    runs: int = 30,
    threads: int | None = None,
    name: str = "",
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Measure a model on one node and on the cluster, in turns.

    Args:
        model: The file.
        feeds: Its inputs.
        cluster: Where the agents are.
        contenders: One session each.
        runs: Turns that are counted.
        threads: Of the single node; None: as many as the cluster's largest agent has.
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
    count = min(threads or max((agent.threads for agent in agents), default=1), usable_cores())
    cores = first_cores(count)
    report("loading the single node")
    with bound_to(cores):
        reference = Reference(model, threads=count)
        expected = single_answer(reference, feeds)
    sessions = [Contender(model, options, cluster, report) for options in contenders]
    for contender in sessions:
        report(f"{contender.options.planner}: planning and deploying")
        contender.session.prepare({name: array.shape for name, array in feeds.items()})
    pause = SETTLE_S if count > 1 or any(agent.threads > 1 for agent in agents) else 0.0
    watch = MachineWatch()
    single: list[float] = []
    for turn in range(-WARM_UP, runs):
        time.sleep(pause)
        with bound_to(cores):
            start = time.perf_counter()
            reference.run(feeds)
            took = time.perf_counter() - start
        if turn >= 0:
            single.append(took)
        for contender in sessions:
            time.sleep(pause)
            contender.turn(feeds, expected, counted=turn >= 0)
        report(_standing(turn, runs, single, sessions))
    time.sleep(pause)
    return {
        "schema": 1,
        "model": name or model.stem,
        "inputs": {name: list(array.shape) for name, array in feeds.items()},
        "batch": next((array.shape[0] for array in feeds.values() if array.ndim), 1),
        "runs": runs,
        "warm_up": WARM_UP,
        "agents": [{key: value for key, value in asdict(agent).items() if key != "profile"} for agent in agents],
        "single_node": {**_times(single), "threads": count, "cores": sorted(cores), "onnxruntime": ort.__version__},
        "machine": watch.machine(),
        "results": [contender.result(single) for contender in sessions],
    }


def single_answer(reference: Reference, feeds: Mapping[str, Array]) -> list[Array]:
    """Return what plain onnxruntime answers.

    Raises:
        ExecutionError: if it fails; the message says that it is the single node's.
    """
    try:
        return reference.run(feeds)
    except ExecutionError as error:
        raise ExecutionError(f"single node: {error}") from None


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
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return frozenset(allowed[:count])


@contextmanager
def bound_to(cores: frozenset[int]) -> Iterator[None]:
    """Bind this thread, and those it starts, to some cores; where the system cannot, leave it free."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
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
        """Look, and begin."""
        self._before = psutil.cpu_percent(LOOK_S)
        self._used = _used_by_others()
        self._start = time.perf_counter()

    def machine(self) -> dict[str, Any]:
        """End, look again, and return `machine` of `bench --json`."""
        during = 100 * (_used_by_others() - self._used) / (time.perf_counter() - self._start) / (psutil.cpu_count() or 1)
        others = [self._before, max(0.0, during), psutil.cpu_percent(LOOK_S)]
        return {
            "processor": _processor(),
            "cores": usable_cores(),
            "system": platform.platform(),
            "others_percent": [round(value, 1) for value in others],  # before, during and after the measurement
            "busy": max(others) > BUSY_PERCENT,
        }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
