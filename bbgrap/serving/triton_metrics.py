"""The models of this server by Triton's names (`nv_inference_...`), for dashboards that were made for it: as their statistics count them.

They are untyped, for Triton's names and microseconds are not what Prometheus asks of a counter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from prometheus_client.metrics_core import Metric, UnknownMetricFamily

from bbgrap.protocol.status_messages import Status
from bbgrap.serving.model import Durations, ServedModel


def triton_metrics(models: Collection[ServedModel], status: Status | None) -> Iterator[Metric]:
    """Return the metrics of models. Each request counts, whether or not it ran in a batch; those that wait are of all clients."""
    waiting: Counter[str] = Counter()
    for known in () if status is None else status.models:
        waiting[known.name] += known.waiting
    counts = [model.statistics.counts for model in models]
    for name, values in (
        ("request_success", [count.success for count in counts]),
        ("request_failure", [count.fail for count in counts]),
        ("count", [count.success for count in counts]),
        ("exec_count", [count.executions for count in counts]),
        ("request_duration_us", [count.success_ns // 1000 for count in counts]),
        *((f"{part}_duration_us", [getattr(count.durations, part) // 1000 for count in counts]) for part in Durations._fields),
        ("pending_request_count", [waiting[model.name] for model in models]),
    ):
        family = UnknownMetricFamily(f"nv_inference_{name}", "As Triton counts it.", labels=("model", "version"))
        for model, value in zip(models, values, strict=True):
            family.add_metric((model.name, model.version), value)
        yield family
