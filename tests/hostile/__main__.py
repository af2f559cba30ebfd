"""Hostile models against a cluster that serves somebody else meanwhile: python -m tests.hostile --seeds 0..1000.

Each model is brought as it is, by a client that does not look into it, and run on the standby or, every other one, on a plan. It must be
refused in words, or answer as onnxruntime does, in time; nobody else may notice. Prints what was found, and ends with 1 if that is bad.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from onnx import helper

import bbgrap
from bbgrap.cli.output import say
from bbgrap.errors import BbgrapError
from bbgrap.graph.types import DType
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import ModelPrepared, PrepareModel, RunModel, RunResult
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import TensorHeader
from bbgrap.protocol.tensors import decode_array, encode_array
from bbgrap.session.calls import CallFailedError
from bbgrap.session.connection import Connection, connect
from bbgrap.session.model_files import ModelFiles
from bbgrap.zoo import materialize
from tests.hostile.kinds import HostileModel, make
from tests.hostile_models import chain
from tests.known_agents import known_cluster

SECONDS = 10.0
"""Deadline of each request, from the moment it is brought, unless another is asked for."""
GRACE_S = 2.0
HELD_S = 120.0
"""How long new models may have to wait after one that never ends: each is proved before its plans are loaded, for 30 s at most."""
GROWTH_BYTES = 256 << 20
"""By how much the coordinator, or a nanny, may be larger at the end: after 500 models it was 102 MB and 50 MB."""
KNOWN_PAUSE_S = 0.02
UNTIDY = ("traceback", "is none")


@dataclass
class Known:
    """A client of a model that everybody knows, in a thread.

    Invariants: `slowest_s` and `failures` are of all requests so far.
    """

    address: str
    requests: int = 0
    slowest_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.connection = connect(self.address)
        self.session = bbgrap.InferenceSession(str(materialize("tiny")), cluster=self.connection, planner="bbgrap")
        self.feed = {"input": np.linspace(0, 1, 3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32)}
        self.answer = self.session.run(None, self.feed)[0]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while not self.stopping.wait(KNOWN_PAUSE_S):
            began = time.monotonic()
            try:
                if not np.allclose(self.session.run(None, self.feed)[0], self.answer, rtol=1e-4, atol=1e-6):
                    self.failures.append("another answer")
            except BbgrapError as error:
                self.failures.append(str(error))
            self.requests += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)


@dataclass
class Outcome:
    """How one model fared: refused, agrees, differs, alone (only here it answers), or late."""

    seed: int
    kind: str
    how: str
    said: str
    seconds: float
    peak: int


class Field:
    """A cluster under attack, and who watches it."""

    def __init__(self, cluster: bbgrap.LocalCluster, seconds: float) -> None:
        self.cluster = cluster
        self.seconds = seconds
        self.connection: Connection = connect(cluster.address)
        self.known = Known(cluster.address)
        self.before = self.sizes()
        self.children: set[int] = set()

    def close(self) -> None:
        """Let the known client end, and close the connections."""
        self.known.stopping.set()
        self.known.thread.join()
        self.known.connection.close()
        self.connection.close()

    def sizes(self) -> dict[str, int]:
        """Return the memory of the processes that serve."""
        return {name: psutil.Process(process.pid).memory_info().rss for name, process in self.cluster.processes.items()}

    def peak(self, *, anew: bool = False) -> int:
        """Return the most memory that a planner's process has had, since it was asked `anew`."""
        most = 0
        for child in psutil.Process(self.cluster.processes["coordinator"].pid).children():
            self.children.add(child.pid)
            with suppress(OSError, StopIteration):
                if anew:
                    Path(f"/proc/{child.pid}/clear_refs").write_text("5")
                lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
                most = max(most, next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")))
        return most

    def workers(self) -> set[int]:
        """Return the processes that compute."""
        agents = [process for name, process in self.cluster.processes.items() if name != "coordinator"]
        return {child.pid for process in agents for child in psutil.Process(process.pid).children()}

    def attack(self, seed: int, hostile: HostileModel, folder: Path) -> Outcome:
        """Bring a model, run it, and judge the answer."""
        self.peak(anew=True)
        feeds = {name: _array(code, shape, seed) for name, (code, shape) in hostile.feeds.items()}
        began = time.monotonic()
        try:
            found, said = self._run(hostile, feeds, seed), ""
            how = ""
        except (CallFailedError, BbgrapError, TimeoutError, ValueError) as error:
            found, said = None, str(error) or type(error).__name__
            how = "refused"
            if isinstance(error, TimeoutError) or time.monotonic() - began > self.seconds + GRACE_S:
                how = "late"
        seconds = time.monotonic() - began
        return Outcome(seed, hostile.kind, how or _judge(hostile, feeds, found, folder), said, seconds, self.peak())

    def wait(self, home: Path, seed: int) -> float:
        """Bring a harmless model that is new until it is answered; return how long that took, in seconds."""
        began = time.monotonic()
        while time.monotonic() - began < 2 * HELD_S:
            with tempfile.TemporaryDirectory(dir=home) as folder:
                path = Path(folder) / "model.onnx"
                path.write_bytes(chain(5 + seed % 1000).SerializeToString())
                (path.parent / "w.bin").write_bytes(b"")
                with suppress(CallFailedError, TimeoutError):
                    self._run(HostileModel(path, "harmless", {"x": (1, (4,))}), {"x": np.ones(4, np.float32)}, 0)
                    break
        return time.monotonic() - began

    def _run(self, hostile: HostileModel, feeds: Mapping[str, Any], seed: int) -> list[Any]:
        until = time.monotonic() + self.seconds
        call = self.connection

        def left_s() -> float:
            return until - time.monotonic()

        model = ModelFiles(hostile.path, ["w.bin"]).bring(call, left_s)
        options = PlanOptions("bbgrap") if seed % 2 else PlanOptions(search_seconds=1.0)
        shapes = {name: array.shape for name, array in feeds.items()}
        prepare = PrepareModel(call.number(), model, shapes, options, wait=bool(seed % 2), deadline_s=max(0.1, left_s()))
        plan = call.try_call(prepare, ModelPrepared, timeout_s=max(0.1, left_s()) + GRACE_S).plan
        headers = tuple(TensorHeader(name, DType.of(array.dtype), array.shape) for name, array in feeds.items())
        contents = tuple(encode_array(array) for array in feeds.values())
        while True:
            request = RunModel(call.number(), plan, max(0.1, left_s()), headers, contents)
            try:
                result = call.try_call(request, RunResult, timeout_s=max(0.1, left_s()) + GRACE_S)
            except CallFailedError as failed:
                if failed.answer.fault is Fault.BUSY and left_s() > 0.2:
                    time.sleep(0.1)
                    continue
                raise
            pairs = zip(result.outputs, result.payload, strict=True)
            return [decode_array(header.dtype, header.shape, content) for header, content in pairs]


def _array(code: int, shape: tuple[int, ...], seed: int) -> Any:  # noqa: ANN401 - an array
    dtype = helper.tensor_dtype_to_np_dtype(code)
    if dtype.kind == "O":
        return np.full(shape, "text", object)
    return (np.random.default_rng(seed).integers(0, 4, shape)).astype(dtype)


def _judge(hostile: HostileModel, feeds: Mapping[str, Any], found: Sequence[Any] | None, folder: Path) -> str:
    """Compare with plain onnxruntime."""
    (folder / "feeds").write_bytes(pickle.dumps(dict(feeds)))
    command = [sys.executable, "-m", "tests.hostile.oracle", str(hostile.path), str(folder / "feeds"), str(folder / "out")]
    said = b""
    with suppress(subprocess.TimeoutExpired):
        said = subprocess.run(command, check=False, capture_output=True, timeout=4 * SECONDS).stderr
    if b"Got invalid dimensions for input" in said:
        return "agrees"  # as far as it can: here the first size of an input may be another than the file says
    if not (folder / "out").exists():
        return "alone"
    wanted = pickle.loads((folder / "out").read_bytes())  # noqa: S301 - written by us
    assert found is not None
    same = len(wanted) == len(found) and all(_same(*pair) for pair in zip(wanted, found, strict=True))
    return "agrees" if same else "differs"


def _same(want: Any, got: Any) -> bool:  # noqa: ANN401 - arrays, or what travels as bytes
    if not isinstance(want, np.ndarray):
        return True
    if want.dtype.kind not in "fc":
        return bool(np.array_equal(want, got))
    scale = float(np.abs(want).max(initial=0.0, where=np.isfinite(want)))
    return want.shape == got.shape and bool(np.allclose(got, want, rtol=1e-4, atol=1e-5 * scale, equal_nan=True))


def run(seeds: Sequence[int], *, agents: int = 2, seconds: float = SECONDS) -> tuple[list[Outcome], list[str]]:
    """Attack a cluster with the models of some seeds; return how they fared, and what should not have been."""
    outcomes = []
    with tempfile.TemporaryDirectory() as home, known_cluster(agents, Path(home) / "cache") as cluster:
        there = Field(cluster, seconds)
        pids = {name: process.pid for name, process in cluster.processes.items()}
        workers = there.workers()
        ended, held = 0, [0.0]
        for number, seed in enumerate(seeds):
            with tempfile.TemporaryDirectory(dir=home) as folder:
                outcome = there.attack(seed, make(seed, Path(folder)), Path(folder))
            outcomes.append(outcome)
            now = there.workers()
            ended, workers = ended + len(workers - now), now
            if outcome.how not in {"refused", "agrees"} or outcome.seconds > seconds / 2:
                say(f"seed {seed} ({outcome.kind}): {outcome.how} after {outcome.seconds:.1f} s: {outcome.said[:300]}")
            if outcome.seconds > seconds - 1:
                took = there.wait(Path(home), seed)
                held.append(took)
                say(f"after seed {seed} new models of others waited for {took:.1f} s")
            if number % 50 == 49:
                say(f"{number + 1} models, {there.known.requests} requests of the known model, {ended} workers ended")
        there.close()
        faults = [f"{name} ended" for name, process in cluster.processes.items() if process.poll() is not None or process.pid != pids[name]]
        grown = {name: size - there.before[name] for name, size in ({} if faults else there.sizes()).items()}
        if os.environ.get("BBGRAP_HOSTILE_LOG"):
            Path(os.environ["BBGRAP_HOSTILE_LOG"]).write_text(cluster.log("coordinator", 100_000))
    faults += [f"{name} grew by {size >> 20} MB" for name, size in grown.items() if size > GROWTH_BYTES]
    faults += [f"new models were held up for {seconds:.1f} s" for seconds in held if seconds > HELD_S]
    say(f"new models of others waited for {max(held):.1f} s at most, {len(held) - 1} times")
    faults += [f"known model: {words}" for words in there.known.failures[:10]]
    faults += [f"seed {o.seed} ({o.kind}): {o.how}: {o.said[:300]}" for o in outcomes if o.how not in {"refused", "agrees"}]
    faults += [f"seed {o.seed} ({o.kind}): untidy: {o.said[:300]}" for o in outcomes if any(word in o.said for word in UNTIDY)]
    summarise(outcomes, there, ended)
    say(f"grown: {', '.join(f'{name} {size / 2**20:+.1f} MB' for name, size in grown.items())}")
    return outcomes, faults


def summarise(outcomes: Sequence[Outcome], there: Field, ended: int) -> None:
    """Say how all of it went."""
    counts = Counter(outcome.how for outcome in outcomes)
    slowest, largest = max(outcomes, key=lambda o: o.seconds), max(outcomes, key=lambda o: o.peak)
    half = sorted(outcome.seconds for outcome in outcomes)[len(outcomes) // 2]
    say(f"{len(outcomes)} models: {', '.join(f'{count} {how}' for how, count in counts.most_common())}; {ended} workers ended")
    say(f"slowest: seed {slowest.seed} ({slowest.kind}), {slowest.seconds:.1f} s; half within {half:.2f} s")
    say(f"largest: seed {largest.seed} ({largest.kind}), {largest.peak >> 20} MB in one of {len(there.children)} planner's processes")
    known = there.known
    say(f"known model: {known.requests} requests, {len(known.failures)} failed, the slowest took {known.slowest_s:.2f} s")


def main() -> None:
    """Attack, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..1000", help="FIRST..END")
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="deadline of each request")
    chosen = parser.parse_args()
    first, _, end = chosen.seeds.partition("..")
    _, faults = run(range(int(first), int(end or int(first) + 1)), agents=chosen.agents, seconds=chosen.seconds)
    for fault in faults:
        say(fault)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
