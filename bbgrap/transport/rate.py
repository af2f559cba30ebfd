"""How often something may be: so many at once, and so many a second."""

from __future__ import annotations

import time


class Rate:
    """At most `at_once` without a pause, and `per_s` in the long run."""

    def __init__(self, per_s: float, at_once: float) -> None:
        self._per_s, self._most = per_s, at_once
        self._left, self._then = at_once, time.monotonic()

    def take(self, now: float) -> bool:
        """Whether one more is within it."""
        self._left = min(self._most, self._left + (now - self._then) * self._per_s)
        self._then = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
