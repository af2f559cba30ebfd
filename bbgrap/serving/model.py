"""A model that is served: its session, what the protocol says of it, and its counts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bbgrap.control.sequences import IDLE_S
from bbgrap.costmodel.timeline import Timeline
from bbgrap.errors import ClusterUnavailableError, ExecutionError, UnsupportedError
from bbgrap.graph.types import Array
from bbgrap.planners.options import AUTO, PlanOptions
from bbgrap.serving.datatypes import datatype_of
from bbgrap.serving.open_sequences import OpenSequences, SequenceTurn
from bbgrap.session import Connection, InferenceSession
from bbgrap.session.signature import NodeArg
from bbgrap.session.state_pairs import StateText


class Durations(NamedTuple):
    """Where the time of one request went, in nanoseconds."""

    queue: int = 0
    compute_input: int = 0
    """Making arrays of what was sent."""
    compute_infer: int = 0
    """From the session's beginning to its answer: the cluster's work and all that travels."""
    compute_output: int = 0


class ModelStatistics(NamedTuple):
    """Sums over all requests of a model since the server was started."""

    success: int = 0
    success_ns: int = 0
    fail: int = 0
    fail_ns: int = 0
    executions: int = 0
    """Runs of the session: fewer than requests where these were batched."""
    last_ms: int = 0
    """When the latest request ended, since the epoch."""
    durations: Durations = Durations()


class Statistics:
    """Counts that any thread may add to."""

    def __init__(self) -> None:
        self.counts = ModelStatistics()
        """The sums so far: replaced, never changed."""
        self._lock = threading.Lock()

    def succeeded(self, took_ns: int, where: Durations) -> None:
        """Count a request that was answered."""
        with self._lock:
            old = self.counts
            sums = Durations(*map(add, old.durations, where))
            self.counts = old._replace(success=old.success + 1, success_ns=old.success_ns + took_ns, last_ms=_now_ms(), durations=sums)

    def failed(self, took_ns: int) -> None:
        """Count a request that failed, or was given up."""
        with self._lock:
            old = self.counts
            self.counts = old._replace(fail=old.fail + 1, fail_ns=old.fail_ns + took_ns, last_ms=_now_ms())

    def executed(self) -> None:
        """Count a run of the session."""
        with self._lock:
            self.counts = self.counts._replace(executions=self.counts.executions + 1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_log = logging.getLogger("bbgrap.serving")

PLATFORM = "onnxruntime_onnx"
_SPARE_S = 60.0
"""How much longer than the gateway a session waits: the gateway knows why it gives up."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output as the protocol describes it; a free size is -1, and so is an unknown rank: one free size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model that is loaded."""

    name: str
    version: str
    session: InferenceSession
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    has_rows: bool
    """Whether all inputs and outputs begin with one and the same free dimension: requests may be put one behind the other along it."""
    sequences: OpenSequences | None
    """The sequences of a model with state; all its requests are part of one."""
    statistics: Statistics

    @classmethod
    def load(
        cls,
        name: str,
        version: str,
        path: Path,
        connection: Connection,
        options: PlanOptions,
        deadline_s: float,
        state: StateText | None = None,
        most_sequences: int = 1,
    ) -> ServedModel:
        """Read a model, and bring it to the coordinator; if that is away, the first request will.

        As in any session, who asked for a planner waits for its plan: here if the shapes are known, else with the first request.
        What is `state` no client sees; it begins with zeros. At most `most_sequences` are open at once.

        Raises:
            BbgrapError: if the model cannot be read, or has values that the protocol cannot carry.
        """
        pairs = None if state is None else state.state
        wait_s = deadline_s + _SPARE_S
        session = InferenceSession(path, cluster=connection, options=options, state=pairs, name=name, deadline_s=wait_s)
        held = session.options.state
        kept = {name for before, after in held if before != after for name in (before, after)}
        inputs, outputs = ([arg for arg in args if arg.name not in kept] for args in (session.get_inputs(), session.get_outputs()))
        specs = tuple(_spec(arg, "input") for arg in inputs), tuple(_spec(arg, "output") for arg in outputs)
        first = {arg.shape[0] if arg.shape else None for arg in (*inputs, *outputs)}
        has_rows = not held and len(first) == 1 and all(isinstance(size, str) for size in first)
        shapes = {} if state is None else state.shapes
        initial = {arg.name: np.zeros(shapes[arg.name], arg.dtype.numpy) for arg in session.signature.inputs if arg.name in shapes}
        sequences = OpenSequences(name, session, initial, most_sequences) if held else None
        model = cls(name, version, session, *specs, has_rows, sequences, Statistics())
        waits = options.planner != AUTO
        # Planner auto begins with a standby, which takes every shape: there one row is as good a guess as any.
        rows = -1 if waits else 1
        shapes = {
            spec.name: tuple(rows if (axis, size) == (0, -1) else size for axis, size in enumerate(spec.shape))
            for spec in (_spec(arg, "input") for arg in session.get_inputs())
        }
        if all(size >= 0 for shape in shapes.values() for size in shape):
            try:
                session.prepare(shapes, wait=waits)
            except (ClusterUnavailableError, ExecutionError) as error:
                _log.warning("model '%s' is read, but not on the cluster yet; the first request brings it: %s", name, error)
        return model

    def run(
        self, feed: Mapping[str, Array], names: Sequence[str] | None, stop: Callable[[], bool], turn: SequenceTurn | None = None
    ) -> list[Array]:
        """Run the model, as part of a sequence if it has state, until `stop()` is true.

        Raises:
            BbgrapError: as `InferenceSession.run`.
            StoppedError: if it was stopped; the coordinator drops the request.
        """
        self.statistics.executed()
        with self.session.connection.stops.when(stop):
            if turn is None:
                return self.session.run(names, feed)
            turn.runs.go_back(turn.answered)
            return turn.runs.run(names, feed)

    def run_recorded(
        self, feed: Mapping[str, Array], names: Sequence[str] | None, stop: Callable[[], bool]
    ) -> tuple[list[Array], Timeline | None]:
        """Run the model as `run` does, and also return when every node did what, None if that is not known."""
        self.statistics.executed()
        with self.session.connection.stops.when(stop):
            try:
                return self.session.run_recorded(names, feed)
            except ExecutionError:  # an agent may have gone before it told: nobody's request fails for that
                return self.session.run(names, feed), None

    def output_names(self, chosen: Sequence[str] | None) -> Sequence[str]:
        """Return the names of the outputs that were chosen."""
        return chosen or [spec.name for spec in self.outputs]

    # --- what the protocol says of it -------------------------------------------------------------------------------------------------

    def metadata(self) -> dict[str, Any]:
        """Return the model's metadata."""
        sides = {
            side: [{"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)} for spec in specs]
            for side, specs in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        return {"name": self.name, "versions": [self.version], "platform": PLATFORM, **sides}

    def config(self) -> dict[str, Any]:
        """Return the model's configuration as Triton has it.

        `max_batch_size` is 0: shapes are given whole, whether or not the server batches.
        """
        sides = {
            side: [{"name": spec.name, "data_type": _config_type(spec.datatype), "dims": list(spec.shape)} for spec in specs]
            for side, specs in (("input", self.inputs), ("output", self.outputs))
        }
        sequences = {} if self.sequences is None else {"sequence_batching": {"max_sequence_idle_microseconds": round(IDLE_S * 1e6)}}
        return {"name": self.name, "platform": PLATFORM, "backend": "onnxruntime", "max_batch_size": 0, **sides, **sequences}

    def counted(self) -> dict[str, Any]:
        """Return the model's statistics."""
        counts = self.statistics.counts
        return {
            "name": self.name,
            "version": self.version,
            "last_inference": counts.last_ms,
            "inference_count": counts.success,
            "execution_count": counts.executions,
            "inference_stats": {
                "success": {"count": counts.success, "ns": counts.success_ns},
                "fail": {"count": counts.fail, "ns": counts.fail_ns},
                **{part: {"count": counts.success, "ns": ns} for part, ns in counts.durations._asdict().items()},
                "cache_hit": {"count": 0, "ns": 0},
                "cache_miss": {"count": 0, "ns": 0},
            },
            "batch_stats": [],
        }


def _config_type(datatype: str) -> str:
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def _spec(arg: NodeArg, side: str) -> TensorSpec:
    datatype = datatype_of(arg.type)
    if datatype is None:
        raise UnsupportedError(f"{side} '{arg.name}' is {arg.type}: the protocol has no such type; use the model from Python")
    return TensorSpec(arg.name, datatype, tuple(size if isinstance(size, int) else -1 for size in arg.shape) if arg.has_rank else (-1,))
