"""From records to timelines."""

import pytest

from bbgrap.costmodel.timeline import Span, Timeline
from bbgrap.errors import RemoteProtocolError
from bbgrap.report.trace import SegmentTime, Trace, clock_error_s, segment_seconds, timeline_of
from bbgrap.runtime.recording import Record, StepLabel

AGENT = Record(
    0,
    (
        StepLabel("receive", "x", 3, 1, 64),
        StepLabel("compute", "s: y", 0),
        StepLabel("compute", "join: z"),
        StepLabel("send", "y", 4, 1, 32),
    ),
    ((1_000, 3_000, 4_000), (4_000, 4_000, 9_000), (9_000, 9_000, 9_500), (9_500, 9_500, 9_600)),
    200,
)
HOST = Record(1, (StepLabel("send", "x", 3, 0, 64), StepLabel("receive", "y", 4, 0, 32)), ((2_000, 2_000, 2_500), (2_500, 9_700, 9_800)))


def test_records_become_one_timeline():
    timeline = timeline_of((HOST, AGENT), ("a", "coordinator"))
    rounded = [
        (span.device, span.lane, round(span.start_s * 1e6, 3), round(span.stop_s * 1e6, 3), span.message, span.segment)
        for span in timeline.spans
    ]
    assert rounded == [
        (0, "wait", 0, 2, 3, None),
        (0, "receive", 2, 3, 3, None),
        (0, "compute", 3, 8, None, 0),
        (0, "compute", 8, 8.5, None, None),
        (0, "send", 8.5, 8.6, 4, None),
        (1, "send", 1, 1.5, 3, None),
        (1, "wait", 1.5, 8.7, 4, None),
        (1, "receive", 8.7, 8.8, 4, None),
    ]
    assert [span.bytes for span in timeline.spans] == [0, 64, 0, 0, 32, 64, 0, 32]
    assert [span.peer for span in timeline.spans] == [1, 1, None, None, 1, 0, 0, 0]
    assert timeline.total_s == pytest.approx(8.8e-6)


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(RemoteProtocolError, match="they name device 1, but the plan has devices 0 to 0"):
        timeline_of((AGENT,), ("a",))


def test_two_clocks_may_be_apart_by_both_errors():
    assert clock_error_s((AGENT, HOST)) == pytest.approx(200e-9)
    assert clock_error_s((AGENT, AGENT, HOST)) == pytest.approx(400e-9)
    assert clock_error_s(()) == 0


def timeline(took, *more):
    return Timeline(("a", "b"), (Span(0, "compute", "s", 0.0, took, segment=0), *more))


def test_medians_over_requests():
    join = Span(0, "compute", "join: z", 1.0, 9.0)  # of the outputs: no segment follows
    other = Span(1, "compute", "t", 0.0, 0.5, segment=2)
    trace = Trace((timeline(3.0), timeline(1.0, join), timeline(2.0, other)), 0.0)
    assert trace.segments == (SegmentTime(0, 0, "s", 2.0), SegmentTime(1, 2, "t", 0.5))
    assert trace.median.total_s == 3.0
    assert Trace((timeline(3.0), timeline(1.0)), 0.0).median.total_s == 1.0


def test_copies_count_for_the_segment_that_they_are_for():
    spans = (
        Span(0, "compute", "join: x", 0.0, 1.0),
        Span(1, "compute", "join: x", 0.0, 8.0),
        Span(0, "wait", "h", 1.0, 2.0, message=1, peer=1),
        Span(0, "compute", "join: y", 2.0, 2.5),
        Span(0, "compute", "s", 3.0, 5.0, segment=0),
        Span(0, "compute", "t", 5.0, 6.0, segment=1),
    )
    assert segment_seconds(Timeline(("a", "b"), spans)) == {(0, 0): ("s", 3.5), (0, 1): ("t", 1.0)}
