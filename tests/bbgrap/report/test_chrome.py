"""The trace format: what Chrome and Perfetto demand of it."""

import json
from collections import defaultdict
from itertools import pairwise

from hypothesis import given

from bbgrap.costmodel.timeline import Span, Timeline
from bbgrap.report.chrome import chrome_trace
from tests.bbgrap.report.timelines import timelines, two_devices


def check_format(trace):
    events = json.loads(json.dumps(trace, allow_nan=False))["traceEvents"]
    tracks, flows = defaultdict(list), defaultdict(list)
    for event in events:
        assert {"ph", "pid", "tid", "ts"} <= set(event)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
        elif event["ph"] in "sf":
            flows[event["id"]].append(event)
        else:
            assert event["ph"] == "M"
    for track in tracks.values():
        for event in track:
            assert event["dur"] >= 0
            assert event["name"]
        for before, after in pairwise(track):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    for ends in flows.values():
        assert [end["ph"] for end in ends] == ["s", "f"]
        assert len({(end["cat"], end["name"]) for end in ends}) == 1
        assert ends[1]["bp"] == "e"
        for end in ends:
            # An arrow belongs to the event of its thread that it lies in.
            assert any(x["ts"] <= end["ts"] <= x["ts"] + x["dur"] for x in tracks[end["pid"], end["tid"]])
    return events


@given(timelines())
def test_every_timeline_keeps_the_format(timeline):
    events = check_format(chrome_trace(timeline, "any"))
    assert sum(event["ph"] == "X" for event in events) == len(timeline.spans)


def test_processes_threads_and_arrows():
    trace = chrome_trace(two_devices(), "two")
    events = check_format(trace)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "a", 1: "b", 2: "coordinator"}
    order = {event["pid"]: event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index"}
    assert order == {0: 0, 1: 1, 2: 2}
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1}
    assert threads == {0: "compute", 1: "send", 2: "receive", 3: "wait"}
    computed = [event for event in events if event["ph"] == "X" and event["pid"] == 0]
    assert computed[0] == {
        "ph": "X", "pid": 0, "tid": 0, "ts": 1000.0, "dur": 3000.0, "cat": "compute", "name": "s0: y[0:2]", "args": {"segment": 0},
    }  # fmt: skip
    assert computed[1]["args"] == {"message": 5, "peer": 1, "bytes": 64}
    arrows = [(event["id"], event["ph"], event["pid"], event["ts"]) for event in events if event["ph"] in "sf"]
    assert arrows == [(5, "s", 0, 4000.0), (5, "f", 1, 4500.0), (6, "s", 1, 9000.0), (6, "f", 2, 9500.0)]
    assert trace["otherData"] == {"title": "two"}


def test_a_message_with_one_end_has_no_arrow():
    alone = Timeline(("a", "b"), (Span(0, "send", "y", 0.0, 0.1, message=1, peer=1, bytes=4),))
    assert not [event for event in check_format(chrome_trace(alone)) if event["ph"] in "sf"]


def test_spans_that_overlap_by_rounding_are_put_in_a_row():
    spans = (Span(0, "compute", "first", 0.0, 0.3 + 1e-16), Span(0, "compute", "second", 0.1 + 0.2 - 1e-9, 0.4))
    check_format(chrome_trace(Timeline(("a",), spans)))
