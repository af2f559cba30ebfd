"""What every machine does when, for one request: predicted by the clock or measured by the agents. Pictures are drawn of this one type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from bbgrap.errors import RemoteProtocolError

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


def plain_timeline(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as plain values, as plan reports carry it: times in microseconds, the fields of `Span` in their order."""
    spans = [
        [s.device, s.lane, s.label, round(1e6 * s.start_s, 1), round(1e6 * s.stop_s, 1), s.message, s.peer, s.bytes, s.segment]
        for s in timeline.spans
    ]
    return {"devices": list(timeline.devices), "spans": spans}


def read_timeline(plain: Any) -> Timeline:  # noqa: ANN401 - whatever JSON holds
    """Return the timeline of plain values.

    Raises:
        RemoteProtocolError: if they are none.
    """
    try:
        devices = tuple(str(name) for name in plain["devices"])
        spans = tuple(_span(values, len(devices)) for values in plain["spans"])
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"report: its timeline cannot be read: {error}") from None
    return Timeline(devices, spans)


def _span(values: Any, count: int) -> Span:  # noqa: ANN401 - whatever JSON holds
    device, lane, label, start, stop, message, peer, size, segment = values
    numbers = [device, *(value for value in (message, peer, segment) if value is not None), size]
    if lane not in LANES or not all(isinstance(n, int) and n >= 0 for n in numbers) or device >= count or not 0 <= start <= stop:
        raise ValueError(f"no span: {values}")
    return Span(device, lane, str(label), start / 1e6, stop / 1e6, message, peer, size, segment)
