"""Other ways to run a planned model: the best single node beside a plan, or the whole model on every node.

Only planner `auto` (and, for streams, `single`) is given others than its own plan. Law: the nodes have memory for all routes together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import verify_plan
from bbgrap.planners.single import best_node, plan_whole
from bbgrap.program.artifacts import Artifacts
from bbgrap.program.compile import compile_plan
from bbgrap.program.export import export
from bbgrap.program.memory import needed_bytes, overfull
from bbgrap.program.report import report_of

LEAST_SHARE = 0.5
"""Part of all shares that the nodes with room for the whole model must have, for a stream to be run by them alone; with less, a plan over
all nodes is assumed to do more in spite of its exchanges. Chosen: plans of two nodes reach 1.4 to 1.5 times one node (decision 6)."""


@dataclass(frozen=True)
class Alternative:
    """A route of a model: its name, what is shipped, and its report."""

    name: str
    artifacts: Artifacts
    report: Mapping[str, Any]


def whole_on(graph: Graph, cluster: Cluster, device: int) -> Alternative:
    """Return the route that runs the whole model on one node; `memory_bytes` in its report says what it needs."""
    descriptions = all_descriptions(graph)
    plan = plan_whole(graph, cluster, device)
    verify_plan(plan, descriptions)
    compiled = compile_plan(plan, descriptions)
    artifacts = export(compiled.optimized)
    names = [node.name for node in cluster.nodes]
    needed = needed_bytes(compiled.optimized, artifacts)
    report = report_of(compiled, 0.0) | {"memory_bytes": dict(zip(names, needed, strict=True)), "changed": []}
    return Alternative(f"single on {names[device]}", artifacts, report)


def beside(graph: Graph, cluster: Cluster, plan: Alternative) -> tuple[Alternative, ...]:
    """Return the best single node as another route beside a plan, if it has room for both and the plan is not just that."""
    best = best_node(cluster)
    if list(plan.report["nodes_used"]) == [cluster.nodes[best].name]:
        return ()
    single = whole_on(graph, cluster, best)
    return (single,) if fits(cluster, (plan, single)) else ()


def whole_on_each(graph: Graph, cluster: Cluster) -> tuple[Alternative, ...]:
    """Return a route per node that has room for the whole model, the largest share first; none if those nodes are too small a part."""
    order = sorted(range(cluster.host), key=lambda device: (-cluster.shares[device], device))
    routes = {device: whole_on(graph, cluster, device) for device in order}
    able = [device for device in order if fits(cluster, (routes[device],))]
    if sum(cluster.shares[device] for device in able) < LEAST_SHARE * sum(cluster.shares):
        return ()
    return tuple(routes[device] for device in able)


def serves_streams(options: PlanOptions) -> bool:
    """Whether what was asked for is as many requests as possible, and not one particular plan."""
    return options.objective == "throughput" and options.planner in {"auto", "single"}


def fits(cluster: Cluster, routes: Sequence[Alternative]) -> bool:
    """Whether the nodes have memory for all these routes at once."""
    needed = tuple(sum(route.report["memory_bytes"][node.name] for route in routes) for node in cluster.nodes)
    return not overfull(cluster, needed)
