"""What messages leave of the ways that they share, over time: the two of every wire, or machines' ways out and in.

At every moment a message moves as fast as what earlier messages leave of the narrowest way of its route allows. Whoever comes later takes
the rest, so nothing that was promised to an earlier message is taken back.

Laws: ways never carry more than their bandwidth; a message is never faster than alone; wires whose bandwidth is at least that of all
links which can use them at once change nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from bbgrap.cluster.wires import Way
from bbgrap.costmodel.messages import NetworkModel
from bbgrap.costmodel.timeline import Timeline

_NOTHING = 1e-9
"""Of a way: what is left by rounding."""


class FreeBandwidth:
    """Which part of one way is free, from when on: 1 is all of it."""

    def __init__(self) -> None:
        """Begin with all of it."""
        self.times = [0.0]
        self.parts = [1.0]

    def at(self, time: float) -> tuple[float, float]:
        """Return the free part at a time, and until when it stays so."""
        piece = bisect_right(self.times, time)
        return self.parts[piece - 1], self.times[piece] if piece < len(self.times) else inf

    def take(self, start: float, stop: float, part: float) -> None:
        """Use a part, which is free all the time, from start to stop."""
        first, last = self._cut(start), self._cut(stop)
        for piece in range(first, last):
            left = self.parts[piece] - part
            self.parts[piece] = left if left > _NOTHING else 0.0
        for piece in (last, first):
            if piece and self.parts[piece] == self.parts[piece - 1]:
                del self.times[piece], self.parts[piece]

    def _cut(self, time: float) -> int:
        """Return the number of the piece that begins at a time; make it if there is none."""
        piece = bisect_right(self.times, time) - 1
        if self.times[piece] == time:
            return piece
        self.times.insert(piece + 1, time)
        self.parts.insert(piece + 1, self.parts[piece])
        return piece + 1


def carry(ways: Sequence[tuple[FreeBandwidth, float]], start: float, size: float, most: float = inf) -> float:
    """Take what a message of so many bytes needs of ways, from a time on; return when its last byte is through.

    Each way comes with the bytes per second that all of it carries; `most` are those of the message.
    """
    now, left = start, size
    while True:
        free = [(*way.at(now), bandwidth) for way, bandwidth in ways]
        speed = min(most, *(part * bandwidth for part, _, bandwidth in free))
        if not speed:
            now = max(until for part, until, _ in free if not part)
            continue
        change = min(until for _, until, _ in free)
        stop = now + left / speed
        until = min(stop, change)
        if until > now:
            for way, bandwidth in ways:
                way.take(now, until, speed / bandwidth)
        if stop <= change:
            return stop
        left -= speed * (until - now)
        now = until


@dataclass(frozen=True, slots=True)
class WayLoad:
    """What goes over a way in one request."""

    way: Way
    bytes: int

    @property
    def busy_s(self) -> float:
        """Seconds that it takes for these bytes."""
        return self.bytes / self.way.wire.link.bandwidth_bytes_per_s


def loads(timeline: Timeline, network: NetworkModel) -> tuple[WayLoad, ...]:
    """Return what goes over every way that is used, the busiest first."""
    found: Counter[Way] = Counter()
    for span in timeline.spans:
        if span.lane == "send" and span.peer is not None:
            for way in network.route(span.device, span.peer):
                found[way] += span.bytes
    return tuple(sorted((WayLoad(way, size) for way, size in found.items()), key=lambda load: (-load.busy_s, load.way.wire.name)))
