"""All planners by name, and the one call that plans and verifies."""

from collections.abc import Callable, Mapping

from bbgrap.cluster import Cluster
from bbgrap.errors import UsageError
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions, plan_bbgrap
from bbgrap.planners.by_layer import plan_data_parallel, plan_model_parallel, plan_one_weird_trick
from bbgrap.planners.equal_chop import plan_equal_chop
from bbgrap.planners.fewer_exchanges import plan_fewer_exchanges
from bbgrap.planners.fused_tiles import plan_fused_tiles
from bbgrap.planners.hypar import plan_hypar
from bbgrap.planners.layerwise import plan_layerwise
from bbgrap.planners.made_of_weights import made_where_read
from bbgrap.planners.options import AUTO, PlanOptions
from bbgrap.planners.pipeline import plan_pipeline
from bbgrap.planners.plan import Plan, Tiles, verify_plan
from bbgrap.planners.single import plan_single
from bbgrap.planners.soybean import plan_soybean
from bbgrap.planners.tensor_parallel import plan_tensor_parallel
from bbgrap.planners.tofu import plan_tofu
from bbgrap.planners.widest import plan_widest
from bbgrap.tdl import Descriptions

Planner = Callable[[Graph, Cluster, PlanOptions, Descriptions], Tiles]

_PLACING: Mapping[str, Planner] = {
    "bbgrap": plan_bbgrap,
    "single": plan_single,
    "widest": plan_widest,
    "hypar": plan_hypar,
    "soybean": plan_soybean,
    "tofu": plan_tofu,
    "data-parallel": plan_data_parallel,
    "model-parallel": plan_model_parallel,
    "tensor-parallel": plan_tensor_parallel,
    "one-weird-trick": plan_one_weird_trick,
    "equal-chop": plan_equal_chop,
    "layerwise": plan_layerwise,
    "fused-tiles": plan_fused_tiles,
    "fewer-exchanges": plan_fewer_exchanges,
    "pipeline": plan_pipeline,
}


def _with_weights_made(planner: Planner) -> Planner:
    """Return a planner whose nodes that read weights alone are where it places their readers: papers do not count them."""

    def plan(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions) -> Tiles:
        return made_where_read(graph, descriptions, planner(graph, cluster, options, descriptions))

    return plan


PLANNERS: Mapping[str, Planner] = {name: _with_weights_made(planner) for name, planner in _PLACING.items()}
"""Every planner that places nodes by itself."""

SPLITTING = ("bbgrap", "fewer-exchanges")
"""Those that cut along `options.split`."""

NAMES: tuple[str, ...] = (*PLANNERS, AUTO)
"""All names that a user may ask for."""


def make_plan(graph: Graph, cluster: Cluster, options: PlanOptions, descriptions: Descriptions | None = None) -> Plan:
    """Plan a graph over a cluster with the planner that the options name, and verify the plan.

    Raises:
        UsageError: if there is no planner of that name.
        PlanError: if the planner broke a law of plans.
    """
    planner = PLANNERS.get(options.planner)
    if planner is None:
        raise UsageError(f"planner: expected one of {', '.join(NAMES)}, got '{options.planner}'")
    found = all_descriptions(graph) if descriptions is None else descriptions
    plan = Plan(options.planner, graph, cluster, planner(graph, cluster, options, found))
    verify_plan(plan, found)
    return plan
