"""An OTLP receiver over HTTP that keeps what comes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class Receiver:
    """What came so far."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.resources: list[ResourceSpans] = []

    @property
    def spans(self) -> list[Span]:
        return [span for resource in self.resources for scope in resource.scope_spans for span in scope.spans]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Listen on a free port; what is sent must be protobuf, as the OTLP specification says."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.resources.extend(ExportTraceServiceRequest.FromString(body).resource_spans)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Receiver(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
