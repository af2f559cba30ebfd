"""Other ways to run a planned model: the best single node and the next best plans beside a plan, or the whole model on every node.

Only planner `auto` (and, for streams, `single`) gets others than its own plan. Law: the nodes have memory for all routes together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bbgrap.auto.forecast import Forecast
from bbgrap.cluster import Cluster
from bbgrap.compiler.artifacts import Artifacts
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.compiler.memory import needed_bytes, overfull
from bbgrap.engine.prepared import Alternative
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions, TransferType
from bbgrap.planners.plan import Plan, verify_plan
from bbgrap.planners.registry import AUTO
from bbgrap.planners.single import plan_whole
from bbgrap.program.dictionaries import ways_of_palettes
from bbgrap.report.plan_report import report_of

LEAST_SHARE = 0.5
"""Part of all shares that the nodes with room for the whole model must have, for a stream to be run by them alone; with less, a plan over
all nodes is assumed to do more in spite of its exchanges. Chosen: plans of two nodes reach 1.4 to 1.5 times one node (decision 6)."""


def serves_streams(options: PlanOptions) -> bool:
    """Whether what was asked for is as many requests as possible, and not one particular plan."""
    return options.objective == "throughput" and options.planner in {AUTO, "single"}


def is_guarded(options: PlanOptions) -> bool:
    """Whether other routes are to be tried against the plan."""
    return options.objective == "latency" and options.planner == AUTO


def beside(forecast: Forecast, artifacts: Artifacts, report: Mapping[str, Any]) -> tuple[Alternative, ...]:
    """Return other routes beside a plan: the best single node, then the next best plans, as far as the nodes have room for them."""
    routes = [Alternative(AUTO, artifacts, report)]
    cluster, program = forecast.compiled.plan.cluster, forecast.compiled.optimized
    for name, plan in _others(forecast):
        route = _route(name, plan, program.transfers, program.palettes)
        if fits(cluster, (*routes, route)):
            routes.append(route)
    return tuple(routes[1:])


def _others(forecast: Forecast) -> Iterator[tuple[str, Plan]]:
    """Yield the best single node, the next best plan, and the best one of another planner: plans that grew from one candidate err alike."""
    plan, single_s, tried = forecast.compiled.plan, forecast.single_s, False
    best = min(range(len(single_s)), key=lambda device: (single_s[device], device))
    if plan.devices_used != (best,):
        yield f"single on {plan.cluster.nodes[best].name}", plan_whole(plan.graph, plan.cluster, best)
    for candidate in forecast.found.candidates if forecast.found else ():
        other = Plan(AUTO, plan.graph, plan.cluster, candidate.tiles)
        if len(other.devices_used) > 1 and other.tiles != plan.tiles and (candidate.is_plain or not tried):
            tried = True
            yield candidate.name, other
            if candidate.is_plain:
                return


def whole_on_each(graph: Graph, cluster: Cluster, options: PlanOptions) -> tuple[Alternative, ...]:
    """Return a route per node that has room for the whole model, the largest share first; for `auto` none if they are too small a part."""
    order = sorted(range(cluster.host), key=lambda device: (-cluster.shares[device], device))
    names = [f"single on {node.name}" for node in cluster.nodes]
    palettes = ways_of_palettes(cluster, options.input_values)
    routes = {device: _route(names[device], plan_whole(graph, cluster, device), options.transfer_dtype, palettes) for device in order}
    able = [device for device in order if fits(cluster, (routes[device],))]
    if options.planner == AUTO and sum(cluster.shares[device] for device in able) < LEAST_SHARE * sum(cluster.shares):
        return ()
    return tuple(routes[device] for device in able)


def fits(cluster: Cluster, routes: Sequence[Alternative]) -> bool:
    """Whether the nodes have memory for all these routes at once."""
    needed = tuple(sum(route.report["memory_bytes"][node.name] for route in routes) for node in cluster.nodes)
    return not overfull(cluster, needed)


def _route(name: str, plan: Plan, transfers: TransferType, palettes: frozenset[int]) -> Alternative:
    descriptions = all_descriptions(plan.graph)
    verify_plan(plan, descriptions)
    compiled = compile_plan(plan, descriptions, transfers, palettes)
    artifacts = export(compiled.optimized)
    forecast = Forecast(compiled, descriptions)
    names = [node.name for node in plan.cluster.nodes]
    report = (
        report_of(compiled, 0.0)
        | forecast.report()
        | {
            "memory_bytes": dict(zip(names, needed_bytes(compiled.optimized, artifacts), strict=True)),
            "weight_bytes": {node: device.weight_bytes for node, device in zip(names, artifacts.devices, strict=True)},
            "changed": [],
        }
    )
    return Alternative(name, artifacts, report)
