"""Whether a plan that was made like another one is worth its place: its requests' times beside those of the standby."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

TRIALS = 4
"""Requests that have the cluster to themselves before a scaled plan is judged; the first one finds cold caches and is not counted."""
KEPT = 7
"""Times that are kept of either."""


NodesTime = tuple[tuple[str, ...], float]
"""The nodes that a request ran on, by name, and how long it took, in seconds."""


@dataclass(slots=True)
class PlanTrial:
    """Times of a plan's requests that had the cluster to themselves: on copies of the standby, and on scaled variants."""

    standby: deque[NodesTime] = field(default_factory=lambda: deque(maxlen=KEPT))
    scaled: deque[NodesTime] = field(default_factory=lambda: deque(maxlen=KEPT))

    def verdict(self, nodes: tuple[str, ...], copies: Collection[tuple[str, ...]]) -> str:
        """Return why a scaled variant on these nodes shall go; nothing if it may stay, or too little is known.

        It is compared with the `copies` that are there: another one may have been on a faster node.
        """
        mine = [seconds for on, seconds in self.scaled if on == nodes]
        others = [seconds for on, seconds in self.standby if on in copies]
        if len(mine) < TRIALS or not others:
            return ""
        took, other = median(mine[1:]), median(others[1:] or others)
        return "" if took <= other else f"requests took {1e3 * took:.1f} ms on it, and {1e3 * other:.1f} ms on one node"
