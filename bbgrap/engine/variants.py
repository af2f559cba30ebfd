"""The variants of a planned model: the best single node and the next best plans beside a plan, or the whole model on every node.

Only planner `auto` (and, for streams, `single`) gets others than its own plan. Law: the nodes have memory for all variants together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from bbgrap.auto.forecast import Forecast
from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.compiler.memory import overfull, program_bytes, state_bytes
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import AUTO, PlanOptions, TransferType
from bbgrap.planners.plan import Plan, verify_plan
from bbgrap.planners.single import plan_whole, whole_plans
from bbgrap.program.dictionaries import dictionary_devices_of
from bbgrap.report.plan_report import report_of

LEAST_SHARE = 0.5
"""Part of all shares that the nodes with room for the whole model must have, for a stream to be run by them alone; with less, a plan over
all nodes is assumed to do more in spite of its exchanges. Chosen: plans of two nodes reach 1.4 to 1.5 times one node (decision 6)."""
HOPELESS = 1.5
"""A plan that is predicted to take so many times as long as the best is not sent to the nodes to be timed: over a slow link its weights
are minutes of traffic. Chosen: above what other programs do to predictions."""


def serves_streams(options: PlanOptions) -> bool:
    """Whether what was asked for is as many requests as possible, and not one particular plan."""
    return options.objective == "throughput" and options.planner in {AUTO, "single"}


def is_guarded(options: PlanOptions) -> bool:
    """Whether other variants are to be tried against the plan."""
    return options.objective == "latency" and options.planner == AUTO


def beside(forecast: Forecast, planned: PlannedVariant) -> tuple[tuple[PlannedVariant, Plan], ...]:
    """Return other variants beside a plan: the best single node, then the next best plans, as far as the nodes have room for them."""
    variants, plans, program = [planned], [forecast.compiled.plan], forecast.compiled.optimized
    needed = [planned.report["memory_bytes"][node.name] for node in forecast.compiled.plan.cluster.nodes]
    for name, plan in _others(forecast, forecast.best_single(needed)):
        variant = _planned(name, plan, program.transfers, program.dictionary_devices)
        if not _is_known(variant, variants) and not lacks_of((*variants, variant), plan.cluster):
            variants.append(variant)
            plans.append(plan)
    return tuple(zip(variants[1:], plans[1:], strict=True))


def _is_known(variant: PlannedVariant, others: Sequence[PlannedVariant]) -> bool:
    """Whether all that is left of a plan is one node that others have already, as where links are slow."""
    used = [device.takes_part for device in variant.artifacts.devices]
    return sum(used) == 1 and any([device.takes_part for device in other.artifacts.devices] == used for other in others)


def _others(forecast: Forecast, best: int | None) -> Iterator[tuple[str, Plan]]:
    """Yield the best single node, the next best plan, and the best one of another planner: plans that grew from one candidate err alike."""
    plan, tried = forecast.compiled.plan, False
    if best is not None and plan.devices_used != (best,):
        yield f"single on {plan.cluster.nodes[best].name}", plan_whole(forecast.graph_of_one, plan.cluster, best)
    if (found := forecast.found) is None:
        return
    for candidate in takewhile(lambda candidate: candidate.score.value <= HOPELESS * found.score.value, found.candidates):
        other = Plan(AUTO, plan.graph, plan.cluster, candidate.tiles)
        if len(other.devices_used) > 1 and other.tiles != plan.tiles and (candidate.is_plain or not tried):
            tried = True
            yield candidate.name, other
            if candidate.is_plain:
                return


def whole_on_each(graph: Graph, cluster: Cluster, options: PlanOptions) -> tuple[tuple[PlannedVariant, Plan], ...]:
    """Return a variant per node that has room for the whole model, largest share first; for `auto` none if they are too few.

    Inputs come at once: the next one travels while a node computes, and a stretch in parts only costs it more.
    """
    dictionaries = dictionary_devices_of(cluster, options.input_values)
    able: dict[int, tuple[PlannedVariant, Plan]] = {}
    for device, plan in whole_plans(graph, cluster).items():
        name = f"single on {cluster.nodes[device].name}"
        variant = _planned(name, plan, options.transfer_dtype, dictionaries, instalments=False)
        if not lacks_of((variant,), cluster):
            able[device] = variant, plan
    if options.planner == AUTO and sum(cluster.shares[device] for device in able) < LEAST_SHARE * sum(cluster.shares):
        return ()
    return tuple(able.values())


def lacks_of(variants: Sequence[PlannedVariant], cluster: Cluster) -> tuple[str, ...]:
    """Return which nodes lack memory for all these variants at once, in words."""
    return overfull(cluster, tuple(sum(variant.report["memory_bytes"][node.name] for variant in variants) for node in cluster.nodes))


def _planned(
    name: str, plan: Plan, transfers: TransferType, dictionary_devices: frozenset[int], *, instalments: bool = True
) -> PlannedVariant:
    descriptions = all_descriptions(plan.graph)
    verify_plan(plan, descriptions)
    return variant_of(
        name, Forecast(compile_plan(plan, descriptions, transfers, dictionary_devices, instalments=instalments), descriptions)
    )


def variant_of(name: str, forecast: Forecast, search_s: float = 0.0, changed: Sequence[str] = ()) -> PlannedVariant:
    """Return what a compiled plan ships, and its report; `changed` says what was planned before and did not fit."""
    compiled, program = forecast.compiled, forecast.compiled.optimized
    artifacts = export(program)
    names = [node.name for node in compiled.plan.cluster.nodes]
    states = [state_bytes(program, device) for device in program.devices[: program.host]]
    report = {
        **report_of(compiled, search_s),
        **forecast.report(),
        "memory_bytes": dict(zip(names, program_bytes(program), strict=True)),
        **({"state_bytes": dict(zip(names, states, strict=True))} if program.graph.state else {}),
        "weight_bytes": {name: device.weight_bytes for name, device in zip(names, artifacts.devices, strict=True)},
        "changed": list(changed),
    }
    return PlannedVariant(name, artifacts, report)
