"""Whether a plan is worth its place: the times of its requests, or of synthetic ones, beside those of requests on the standby."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

TRIALS = 4
"""Requests that have the cluster to themselves before a scaled plan is judged; the first one finds cold caches and is not counted."""
KEPT = 7
"""Times that are kept of either."""
MAX_SEEN = 64
"""Nodes with copies of which it is known what these took; those asked last. Chosen: more than a model has in a day of machines that go."""


NodesTime = tuple[tuple[str, ...], float]
"""The nodes that a request ran on, by name, and how long it took, in seconds."""


@dataclass(slots=True)
class PlanTrial:
    """Times of a plan's requests that had the cluster to themselves: on copies of the standby, and on scaled variants."""

    standby: deque[NodesTime] = field(default_factory=lambda: deque(maxlen=KEPT))
    scaled: deque[NodesTime] = field(default_factory=lambda: deque(maxlen=KEPT))
    seen: dict[tuple[str, ...], float] = field(default_factory=dict)
    """The least that a copy took when it was asked last: before the plan served, or compared with it."""
    doubted_s: float = 0.0
    """What requests took on a plan that serves, since it is doubted that this is less than on the standby; 0: it is not."""
    meanwhile: list[float] = field(default_factory=list)
    """What those take on it that have their turns with the standby's, in seconds."""
    _turns: int = 0

    def serves(self) -> None:
        """Note that the plan serves, or goes on to: what the standby takes is not asked any more for now."""
        latest = {on: min(seconds for other, seconds in self.standby if other == on) for on, _ in self.standby}
        self.seen = dict([*((on, least) for on, least in self.seen.items() if on not in latest), *latest.items()][-MAX_SEEN:])
        self.doubted_s = 0.0
        self.standby.clear()

    def doubt(self, took: float, copies: Collection[tuple[str, ...]]) -> None:
        """Compare with the standby anew, if a copy took less when it was asked last than the plan takes now, or never was."""
        if any(self.seen.get(on, 0.0) < took for on in copies):
            self.doubted_s = took
            self.standby.clear()
            self.meanwhile.clear()

    @property
    def takes_s(self) -> float:
        """What requests take on a plan that is doubted: what made it slow may be over while the standby is asked."""
        return min(self.doubted_s, median(self.meanwhile or [self.doubted_s]))

    def is_turn_of_standby(self) -> bool:
        """Whether the next request takes a copy: every second one, while a plan is doubted."""
        self._turns += bool(self.doubted_s)
        return bool(self.doubted_s) and self._turns % 2 == 0

    def verdict(self, nodes: tuple[str, ...], copies: Collection[tuple[str, ...]]) -> str:
        """Return why a scaled variant on these nodes shall go; nothing if it may stay, or too little is known."""
        mine = [seconds for on, seconds in self.scaled if on == nodes]
        return "" if len(mine) < TRIALS else self.beside_standby(median(mine[1:]), copies)

    def beside_standby(self, took: float, copies: Collection[tuple[str, ...]], gain: float = 0.0) -> str:
        """Return that copies of the standby take so much less than this, in seconds; nothing if they do not, or are not known to.

        Those count that are there: another one may have been on a faster node.
        """
        others = [seconds for on, seconds in self.standby if on in copies]
        other = median(others[1:] or others) if others else took
        return "" if (1 - gain) * took <= other else f"requests took {1e3 * took:.1f} ms on it, and {1e3 * other:.1f} ms on one node"
