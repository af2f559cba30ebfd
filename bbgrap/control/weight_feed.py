"""Weights on their way to one agent.

Laws: what was asked for together goes together, that of which least is left first; no more is on its way than the agent takes in within
half a second and two round trips (`bbgrap.control.send_window`); what nobody waits for any more is not sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.coordinator_instructions import CoordinatorInstruction, ToAgent
from bbgrap.control.send_window import PIECES, SendWindow
from bbgrap.graph.types import Array, TensorType
from bbgrap.protocol.limits import MAX_CHUNK_BYTES
from bbgrap.protocol.messages import BytesLike, WeightChunk
from bbgrap.protocol.tensors import encode_array

_MOST_OPEN = 64
"""So many weights are begun at once: chosen."""


@dataclass(slots=True)
class _Outgoing:
    """A weight on its way: bytes sent and acknowledged so far, and with which others it was asked for."""

    type: TensorType
    content: BytesLike
    batch: int
    sent: int = 0
    acknowledged: int = 0
    started: bool = False


@dataclass(slots=True)
class WeightFeed:
    """What an agent is sent.

    Invariants: `outgoing` holds the weights, by digest, that it asked for and has not acknowledged to the end.
    """

    identity: RoutingId
    outgoing: dict[str, _Outgoing] = field(default_factory=dict)
    fed: int = 0
    """Bytes that it has of what is being sent; 0 once it has all."""
    to_feed: int = 0
    """Their total."""
    _window: SendWindow = field(default_factory=SendWindow)
    _batches: int = 0

    def send(
        self, digests: Iterable[str], weights: Mapping[str, Array], types: Mapping[str, TensorType], now: float
    ) -> list[CoordinatorInstruction]:
        """Send these weights, from their beginnings; unknown digests are left out."""
        self._batches += 1
        if not self.outgoing:
            self._window.begin(now)
        for digest in digests:
            if digest in weights:
                before, entry = self.outgoing.get(digest), _Outgoing(types[digest], encode_array(weights[digest]), self._batches)
                if before is None:
                    self.to_feed += len(entry.content)
                else:
                    self.fed -= before.acknowledged
                self.outgoing[digest] = entry
        left = Counter[int]()
        for entry in self.outgoing.values():
            left[entry.batch] += len(entry.content) - entry.acknowledged
        self.outgoing = dict(sorted(self.outgoing.items(), key=lambda item: (left[item[1].batch], item[1].batch)))
        return self._pump()

    def keep(self, wanted: Collection[str]) -> list[CoordinatorInstruction]:
        """Send no more of the weights that are not among these."""
        for digest in [digest for digest in self.outgoing if digest not in wanted]:
            entry = self.outgoing.pop(digest)
            self.fed, self.to_feed = self.fed - entry.acknowledged, self.to_feed - len(entry.content)
        return self._pump()

    def acknowledge(self, digest: str, received: int, now: float, round_trip_s: float) -> list[CoordinatorInstruction]:
        """Note that the first bytes of a weight arrived, and send more."""
        entry = self.outgoing.get(digest)
        if entry is not None:
            before = entry.acknowledged
            entry.acknowledged = min(max(entry.acknowledged, received), len(entry.content))
            self.fed += entry.acknowledged - before
            self._window.arrived(entry.acknowledged - before, now, round_trip_s)
            entry.sent = max(entry.sent, entry.acknowledged)  # it kept what came before a break: go on from there
            if entry.started and entry.acknowledged == len(entry.content):
                del self.outgoing[digest]
        return self._pump()

    def _pump(self) -> list[CoordinatorInstruction]:
        """Send chunks until the window is full."""
        if not self.outgoing:
            self.fed = self.to_feed = 0
        open_entries = [entry for entry in self.outgoing.values() if entry.started]
        flying, count = sum(e.sent - e.acknowledged for e in open_entries), len(open_entries)
        done: list[CoordinatorInstruction] = []
        for digest, entry in self.outgoing.items():
            while not entry.started or entry.sent < len(entry.content):
                if flying >= self._window.bytes or count >= _MOST_OPEN:
                    return done
                chunk = entry.content[entry.sent : entry.sent + min(MAX_CHUNK_BYTES, self._window.bytes // PIECES)]
                done.append(ToAgent(self.identity, WeightChunk(digest, entry.type, entry.sent, len(entry.content), (chunk,))))
                count += not entry.started
                entry.started = True
                entry.sent += len(chunk)
                flying += len(chunk)
        return done
