"""OpenTelemetry spans of requests: one for each, with a child for each node of those that were recorded. Needs extra `otel`.

    request      model, outcome                              |--------------------------------|
      node       compute, wait, send, receive, bytes           |---------------------|

The trace goes on that a client's `traceparent` (W3C Trace Context) names; one that is malformed is as none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import time_ns

from bbgrap.costmodel.timeline import LANES, Timeline
from bbgrap.errors import UsageError
from bbgrap.protocol.version import VERSION

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise UsageError(f"spans: {error.name} is not installed; install it with: pip install 'bbgrap[otel]'") from None


SEND_S = 2.0
"""How long a batch is tried to be sent; the end of this process waits for so long, too."""


class Spans:
    """Makes spans and sends them, in batches and in a thread of its own, to an OTLP receiver over HTTP.

    What cannot be sent is dropped, with a line in the log: no request waits for a receiver.
    """

    def __init__(self, endpoint: str) -> None:
        """Send to `endpoint`, as http://HOST:4318/v1/traces."""
        self._provider = TracerProvider(resource=Resource.create({"service.name": "bbgrap", "service.version": VERSION}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=SEND_S)))
        self._tracer = self._provider.get_tracer("bbgrap", VERSION)

    @contextmanager
    def request(self, model: str, traceparent: str = "") -> Iterator[RequestSpan]:
        """Make the span of a request that is run inside; an exception makes it a failed one, and goes on."""
        parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent} if traceparent else {})
        attributes = {"bbgrap.model": model}
        with self._tracer.start_as_current_span(f"infer {model}", parent, kind=SpanKind.SERVER, attributes=attributes) as span:
            made = RequestSpan(self._tracer, span, time_ns())
            yield made
            span.set_status(Status(StatusCode.OK))

    def close(self) -> None:
        """Send what is left, and end."""
        self._provider.shutdown()


class RequestSpan:
    """The span of a request that goes on."""

    def __init__(self, tracer: Tracer, span: Span, started_ns: int) -> None:
        """Begin at `started_ns`, in nanoseconds since 1970."""
        self._tracer = tracer
        self._span = span
        self._started_ns = started_ns

    def add(self, timeline: Timeline) -> None:
        """Make a child for every node that did something; to be called as soon as the answer is there.

        The timeline's clock is the coordinator's. What it leaves of the time since the request began is taken to have passed before and
        after it in equal parts.
        """
        context = set_span_in_context(self._span)
        slack_ns = time_ns() - self._started_ns - round(1e9 * timeline.total_s)
        zero_ns = self._started_ns + max(0, slack_ns // 2)
        for device, name in enumerate(timeline.devices):
            mine = [span for span in timeline.spans if span.device == device]
            if not mine:
                continue
            attributes: dict[str, str | float | int] = {"bbgrap.node": name}
            attributes |= {f"bbgrap.{lane}_seconds": timeline.busy_s(device, lane) for lane in LANES}
            attributes["bbgrap.sent_bytes"] = sum(span.bytes for span in mine if span.lane == "send")
            begin = zero_ns + round(1e9 * min(span.start_s for span in mine))
            child = self._tracer.start_span(f"node {name}", context, attributes=attributes, start_time=begin)
            child.end(zero_ns + round(1e9 * max(span.stop_s for span in mine)))
