"""What agents record of real requests."""

from itertools import pairwise

import numpy as np
import pytest

import bbgrap
from bbgrap.session import InferenceSession
from tests.cluster import tiny

pytestmark = pytest.mark.cluster

X = np.random.default_rng(1).random((8, 4), dtype=np.float32)


@pytest.fixture(scope="module")
def trace(shared):
    return InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap").trace({"x": X}, runs=3)


def test_the_answer_is_that_of_any_request(trace):
    np.testing.assert_array_equal(trace.outputs[0], tiny.expected(X))


def test_every_device_tells_every_step(trace):
    assert len(trace.timelines) == 3
    for timeline in trace.timelines:
        assert timeline.devices == ("agent0", "agent1", "coordinator")
        for device in (0, 1):
            lanes = [span.lane for span in timeline.spans if span.device == device]
            assert (lanes.count("receive"), lanes.count("send")) == (2, 2)
            assert {span.segment for span in timeline.spans if span.device == device and span.segment is not None} == {0, 1, 2}
        host = [span for span in timeline.spans if span.device == 2]
        assert [span.lane for span in host if span.lane != "wait"] == ["send", "send", "receive", "receive", "compute"]
        assert timeline.total_s > 0


def test_sends_and_receives_are_two_ends_of_the_same_messages(trace):
    for timeline in trace.timelines:
        sent = {span.message: (span.device, span.peer, span.bytes) for span in timeline.spans if span.lane == "send"}
        received = {span.message: (span.peer, span.device, span.bytes) for span in timeline.spans if span.lane == "receive"}
        assert sent == received
        assert sent[200 + 1] == (1, 0, 16)


def test_the_clocks_are_aligned(trace):
    assert 0 < trace.clock_error_s < 0.1
    for timeline in trace.timelines:
        began = {span.message: span.start_s for span in timeline.spans if span.lane == "send"}
        for span in timeline.spans:
            if span.lane == "receive":
                assert span.stop_s >= began[span.message] - trace.clock_error_s


def test_spans_of_a_device_follow_each_other(trace):
    for timeline in trace.timelines:
        for device in range(3):
            spans = [span for span in timeline.spans if span.device == device]
            assert all(a.stop_s <= b.start_s for a, b in pairwise(spans))


def test_segments_have_times_and_names(trace):
    segments = trace.segments
    assert [(entry.device, entry.segment) for entry in segments] == [(device, n) for device in (0, 1) for n in range(3)]
    assert all(entry.median_s > 0 for entry in segments)
    assert segments[0].name == "first0: smooth"


def test_several_requests_at_once_are_recorded_apart(shared):
    """Another client's requests run in between; each record is that of its own request."""
    from concurrent.futures import ThreadPoolExecutor

    session = InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(session.run, None, {"x": X}) for _ in range(40)]
        traces = [pool.submit(session.trace, {"x": X}, 2) for _ in range(3)]
        for other in others:
            np.testing.assert_array_equal(other.result()[0], tiny.expected(X))
        for trace in traces:
            assert len(trace.result().timelines) == 2
            np.testing.assert_array_equal(trace.result().outputs[0], tiny.expected(X))


def test_a_failing_request_fails_the_trace(shared):
    session = InferenceSession(tiny.model_bytes(), cluster=shared.connection, planner="bbgrap")
    with pytest.raises(bbgrap.ExecutionError, match="poisoned_gather"):
        session.trace({"x": X + 5000})
    with pytest.raises(bbgrap.UsageError, match="at least one run"):
        session.trace({"x": X}, runs=0)
