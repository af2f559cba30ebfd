"""What lies between two looks at a coordinator: requests per second and how long they took.

Counters begin again when a coordinator does; then everything since its start lies between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bbgrap.protocol.status_messages import LATENCY_BUCKETS_S, Latency, ModelStatus, Status

PARTS = (0.5, 0.95, 0.99)
"""The percentiles that are shown."""


@dataclass(frozen=True, slots=True)
class ModelRates:
    """A model between two looks.

    `per_s` counts what was answered, `failing_per_s` what failed or was refused; `quantiles_s` are those of `PARTS`, and `queued_s` is how
    long a request waited on average; all 0 if none was answered. `waiting` and `running` are of the later look.
    """

    model: str
    name: str
    per_s: float
    failing_per_s: float
    quantiles_s: tuple[float, ...]
    queued_s: float
    waiting: int
    running: int


def rates_between(before: Status | None, after: Status) -> tuple[ModelRates, ...]:
    """Return what happened to each model between two looks; without an earlier one, since the coordinator started."""
    known: dict[str, ModelStatus] = {}
    seconds = after.uptime_s
    if before is not None and before.incarnation == after.incarnation and before.now < after.now:
        known, seconds = {model.model: model for model in before.models}, after.now - before.now
    return tuple(_rates(known.get(model.model), model, max(seconds, 1e-9)) for model in after.models)


def _rates(before: ModelStatus | None, after: ModelStatus, seconds: float) -> ModelRates:
    ended, latency, queued = Counter(after.requests), after.latency, after.queued_s
    if before is not None:
        ended.subtract(before.requests)
        counts = tuple(now - then for now, then in zip(latency.counts, before.latency.counts, strict=True))
        latency, queued = Latency(counts, latency.sum_s - before.latency.sum_s), queued - before.queued_s
    done, failing = ended["done"], ended["failed"] + ended["refused"]
    quantiles = quantiles_of(latency, PARTS)
    return ModelRates(
        after.model, after.name, done / seconds, failing / seconds, quantiles, queued / done if done else 0.0, after.waiting, after.running
    )


def quantiles_of(latency: Latency, parts: Sequence[float]) -> tuple[float, ...]:
    """Return how long these parts (0 to 1) of the requests took at most, in seconds: between the bounds of a bucket in proportion.

    0 of none; what lies beyond the last bound counts as that.
    """
    bounds = (0.0, *LATENCY_BUCKETS_S, LATENCY_BUCKETS_S[-1])
    total = sum(latency.counts)
    found = []
    for part in parts:
        wanted, seen, seconds = part * total, 0, 0.0
        for place, count in enumerate(latency.counts):
            if count and seen + count >= wanted:
                seconds = bounds[place] + (bounds[place + 1] - bounds[place]) * (wanted - seen) / count
                break
            seen += count
        found.append(seconds)
    return tuple(found)
