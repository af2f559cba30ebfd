"""A coordinator's status as Prometheus scrapes it: text exposition format, base units, counters that end in `_total`.

Needs prometheus-client (extra `serve`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from bbgrap.errors import UsageError
from bbgrap.protocol.status_messages import LATENCY_BUCKETS_S, ModelStatus, Status

try:
    from prometheus_client.exposition import generate_latest
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
except ImportError as error:
    raise UsageError(f"metrics: {error.name} is not installed; install it with: pip install 'bbgrap[serve]'") from None

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of an answer with this text."""

_SHORT = 12
"""Characters of a digest in a label."""
_MODEL = ("model", "digest")


def exposition(status: Status | None, more: Iterable[Metric] = ()) -> str:
    """Return the metrics of a status, and others; None: the coordinator does not answer."""

    class _Collector:
        def collect(self) -> Iterable[Metric]:
            yield _gauge("bbgrap_coordinator_up", "Whether the coordinator answers.", (), [((), float(status is not None))])
            if status is not None:
                yield from _coordinator(status)
                yield from _nodes(status)
                yield from _links(status)
                yield from _requests(status)
                yield from _plans(status)
            yield from more

    return generate_latest(_Collector()).decode()


Rows = Iterable[tuple[tuple[str, ...], float]]


def _family(kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, said: str, labels: tuple[str, ...], rows: Rows) -> Metric:
    family = kind(name, said, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


_gauge, _counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)


def _coordinator(status: Status) -> Iterator[Metric]:
    yield _gauge("bbgrap_coordinator_info", "The coordinator's version.", ("version",), [((status.version,), 1)])
    yield _gauge("bbgrap_coordinator_start_time_seconds", "When it started, in seconds since 1970.", (), [((), status.started)])


def _nodes(status: Status) -> Iterator[Metric]:
    # Who left on purpose is nobody's concern.
    nodes = [node for node in status.nodes if node.state != "left"]
    alive = [node for node in nodes if node.state == "alive"]
    up = [((n.name,), float(n.state == "alive")) for n in nodes]
    yield _gauge("bbgrap_node_up", "Whether a node is there; 0: it was lost.", ("node",), up)
    versions = [((n.name, n.version, n.onnxruntime), 1.0) for n in alive]
    yield _gauge("bbgrap_node_info", "Versions on a node.", ("node", "version", "onnxruntime"), versions)
    for name, said, rows in (
        ("busy_ratio", "The part of the last second in which it computed.", [((n.name,), n.busy) for n in alive]),
        ("memory_bytes", "Memory it may use.", [((n.name,), float(n.memory_bytes)) for n in alive]),
        ("memory_free_bytes", "Memory its machine or container has left.", [((n.name,), float(n.free_bytes)) for n in alive]),
        ("worker_memory_bytes", "Memory its worker takes.", [((n.name,), float(n.used_bytes)) for n in alive]),
        ("requests_in_flight", "Requests in flight in which it has a part.", [((n.name,), float(n.running)) for n in alive]),
    ):
        yield _gauge(f"bbgrap_node_{name}", said, ("node",), rows)


def _links(status: Status) -> Iterator[Metric]:
    pair, links = ("src", "dst"), [((link.source, link.destination), link) for link in status.links]
    measured = [(names, link) for names, link in links if link.bandwidth_bytes_per_s]
    yield _gauge("bbgrap_link_up", "Whether tensors can travel.", pair, [(names, float(link.is_up)) for names, link in links])
    rates = [(names, link.bandwidth_bytes_per_s) for names, link in measured]
    yield _gauge("bbgrap_link_bandwidth_bytes_per_second", "Measured bandwidth.", pair, rates)
    trips = [(names, link.round_trip_s) for names, link in measured]
    yield _gauge("bbgrap_link_round_trip_seconds", "Measured time there and back.", pair, trips)
    sent = [((e.source, e.destination), float(e.bytes)) for e in status.exchanges]
    yield _counter("bbgrap_exchange_bytes", "Bytes of tensors for requests that ended well, by the plans' counts.", pair, sent)


def _labels(model: ModelStatus) -> tuple[str, str]:
    return model.name, model.model[:_SHORT]


def _requests(status: Status) -> Iterator[Metric]:
    models = [(_labels(model), model) for model in status.models]

    def of(value: Callable[[ModelStatus], float]) -> Rows:
        return [(labels, value(model)) for labels, model in models]

    ended = [((*labels, how), float(count)) for labels, model in models for how, count in sorted(model.requests.items())]
    yield _counter("bbgrap_requests", "Requests that have ended, and how.", (*_MODEL, "outcome"), ended)
    yield _histogram(models)
    yield _counter("bbgrap_request_queue_seconds", "How long answered requests waited until they ran.", _MODEL, of(lambda m: m.queued_s))
    yield _gauge("bbgrap_queue_depth", "Requests that wait.", _MODEL, of(lambda m: m.waiting))
    yield _gauge("bbgrap_requests_in_flight", "Requests that run.", _MODEL, of(lambda m: m.running))
    yield _gauge("bbgrap_sequences", "Sequences that are open.", _MODEL, of(lambda m: m.sequences))
    yield _counter("bbgrap_sequences_recovered", "Sequences whose state was lost and computed anew.", _MODEL, of(lambda m: m.recovered))
    yield _counter("bbgrap_requests_replayed", "Requests that ran again for that.", _MODEL, of(lambda m: m.replayed))


def _histogram(models: Iterable[tuple[tuple[str, str], ModelStatus]]) -> Metric:
    family = HistogramMetricFamily("bbgrap_request_duration_seconds", "How long answered requests took.", labels=_MODEL)
    for labels, model in models:
        total, buckets = 0, []
        bounds = [*(f"{bound:g}" for bound in LATENCY_BUCKETS_S), "+Inf"]
        for bound, count in zip(bounds, model.latency.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(labels, buckets, model.latency.sum_s)
    return family


def _plans(status: Status) -> Iterator[Metric]:
    plans = [((*_labels(model), plan.plan[:_SHORT]), plan) for model in status.models for plan in model.plans]
    keys = (*_MODEL, "plan")
    about = [((*labels, p.planner, p.variant, p.serves, ",".join(p.nodes)), 1.0) for labels, p in plans]
    yield _gauge("bbgrap_plan_info", "What serves a plan's requests.", (*keys, "planner", "variant", "serves", "nodes"), about)
    known = [(labels, p) for labels, p in plans if p.serves == "plan" and p.predicted_s and p.measured_s]
    ratios = [(labels, p.measured_s / p.predicted_s) for labels, p in known]
    yield _gauge("bbgrap_prediction_ratio", "Measured over predicted time of a request.", keys, ratios)
    held = [((*labels, node), float(size)) for labels, p in plans for node, size in p.weight_bytes.items()]
    yield _gauge("bbgrap_plan_weight_bytes", "Weights of what serves, by node.", (*keys, "node"), held)
    segments = [((*labels, s.node, str(s.segment)), s) for labels, p in plans for s in p.segments]
    place = (*keys, "node", "segment")
    took = [(labels, s.measured_s) for labels, s in segments]
    yield _gauge("bbgrap_segment_duration_seconds", "Segments of the latest recorded request.", place, took)
    expected = [(labels, s.predicted_s) for labels, s in segments if s.predicted_s]
    yield _gauge("bbgrap_segment_predicted_seconds", "What was predicted of them.", place, expected)
