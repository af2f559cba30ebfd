"""All planners by name, and the one call that plans and verifies."""

from collections.abc import Callable, Mapping

from bbgrap.cluster import Cluster
from bbgrap.errors import UsageError
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions, plan_bbgrap
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, verify_plan
from bbgrap.planners.single import plan_single
from bbgrap.planners.widest import plan_widest
from bbgrap.tdl import Description

Planner = Callable[[Graph, Cluster, PlanOptions, Mapping[str, Description | None]], Plan]

PLANNERS: Mapping[str, Planner] = {"bbgrap": plan_bbgrap, "single": plan_single, "widest": plan_widest}


def make_plan(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Mapping[str, Description | None] | None = None) -> Plan:
    """Plan a graph over a cluster with the planner that the options name, and verify the plan.

    Raises:
        UsageError: if there is no planner of that name.
        PlanError: if the planner broke a law of plans.
    """
    planner = PLANNERS.get(options.planner)
    if planner is None:
        raise UsageError(f"planner: expected one of {', '.join(PLANNERS)}, got '{options.planner}'")
    found = all_descriptions(graph) if descriptions is None else descriptions
    plan = planner(graph, cluster, options, found)
    verify_plan(plan, found)
    return plan
