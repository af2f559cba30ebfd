"""From a loaded model to everything that is deployed, in one call."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from bbgrap.auto.forecast import Forecast
from bbgrap.auto.search import plan_auto
from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.direct import build_direct
from bbgrap.compiler.export import export
from bbgrap.compiler.memory import overfull, program_bytes
from bbgrap.compiler.passes.state import layout_of
from bbgrap.compiler.predict import Predictor
from bbgrap.compiler.sequences import for_sequences
from bbgrap.control.planned_variant import SCALED_FROM, PlannedVariant
from bbgrap.engine.variants import beside, is_guarded, lacks_of, serves_streams, variant_of, whole_on_each
from bbgrap.errors import PlanError
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.forms import form_with, forms_of
from bbgrap.planners.options import AUTO, CLOCK_FACTOR, PlanOptions, Split
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Plan, Tile, verify_plan
from bbgrap.planners.registry import SPLITTING, make_plan
from bbgrap.planners.scale import scaled
from bbgrap.planners.single import whole_plans
from bbgrap.program.dictionaries import dictionary_devices_of
from bbgrap.tdl import Descriptions

PreparedVariant = tuple[PlannedVariant, Plan]
"""A way to run a model, and how it is cut."""

TIGHT = 0.85
"""Part of the declared memory that a second search may use: chosen."""

LEANER_SPLITS: tuple[Split, ...] = ("channels", "inputs")
"""Splits that divide the weights, tried in this order where the chosen one does not fit the nodes' memory."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage: planning makes many small values and no cycles, and looking among them would take half of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@uncollected()
def prepare_graph(graph: Graph, cluster: Cluster, options: PlanOptions) -> tuple[PreparedVariant, ...]:
    """Return the ways to run a loaded model on a cluster: of each the programs, the report, and how it is cut.

    Raises:
        PlanError: if no plan exists, or none that fits the nodes' memory.
    """
    if serves_streams(options) and (variants := whole_on_each(graph, cluster, options)):
        return variants
    forecast, planned = fit(graph, cluster, options)
    return ((planned, forecast.compiled.plan), *(beside(forecast, planned) if is_guarded(options) else ()))


@uncollected()
def prepare_sequences(graph: Graph, cluster: Cluster, options: PlanOptions) -> PreparedVariant:
    """Return the way to run a model whose state keeps its size: a program for further requests, and one for a first request.

    Raises:
        PlanError: if no plan exists, or none fits the nodes' memory.
    """
    forecast, planned = fit(graph, cluster, options)
    program = forecast.compiled.optimized
    first = compile_plan(
        forecast.compiled.plan,
        forecast.descriptions,
        program.transfers,
        program.dictionary_devices,
        instalments=False,
        begins=layout_of(program),
    )
    made = replace(planned, artifacts=for_sequences(export(first.optimized), planned.artifacts))
    return made, forecast.compiled.plan


@uncollected()
def prepare_like(
    graph: Graph, others: Sequence[tuple[Graph, Mapping[str, tuple[Tile, ...]]]], cluster: Cluster, options: PlanOptions
) -> PlannedVariant:
    """Return a way to run a loaded model that is cut as with other input shapes: like the one of `others` that is expected to be fastest.

    Raises:
        PlanError: if it can be like none of them, does not fit the nodes' memory, or one node is expected to be as fast.
    """
    if options.state:
        raise PlanError(f"model '{graph.name}': with state every plan is one of its own")
    start = time.perf_counter()
    dictionary_devices, predictor = dictionary_devices_of(cluster, options.input_values), Predictor(cluster)
    forms = [Pieces(form, all_descriptions(form)) for form in forms_of(graph)]
    found: list[tuple[float, int, Plan, Descriptions]] = []
    refused: list[str] = []
    for number, (before, tiles) in enumerate(others):
        pieces = next((form for form in forms if form.graph.node_by_name.keys() == tiles.keys()), forms[0])
        try:
            plan = scaled(Plan(options.planner, form_with(before, tiles), cluster, tiles), pieces.graph, pieces.descriptions)
            verify_plan(plan, pieces.descriptions)
        except PlanError as error:
            refused.append(str(error))
            continue
        program = replace(build_direct(plan, pieces), transfers=options.transfer_dtype, dictionary_devices=dictionary_devices)
        found.append((predictor.timeline(program).total_s, number, plan, pieces.descriptions))
    if not found:
        raise PlanError(refused[0] if refused else f"model '{graph.name}': nothing to be like")
    _, number, plan, descriptions = min(found, key=lambda made: made[:2])
    # Instalments of inputs would make other models of every shape.
    compiled = compile_plan(plan, descriptions, options.transfer_dtype, dictionary_devices, instalments=False)
    forecast = Forecast(compiled, descriptions, whole=graph)
    if forecast.alone is not None and forecast.timeline.total_s >= forecast.alone[1]:
        raise PlanError(f"model '{graph.name}': with these shapes one node is expected to be as fast as what serves others")
    made, (before, _) = variant_of(options.planner, forecast, time.perf_counter() - start), others[number]
    planned = replace(made, report={**made.report, SCALED_FROM: [list(before.types[name].shape or ()) for name in before.inputs]})
    if faults := lacks_of((planned,), cluster):
        raise PlanError(f"model '{graph.name}': it does not fit the memory of these nodes as it is cut for others: {', '.join(faults)}")
    return planned


