"""What became of a model's requests, as the protocol's statistics count it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Durations:
    """Where the time of one request went, in nanoseconds."""

    queue: int = 0
    compute_input: int = 0
    """Making arrays of what was sent."""
    compute_infer: int = 0
    """From the session's beginning to its answer: the cluster's work and all that travels."""
    compute_output: int = 0


@dataclass(frozen=True, slots=True)
class ModelStatistics:
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
        """Begin at zero."""
        self._counts = ModelStatistics()
        self._lock = threading.Lock()

    @property
    def counts(self) -> ModelStatistics:
        """The sums so far."""
        return self._counts

    def succeeded(self, took_ns: int, where: Durations) -> None:
        """Count a request that was answered."""
        with self._lock:
            old = self._counts
            sums = {part.name: getattr(old.durations, part.name) + getattr(where, part.name) for part in fields(Durations)}
            self._counts = replace(
                old, success=old.success + 1, success_ns=old.success_ns + took_ns, last_ms=_now_ms(), durations=Durations(**sums)
            )

    def failed(self, took_ns: int) -> None:
        """Count a request that failed, or was given up."""
        with self._lock:
            old = self._counts
            self._counts = replace(old, fail=old.fail + 1, fail_ns=old.fail_ns + took_ns, last_ms=_now_ms())

    def executed(self) -> None:
        """Count a run of the session."""
        with self._lock:
            self._counts = replace(self._counts, executions=self._counts.executions + 1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
