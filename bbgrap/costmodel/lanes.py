"""What messages leave of the wires that they share, over time.

At every moment a message moves as fast as its own link and what earlier messages leave of the narrowest lane of its way allow. Whoever
comes later takes the rest, so nothing that was promised to an earlier message is taken back.

Laws: lanes never carry more than their bandwidth; a message is never faster than alone; lanes whose bandwidth is at least that of all
links which can use them at once change nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from bbgrap.cluster.wires import Lane
from bbgrap.costmodel.messages import NetworkModel
from bbgrap.costmodel.timeline import Timeline

_NOTHING = 1e-9
"""Of a lane's bandwidth: what is left by rounding."""


class Free:
    """How many bytes per second of one lane are free, from when on."""

    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        """Begin with all of it."""
        self._least = bandwidth_bytes_per_s * _NOTHING
        self.times = [0.0]
        self.rates = [bandwidth_bytes_per_s]

    def at(self, time: float) -> tuple[float, float]:
        """Return the free bytes per second at a time, and until when it stays so."""
        piece = bisect_right(self.times, time)
        return self.rates[piece - 1], self.times[piece] if piece < len(self.times) else inf

    def take(self, start: float, stop: float, rate: float) -> None:
        """Use a rate, which is free all the time, from start to stop."""
        first, last = self._cut(start), self._cut(stop)
        for piece in range(first, last):
            left = self.rates[piece] - rate
            self.rates[piece] = left if left > self._least else 0.0

    def _cut(self, time: float) -> int:
        """Return the number of the piece that begins at a time; make it if there is none."""
        piece = bisect_right(self.times, time) - 1
        if self.times[piece] == time:
            return piece
        self.times.insert(piece + 1, time)
        self.rates.insert(piece + 1, self.rates[piece])
        return piece + 1


def carry(lanes: Sequence[Free], start: float, size: float, rate: float) -> float:
    """Take what a message of so many bytes needs of lanes, from a time on and at most at a rate; return when its last byte is through."""
    now, left = start, size
    while True:
        free = [lane.at(now) for lane in lanes]
        speed = min(rate, *(of for of, _ in free))
        change = min(until for _, until in free)
        stop = now + left / speed if speed else inf
        until = min(stop, change)
        if speed and until > now:
            for lane in lanes:
                lane.take(now, until, speed)
        if stop <= change:
            return stop
        left -= speed * (until - now)
        now = until


@dataclass(frozen=True, slots=True)
class Load:
    """What goes over a lane in one request."""

    lane: Lane
    bytes: int

    @property
    def busy_s(self) -> float:
        """Seconds that it takes for these bytes."""
        return self.bytes / self.lane.wire.link.bandwidth_bytes_per_s


def loads(timeline: Timeline, network: NetworkModel) -> tuple[Load, ...]:
    """Return what goes over every lane that is used, the busiest first."""
    found: Counter[Lane] = Counter()
    for span in timeline.spans:
        if span.lane == "send" and span.peer is not None:
            for lane in network.route(span.device, span.peer):
                found[lane] += span.bytes
    return tuple(sorted((Load(lane, size) for lane, size in found.items()), key=lambda load: (-load.busy_s, load.lane.wire.name)))
