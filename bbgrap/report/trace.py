"""Measured requests: from the records of all devices to timelines, and from those to the times of every segment."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bbgrap.costmodel.timeline import Span, Timeline
from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import Array
from bbgrap.runtime.recording import Record, StepLabel


@dataclass(frozen=True, slots=True)
class SegmentTime:
    """How long a segment takes on its device, with the copies before it: the median in seconds. `name` says what it makes."""

    device: int
    segment: int
    name: str
    median_s: float


@dataclass(frozen=True)
class Trace:
    """Some requests on one deployment, one after the other, as the agents and the coordinator recorded them.

    `clock_error_s` bounds how far the clocks of two devices in a timeline may be apart; `outputs` are the answer to the last request.
    """

    timelines: tuple[Timeline, ...]
    clock_error_s: float
    outputs: tuple[Array, ...] = field(default=(), repr=False, compare=False)

    @property
    def median(self) -> Timeline:
        """The request of median length: of an even number the shorter of the two in the middle."""
        return sorted(self.timelines, key=lambda timeline: timeline.total_s)[(len(self.timelines) - 1) // 2]

    @property
    def segments(self) -> tuple[SegmentTime, ...]:
        """The times of all segments, by device and number."""
        times: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        names: dict[tuple[int, int], str] = {}
        for timeline in self.timelines:
            for key, (name, took) in segment_seconds(timeline).items():
                times[key].append(took)
                names[key] = name
        return tuple(SegmentTime(*key, names[key], statistics.median(times[key])) for key in sorted(times))


def segment_seconds(timeline: Timeline) -> Mapping[tuple[int, int], tuple[str, float]]:
    """Return name and seconds of every segment of a timeline, by device and number.

    What a device computes outside segments, the copies that put the inputs of the next one together, counts for that one.
    """
    found: dict[tuple[int, int], tuple[str, float]] = {}
    copied: defaultdict[int, float] = defaultdict(float)
    for span in timeline.spans:
        if span.lane != "compute":
            continue
        took = span.stop_s - span.start_s
        if span.segment is None:
            copied[span.device] += took
        else:
            before = found.get((span.device, span.segment), ("", 0.0))[1]
            found[span.device, span.segment] = (span.label, before + took + copied.pop(span.device, 0.0))
    return found


def timeline_of(records: Sequence[Record], devices: Sequence[str]) -> Timeline:
    """Return one request as a timeline, from the records of those who took part; all must be of one clock, the coordinator's.

    The request begins with the first thing that any device does. `devices` are the names, the host's last.

    Raises:
        RemoteProtocolError: if a record is of a device, or has one as a peer, that is not there.
    """
    named = max((device for record in records for device in (record.device, *(label.peer or 0 for label in record.labels))), default=0)
    if named >= len(devices):
        raise RemoteProtocolError(f"records: they name device {named}, but the plan has devices 0 to {len(devices) - 1}")
    begin = min((reached for record in records for reached, _, _ in record.times[:1]), default=0)
    spans = [
        span
        for record in sorted(records, key=lambda record: record.device)
        for label, times in zip(record.labels, record.times, strict=True)
        for span in _spans(record.device, label, *((moment - begin) / 1e9 for moment in times))
    ]
    return Timeline(tuple(devices), tuple(spans))


def clock_error_s(records: Sequence[Record]) -> float:
    """Return how far the clocks of two of these records may be apart."""
    errors = sorted((record.clock_error_ns for record in records), reverse=True)
    return sum(errors[:2]) / 1e9


def _spans(device: int, label: StepLabel, reached_s: float, start_s: float, stop_s: float) -> list[Span]:
    if label.lane == "compute":
        return [Span(device, "compute", label.name, start_s, stop_s, segment=label.number)]
    done = Span(device, label.lane, label.name, start_s, stop_s, message=label.number, peer=label.peer, bytes=label.bytes)
    if label.lane == "send" or reached_s == start_s:
        return [done]
    return [Span(device, "wait", label.name, reached_s, start_s, message=label.number, peer=label.peer), done]
