"""Which requests are recorded by all nodes, and the spans of requests.

Recording takes some milliseconds of a request, so it is for one of a model in so many seconds, and only while somebody looks: a page is
open, or spans are received.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bbgrap.observing.spans import RequestSpan, Spans


class Tracing:
    """What is recorded, and where spans go."""

    def __init__(self, every_s: float = 10.0, spans: Spans | None = None) -> None:
        """Record a request of each model every so many seconds, while there are `watchers` or somebody gets `spans`."""
        self._every_s = every_s
        self._spans = spans
        self._latest: dict[str, float] = {}
        self._lock = threading.Lock()
        self.watchers = 0
        """Pages that are open; it belongs to the event loop."""

    def is_due(self, model: str) -> bool:
        """Return whether the next request of a model is to be recorded; who is told so does it."""
        if not self.watchers and self._spans is None:
            return False
        now = time.monotonic()
        with self._lock:
            if now - self._latest.get(model, float("-inf")) < self._every_s:
                return False
            self._latest = {other: at for other, at in self._latest.items() if now - at < self._every_s} | {model: now}
            return True

    def request(self, model: str, traceparent: str) -> AbstractContextManager[RequestSpan | None]:
        """Make the span of the request that is run inside, if somebody gets it."""
        return nullcontext() if self._spans is None else self._spans.request(model, traceparent)
