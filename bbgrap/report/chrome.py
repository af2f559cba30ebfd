"""Timelines in the trace format of Chrome (`chrome://tracing`) and Perfetto (ui.perfetto.dev).

A process per device, a thread per lane, a complete event (`X`) per span, and an arrow (`s` to `f`) from each send to its receive; times
are microseconds. The format is described in "Trace Event Format" (Chromium project).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from bbgrap.costmodel.timeline import LANES, Span, Timeline

TraceEvent = dict[str, Any]


def chrome_trace(timeline: Timeline, title: str = "") -> dict[str, Any]:
    """Return the object to write as JSON; `title` is shown as the trace's metadata.

    Events of a thread are in order of time and do not overlap: a span that begins before its predecessor has ended, which only rounding
    or a clock's error can cause, begins where that ends.
    """
    tracks: defaultdict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        tracks[span.device, LANES.index(span.lane)].append(span)
    events = [event for device, name in enumerate(timeline.devices) for event in _names(device, name)]
    starts: dict[str, dict[int, tuple[float, int, int]]] = {"send": {}, "receive": {}}
    for (device, lane), spans in sorted(tracks.items()):
        free_ns = 0
        for span in sorted(spans, key=lambda span: (span.start_s, span.stop_s)):
            start_ns = max(free_ns, round(span.start_s * 1e9))
            free_ns = max(start_ns, round(span.stop_s * 1e9))
            events.append(_span(span, device, lane, start_ns / 1e3, (free_ns - start_ns) / 1e3))
            if span.lane in starts and span.message is not None:
                starts[span.lane][span.message] = (start_ns / 1e3, device, lane)
    for message in sorted(starts["send"].keys() & starts["receive"].keys()):
        events += [
            _flow(message, "s", *starts["send"][message]),
            {**_flow(message, "f", *starts["receive"][message]), "bp": "e"},
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": title}}


def _names(device: int, name: str) -> list[TraceEvent]:
    process: TraceEvent = {"ph": "M", "pid": device, "tid": 0, "ts": 0}
    lanes = [
        {**process, "tid": lane, "name": key, "args": args}
        for lane, label in enumerate(LANES)
        for key, args in (("thread_name", {"name": label}), ("thread_sort_index", {"sort_index": lane}))
    ]
    head = [("process_name", {"name": name}), ("process_sort_index", {"sort_index": device})]
    return [*({**process, "name": key, "args": args} for key, args in head), *lanes]


def _span(span: Span, device: int, lane: int, start_us: float, took_us: float) -> TraceEvent:
    told = {"message": span.message, "peer": span.peer, "segment": span.segment, "bytes": span.bytes or None}
    args = {key: value for key, value in told.items() if value is not None}
    head = {"ph": "X", "pid": device, "tid": lane, "ts": start_us, "dur": took_us, "cat": span.lane}
    return {**head, "name": span.label or span.lane, "args": args}


def _flow(message: int, phase: str, start_us: float, device: int, lane: int) -> TraceEvent:
    return {"ph": phase, "pid": device, "tid": lane, "ts": start_us, "id": message, "cat": "halo", "name": f"message {message}"}
