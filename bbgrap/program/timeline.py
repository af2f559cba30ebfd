"""What every machine does when, for one request: predicted by the clock or measured by the agents. Pictures are drawn of this one type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Lane = Literal["compute", "send", "receive", "wait"]
LANES: tuple[Lane, ...] = get_args(Lane)


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that a device does, in seconds since the request began.

    `send` lasts as long as the processor is busy with it, `wait` until the message that is needed is there, `receive` is its unpacking.
    `message` and `peer` (a device) belong to send, wait and receive, `bytes` to send and receive, `segment` to compute.
    """

    device: int
    lane: Lane
    label: str
    start_s: float
    stop_s: float
    message: int | None = None
    peer: int | None = None
    bytes: int = 0
    segment: int | None = None


@dataclass(frozen=True)
class Timeline:
    """All spans of a request, by device and start; `devices` are the names, the host (the coordinator) last."""

    devices: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def total_s(self) -> float:
        """Seconds until the last span ends."""
        return max((span.stop_s for span in self.spans), default=0.0)

    def busy_s(self, device: int, lane: Lane) -> float:
        """Seconds that a device spends in a lane."""
        return sum(span.stop_s - span.start_s for span in self.spans if span.device == device and span.lane == lane)
