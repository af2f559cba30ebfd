"""Plans for models whose state grows, as a decoder's cache: one program for any length of it, and one for the first request.

first     the request's own shapes, concrete: a prompt and no state      ──┐ cut like the further program, so that
further   one word, any length of state: nothing is cut along it         ◄─┘ both use the same weights
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.compiler.passes.state import layout_of
from bbgrap.compiler.sequences import for_sequences
from bbgrap.engine.prepare import Made, fit
from bbgrap.errors import BbgrapError, PlanError
from bbgrap.graph import Graph
from bbgrap.graph.state import with_growth, with_state
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, verify_plan
from bbgrap.planners.scale import scaled
from bbgrap.program.steps import Program
from bbgrap.tdl import Description

LENGTH = 64
"""Of the state, while its program is planned. Chosen: half of what a short answer comes to."""
UNCUTTING = "soybean"
"""The planner that is asked when what was asked for cuts along the axis that grows: it divides weights and leaves attention whole."""

Descriptions = Mapping[str, Description | None]

Sizes = Mapping[str, tuple[int | str | None, ...]]
"""Inputs, and the sizes and symbols of their axes that the model declares."""


def grows(graph: Graph) -> bool:
    """Whether a graph's state is longer after a request than before."""
    return any(graph.types[name].shape != graph.types[output].shape for name, output in graph.state.items())


def prepare_growing(
    first: Graph, load: Callable[[Mapping[str, tuple[int, ...]]], Graph], declared: Sizes, cluster: Cluster, options: PlanOptions
) -> Made:
    """Return the way to run a model whose state grows; `load` loads it for other shapes than those of its first request.

    Raises:
        PlanError: if there is none, or what it ships is not the same for two lengths: then sequences stay on nodes that have
            the model whole.
    """
    refused: list[str] = []
    try:
        graph, longer = (with_state(load(_shapes(first, declared, length)), first.state) for length in (LENGTH, LENGTH + 1))
        graph, longer = with_growth(graph, longer), with_growth(longer, graph)
    except BbgrapError as error:
        raise PlanError(f"model '{first.name}': its state grows, and one program for all lengths cannot be made: {error}") from None
    for planner in dict.fromkeys((options.planner, UNCUTTING)):
        try:
            planned, plan = _made(first, graph, longer, cluster, replace(options, planner=planner))
            changed = [*planned.report["changed"], *refused]
            return replace(planned, report={**planned.report, "changed": changed}), plan
        except PlanError as error:
            refused.append(f"{planner}: {error}")
    raise PlanError(f"model '{first.name}': its state grows, and no plan leaves that whole: {'; '.join(refused)}")


def _made(first: Graph, graph: Graph, longer: Graph, cluster: Cluster, options: PlanOptions) -> Made:
    forecast, planned = fit(graph, cluster, options)
    plan, dictionaries = forecast.compiled.plan, forecast.compiled.optimized.dictionary_devices

    def opened(plan: Plan, descriptions: Descriptions) -> Program:
        return compile_plan(plan, descriptions, options.transfer_dtype, dictionaries, open_sizes=True).optimized

    further = opened(plan, forecast.descriptions)
    shipped, described = export(further), all_descriptions(longer)
    again = export(opened(scaled(plan, longer, described), described))
    if (again.devices, again.host) != (shipped.devices, shipped.host):
        raise PlanError(f"model '{graph.name}': as it is cut, its program depends on how long its state is")
    descriptions = all_descriptions(first)
    start = scaled(plan, first, descriptions)
    verify_plan(start, descriptions)
    begins = layout_of(further)
    program = compile_plan(start, descriptions, options.transfer_dtype, dictionaries, instalments=False, begins=begins).optimized
    return replace(planned, artifacts=for_sequences(export(program), shipped)), plan


def _shapes(first: Graph, declared: Sizes, length: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a request of one word after so many: those of the first one, but for what is free and no state's."""
    fixed: set[str] = set()
    growing: set[str] = set()
    shapes: dict[str, tuple[int, ...]] = {}
    for name, output in first.state.items():
        before, after = first.types[name].known_shape, first.types[output].known_shape
        shapes[name] = tuple(size if size == later else length for size, later in zip(before, after, strict=True))
        for symbol, size, later in zip(declared.get(name, ()), before, after, strict=False):
            if isinstance(symbol, str):
                (fixed if size == later else growing).add(symbol)
    for name in first.given:
        symbols = declared.get(name, ())
        sizes = first.types[name].known_shape
        shapes[name] = tuple(
            _size(symbols[axis] if axis < len(symbols) else None, size, length, fixed, growing) for axis, size in enumerate(sizes)
        )
    return shapes


def _size(symbol: int | str | None, size: int, length: int, fixed: set[str], growing: set[str]) -> int:
    """Return the size of an axis that is called so: exporters call that of a mask `total...`, or a sum with the state's length."""
    if not isinstance(symbol, str) or symbol in fixed:
        return size
    return length + 1 if symbol.startswith("total") or any(name in symbol for name in growing) else 1
