"""What travels in a request: by the plan, and as those counted who received it."""

from __future__ import annotations

from collections import Counter

from bbgrap.cluster.types import COORDINATOR
from bbgrap.costmodel.timeline import Timeline
from bbgrap.local import LocalCluster

Pairs = dict[tuple[str, str], int]
"""Bytes, by the names of who sends and who receives."""


def exchanged(cluster: LocalCluster) -> Pairs:
    """Return what has travelled, by the plans' counts."""
    return {(e.source, e.destination): e.bytes for e in cluster.connection.status().exchanges}


def arrived(timeline: Timeline) -> Pairs:
    """Return what came to whom in a request, as those counted who received it."""
    names = (*timeline.devices[:-1], COORDINATOR)
    sums: Counter[tuple[str, str]] = Counter()
    for span in timeline.spans:
        if span.lane == "receive" and span.peer is not None:
            sums[names[span.peer], names[span.device]] += span.bytes
    return dict(sums)