@uncollected()
def fit(graph: Graph, cluster: Cluster, options: PlanOptions) -> tuple[Forecast, PlannedVariant]:
    """Plan a loaded model within the memory that the nodes declare.

    A plan that does not fit is replaced by one that divides the weights; the report then says so under `changed`.

    Raises:
        PlanError: if no plan exists, or none that fits.
    """
    refused: dict[str, str] = {}
    has_room = True
    for words, candidate, within in _attempts(cluster, options):
        if candidate.planner == AUTO and not has_room:
            continue  # with less of it a second search would find none either, and take as long
        start = time.perf_counter()
        forecast = plan_graph(graph, within, candidate)
        search_s = time.perf_counter() - start
        changed = [*(f"{way}: {lacks}" for way, lacks in refused.items()), f"planned instead: {words}"] if refused else []
        planned = variant_of(forecast.compiled.plan.planner, forecast, search_s, changed)
        faults = lacks_of((planned,), cluster)
        if not faults:
            return forecast, planned
        refused[words] = ", ".join(faults)
        has_room = forecast.found is None or not forecast.found.score.excess
    alike = {lacks: [way for way, those in refused.items() if those == lacks] for lacks in refused.values()}
    told = "; ".join(f"{' and '.join(ways)}: {lacks}" for lacks, ways in alike.items())
    raise PlanError(f"model '{graph.name}': it fits the memory of these nodes in no split; {told}")


def _attempts(cluster: Cluster, options: PlanOptions) -> Iterator[tuple[str, PlanOptions, Cluster]]:
    """Yield what is tried in turn, in words, until something fits: the planner asked for, then splits that divide the weights."""
    words = f"planner '{options.planner}'"
    if options.planner == "single":  # nothing else is whole on one node
        yield "whole on one node", options, cluster
        return
    if options.planner in SPLITTING:
        yield f"{words}, split by {options.split}", options, cluster
    else:
        yield words, options, cluster
        if options.planner == AUTO:
            # it looks at programs that are built another way, and may take a little less: a second search leaves more room
            less = tuple(replace(node, memory_bytes=round(TIGHT * node.memory_bytes)) for node in cluster.nodes)
            yield f"{words} with less room", options, replace(cluster, nodes=less)
    by = options.planner if options.planner in SPLITTING else "bbgrap"
    for split in LEANER_SPLITS:
        if (by, split) != (options.planner, options.split):
            yield f"planner '{by}', split by {split}", replace(options, planner=by, split=split), cluster


@uncollected()
def plan_graph(graph: Graph, cluster: Cluster, options: PlanOptions) -> Forecast:
    """Plan a loaded model and optimise its program.

    Of a model that has two forms, both are planned, in half of the time each; the faster plan is returned.

    Raises:
        PlanError: if no plan exists.
    """
    forms = forms_of(graph) if len(cluster.nodes) > 1 and options.planner != "single" else (graph,)
    planned = [_planned(form, graph, cluster, options, options.search_seconds / len(forms)) for form in forms]
    return min(planned, key=lambda forecast: _worth(forecast, cluster))


def _planned(form: Graph, whole: Graph, cluster: Cluster, options: PlanOptions, search_s: float) -> Forecast:
    """Plan one form of a model."""
    descriptions = all_descriptions(form)
    if options.planner == AUTO:
        found = plan_auto(form, cluster, options, descriptions, time_is_up=_after(search_s))
        plan = found.plan
    elif options.planner == "single":
        found, plan = None, _where_it_fits(form, cluster, descriptions)
    else:
        found, plan = None, make_plan(form, cluster, options, descriptions)
    compiled = compile_plan(plan, descriptions, options.transfer_dtype, dictionary_devices_of(cluster, options.input_values))
    return Forecast(compiled, descriptions, found, whole)


def _after(seconds: float) -> Callable[[], bool]:
    """Return what tells whether this thread has computed for so long, or `CLOCK_FACTOR` times as long has gone by.

    By the clock alone, other programs would change what is found.
    """
    computed, went_by = time.thread_time() + seconds, time.perf_counter() + CLOCK_FACTOR * seconds
    return lambda: time.thread_time() > computed or time.perf_counter() > went_by


def _where_it_fits(graph: Graph, cluster: Cluster, descriptions: Descriptions) -> Plan:
    """Put the model whole on the node with the largest share of those with room for it; if there is none, of all."""
    plans, pieces = list(whole_plans(graph, cluster).values()), Pieces(graph, descriptions)
    return next((plan for plan in plans if not overfull(cluster, program_bytes(build_direct(plan, pieces)))), plans[0])


def _worth(forecast: Forecast, cluster: Cluster) -> tuple[int, float]:
    """Return what is minimised among the forms of a model: nodes without room, then time; or what the planner says."""
    if forecast.found is not None:
        return forecast.found.score.excess, forecast.found.score.value
    return len(overfull(cluster, program_bytes(forecast.compiled.optimized))), forecast.timeline.total_s
