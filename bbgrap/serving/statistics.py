"""What became of a model's requests, as the protocol's statistics count it."""

from __future__ import annotations

import threading
import time
from operator import add
from typing import NamedTuple


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
