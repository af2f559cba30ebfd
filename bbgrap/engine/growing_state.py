"""Plans for models whose state grows, or is filled, as a decoder's cache: programs for any length of it and any number of words.

first     any prompt, and the state to begin with     ──┐ cut alike, so that both use
further   any words, any length of state              ◄─┘ the same weights and segments
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from bbgrap.auto.forecast import Forecast
from bbgrap.cluster import Cluster
from bbgrap.compiler.build import StateLayout
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.compiler.passes.state import layout_of
from bbgrap.compiler.segments import Slices
from bbgrap.compiler.sequences import for_sequences
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.engine.prepare import PreparedVariant, fit, uncollected
from bbgrap.errors import BbgrapError, PlanError
from bbgrap.graph import Graph
from bbgrap.graph.state import counts_words, grows, of_batch, with_growth, with_state
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.forms import form_with
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan
from bbgrap.planners.scale import scaled
from bbgrap.program.steps import Program
from bbgrap.tdl import Descriptions

LENGTH = 64
"""Of the state, while its program is planned. Chosen: half of what a short answer comes to."""
SHORT = 2
"""Of the state, to see what has other sizes then. Chosen: shorter than any window of a state that is read or kept, which is constant at
`LENGTH`."""
UNCUTTING = "tensor-parallel"
"""The planner that is asked when what was asked for cuts along an axis whose size moves: it divides weights and heads."""

LoadGraph = Callable[[Mapping[str, tuple[int, ...]], Mapping[str, frozenset[int]]], Graph]
"""Loads a model for input shapes, folding nothing that follows from the sizes of some axes."""

DeclaredSizes = Mapping[str, tuple[int | str | None, ...]]
"""Inputs, and the sizes and symbols of their axes that the model declares."""


def is_of_any_length(graph: Graph, declared: DeclaredSizes) -> bool:
    """Whether requests of a model with state have a size that follows from those before: of the state, or of a mask of all words."""
    return grows(graph) or any(counts_words(symbol) for name in graph.given for symbol in declared.get(name, ()))


def prepare_growing(first: Graph, load: LoadGraph, declared: DeclaredSizes, cluster: Cluster, options: PlanOptions) -> PreparedVariant:
    """Return the way to run a model whose state grows, with requests of any length, as `fit_growing` plans it."""
    forecast, planned = fit_growing(first, load, declared, cluster, options)
    return planned, forecast.compiled.plan


@uncollected()
def fit_growing(
    first: Graph, load: LoadGraph, declared: DeclaredSizes, cluster: Cluster, options: PlanOptions
) -> tuple[Forecast, PlannedVariant]:
    """Plan a model whose state grows, for requests of any length; `first` is one of them, the forecast is of one after `LENGTH` words.

    Raises:
        PlanError: if there is no plan, or what it ships is not the same for two lengths: then sequences stay on nodes that have
            the model whole.
    """
    batch = of_batch(declared, {name: first.types[name].known_shape for name in first.inputs}, _moving(first))
    refused: list[PlanError] = []
    for fixed in dict.fromkeys((frozenset[str](), batch)):
        try:
            return _with_fixed(first, load, declared, cluster, options, fixed)
        except PlanError as error:
            refused.append(error)
    raise refused[0]


def _moving(first: Graph) -> tuple[str, ...]:
    """Return the state that is no lasting input."""
    return tuple(name for name, output in first.state.items() if name != output)


def _with_fixed(
    first: Graph, load: LoadGraph, declared: DeclaredSizes, cluster: Cluster, options: PlanOptions, fixed: frozenset[str]
) -> tuple[Forecast, PlannedVariant]:
    """Prepare it where axes of these symbols, too, are as long in all requests as in the first one."""
    graph, longer = _of_several_lengths(first, load, declared, fixed)
    refused: list[str] = []
    for planner in dict.fromkeys((options.planner, UNCUTTING)):
        try:
            forecast, planned = _made(graph, longer, cluster, replace(options, planner=planner))
            changed = [*refused, *planned.report["changed"]]
            return forecast, replace(planned, report={**planned.report, "changed": changed})
        except PlanError as error:
            refused.append(f"{planner}: {error}")
    raise PlanError(f"model '{first.name}': its state grows, and no plan leaves that whole: {'; '.join(refused)}")


def _of_several_lengths(first: Graph, load: LoadGraph, declared: DeclaredSizes, fixed: frozenset[str]) -> tuple[Graph, Graph]:
    """Return a model with state for two lengths of it, with the axes that move.

    What a file calls an axis does not always tell that it is of all words, as that of a mask is: `torch.export` numbers symbols. Where
    nobody can make one program of requests in which it is as long as their words, each symbol is tried for one.

    Raises:
        PlanError: if there is no such program: with what is said against the first way.
    """
    symbols = dict.fromkeys(symbol for name in first.given for symbol in declared.get(name, ()) if isinstance(symbol, str))
    refused: list[BbgrapError] = []
    for total in (None, *symbols):
        try:
            return _opened(first, load, declared, total, fixed)
        except BbgrapError as error:
            refused.append(error)
    raise PlanError(f"model '{first.name}': its state grows, and one program for all lengths cannot be made: {refused[0]}")


def _opened(first: Graph, load: LoadGraph, declared: DeclaredSizes, total: str | None, fixed: frozenset[str]) -> tuple[Graph, Graph]:
    length = LENGTH if grows(first) else 1  # there is room for so many, at least
    shapes = [_shapes(first, declared, words, length + words - 1, total, fixed) for words in (1, 2)]
    brief = _shapes(first, declared, 1, SHORT if grows(first) else length, total, fixed)
    axes = {
        name: frozenset(a for a, (one, other) in enumerate(zip(shapes[0][name], shapes[1][name], strict=True)) if one != other)
        for name in first.inputs
    }
    graph, longer, short = (with_state(load(sizes, axes), first.state) for sizes in (*shapes, brief))
    return with_growth(graph, longer, short), with_growth(longer, graph, short)


def _made(graph: Graph, longer: Graph, cluster: Cluster, options: PlanOptions) -> tuple[Forecast, PlannedVariant]:
    forecast, planned = fit(graph, cluster, options)
    plan, dictionaries = forecast.compiled.plan, forecast.compiled.optimized.dictionary_devices

    def opened(plan: Plan, descriptions: Descriptions, begins: StateLayout | None = None) -> Program:
        return compile_plan(plan, descriptions, options.transfer_dtype, dictionaries, open_sizes=True, begins=begins).optimized

    further = opened(plan, forecast.descriptions)
    first = opened(plan, forecast.descriptions, layout_of(further))
    cut: Slices = {}
    shipped = for_sequences(export(first, cut), export(further, cut))
    longer = form_with(longer, plan.tiles)
    described = all_descriptions(longer)
    other = scaled(plan, longer, described)
    again = opened(other, described)
    if for_sequences(export(opened(other, described, layout_of(again)), cut), export(again, cut)) != shipped:
        raise PlanError(f"model '{graph.name}': as it is cut, its program depends on how long its state is")
    return forecast, replace(planned, artifacts=shipped)


def _shapes(
    first: Graph, declared: DeclaredSizes, words: int, length: int, total: str | None, batch: frozenset[str]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a request of some words after so many: those of the first one, but for what is free and no state's.

    `total` is a symbol of an axis of all words, those of `batch` are of axes that stay as they are.
    """
    fixed = set(batch)
    growing: set[str] = set()
    shapes: dict[str, tuple[int, ...]] = {}
    for name, output in first.state.items():
        before, after = first.types[name].known_shape, first.types[output].known_shape
        shapes[name] = tuple(size if size == later else length for size, later in zip(before, after, strict=True))
        for symbol, size, later in zip(declared.get(name, ()), before, after, strict=False):
            if isinstance(symbol, str) and name != output:
                (fixed if size == later else growing).add(symbol)

    def chosen(symbol: int | str | None, given: int) -> int:
        if not isinstance(symbol, str) or symbol in fixed:
            return given
        # Exporters also call it a sum with the state's length.
        return length + words if symbol == total or counts_words(symbol) or any(name in symbol for name in growing) else words

    for name in (*first.given, *(name for name, output in first.state.items() if name == output)):
        symbols = declared.get(name, ())
        shapes[name] = tuple(
            chosen(symbols[axis] if axis < len(symbols) else None, given) for axis, given in enumerate(first.types[name].known_shape)
        )
    return shapes
