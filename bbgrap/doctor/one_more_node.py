"""What keeps a model from being faster on a cluster, and whether one more node would help: by the predictions that plans are made with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bbgrap.auto.explain import NO_ROOM, bottleneck
from bbgrap.auto.forecast import Forecast
from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.doctor.checks import Finding
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.addresses import host_of
from bbgrap.protocol.status_messages import NodeStatus

WORTH = 0.1
"""Of the time of a request, what a change must save to be worth its trouble. Chosen."""


def cluster_of(nodes: Sequence[NodeStatus]) -> Cluster:
    """Return the agents as a planner sees them; those at one address share a machine.

    Raises:
        ClusterFileError: if there is none.
    """
    places = Counter(host_of(node.address) for node in nodes)

    def profile(node: NodeStatus) -> NodeProfile:
        place = host_of(node.address)
        told = NodeProfile(node.name, cores=node.cores, threads=node.threads, memory_bytes=node.memory_bytes)
        return replace((node.profile or told).over(told), name=node.name, machine=place if places[place] > 1 else "")

    return Cluster(tuple(map(profile, nodes)))


def check_model(model: str, forecast: Forecast, options: PlanOptions) -> Iterator[Finding]:
    """Yield what is predicted of a model, and what would change it."""
    names = [node.name for node in forecast.compiled.plan.cluster.nodes]
    seconds = forecast.timeline.total_s
    expected = NO_ROOM if forecast.alone is None else f"'{forecast.alone[0]}' alone takes {1e3 * forecast.alone[1]:.1f} ms"
    found = f"predicted {1e3 * seconds:.1f} ms a request over {len(forecast.compiled.plan.devices_used)} of {len(names)} nodes"
    advice = bottleneck(forecast, names)
    yield Finding("note", model, "prediction", found, expected, advice)
    for words, then in forecast.what_if(options):
        saved = 1 - then / seconds
        found = f"with {words} {1e3 * then:.1f} ms a request, {saved:.0%} less" if saved > 0 else f"{words} would gain nothing"
        advice = "worth it, if requests take too long" if saved >= WORTH else "not worth it for single requests"
        yield Finding("note", model, "what if", found, f"{WORTH:.0%} less to be worth it", advice)
