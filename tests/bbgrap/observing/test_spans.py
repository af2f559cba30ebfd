import time
from contextlib import closing

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from bbgrap.costmodel.timeline import Span, Timeline
from bbgrap.observing.spans import Spans
from tests.bbgrap.observing.receiver import receiver

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TIMELINE = Timeline(
    ("left", "right", "idle", "coordinator"),
    (
        Span(0, "compute", "s", 0.001, 0.003, segment=0),
        Span(0, "send", "y", 0.003, 0.004, message=1, peer=1, bytes=64),
        Span(1, "wait", "y", 0.000, 0.004, message=1, peer=0),
        Span(1, "compute", "s", 0.004, 0.006, segment=0),
        Span(3, "receive", "y", 0.006, 0.007, message=2, peer=1, bytes=8),
    ),
)


def attributes(span) -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def test_a_request_and_its_nodes_arrive_in_the_trace_of_the_client():
    with receiver() as received:
        began = time.time_ns()
        with closing(Spans(received.endpoint)) as spans, spans.request("resnet50", f"00-{TRACE}-{PARENT}-01") as request:
            time.sleep(0.02)
            request.add(TIMELINE)
        (root,) = [span for span in received.spans if span.name == "infer resnet50"]
        nodes = {span.name: span for span in received.spans if span is not root and span.parent_span_id == root.span_id}
        (resource,) = received.resources
        assert attributes(resource.resource)["service.name"] == "bbgrap"
        assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
        assert (attributes(root)["bbgrap.model"], root.status.code) == ("resnet50", Status.STATUS_CODE_OK)
        assert nodes.keys() == {"node left", "node right", "node coordinator"}
        assert {span.trace_id.hex() for span in nodes.values()} == {TRACE}
        left, right = nodes["node left"], nodes["node right"]
        assert attributes(left)["bbgrap.sent_bytes"] == 64
        assert attributes(left)["bbgrap.compute_seconds"] == pytest.approx(0.002)
        assert attributes(right)["bbgrap.wait_seconds"] == pytest.approx(0.004)
        assert began <= root.start_time_unix_nano <= right.start_time_unix_nano < left.start_time_unix_nano
        assert left.end_time_unix_nano <= right.end_time_unix_nano <= root.end_time_unix_nano


def test_a_failed_request_is_a_failed_span_and_fails_on():
    with receiver() as received:
        with closing(Spans(received.endpoint)) as spans, pytest.raises(ValueError, match="broken"), spans.request("m"):
            raise ValueError("broken")
        (span,) = received.spans
        assert span.status.code == Status.STATUS_CODE_ERROR
        assert [event.name for event in span.events] == ["exception"]
        assert span.parent_span_id == b""


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 32 + f"-{PARENT}-01", "ff" * 500])
def test_what_is_no_traceparent_begins_a_trace(traceparent):
    with receiver() as received:
        with closing(Spans(received.endpoint)) as spans, spans.request("m", traceparent):
            pass
        (span,) = received.spans
        assert span.parent_span_id == b""
        assert len(span.trace_id.strip(b"\0")) > 0


def test_without_a_receiver_requests_go_on():
    began = time.monotonic()
    with closing(Spans("http://127.0.0.1:9/v1/traces")) as spans, spans.request("m"):
        pass
    assert time.monotonic() - began < 30
