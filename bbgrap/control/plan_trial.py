"""Whether a plan that was made like another one is worth its place: its requests' times beside those of the standby."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

TRIALS = 4
"""Requests that have the cluster to themselves before a scaled plan is judged; the first one finds cold caches and is not counted."""
KEPT = 7
"""Times that are kept of either."""


@dataclass(slots=True)
class PlanTrial:
    """Times of a plan's requests that had the cluster to themselves, in seconds: on the standby, and on a scaled variant."""

    standby: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    scaled: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def verdict(self) -> str:
        """Return why the scaled variant shall go; nothing if it may stay, or too little is known."""
        if len(self.scaled) < TRIALS or not self.standby:
            return ""
        mine, other = median(list(self.scaled)[1:]), median(list(self.standby)[1:] or self.standby)
        return "" if mine <= other else f"requests took {1e3 * mine:.1f} ms on it, and {1e3 * other:.1f} ms on one node"
