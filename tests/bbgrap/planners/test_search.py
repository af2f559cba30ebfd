"""The search over placements: its count is what programs move, and it finds what enumeration finds."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.graph import DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.equal_chop import chop_choices
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan
from bbgrap.planners.search import Choices
from bbgrap.program.statistics import statistics_of
from bbgrap.zoo.builder import Builder
from tests.examples import examples
from tests.partition import assert_partition_agrees
from tests.random_models import networks


def moved(choices: Choices, chosen: dict[str, int], nodes: int) -> int:
    plan = Plan("search", choices.graph, Cluster.even(nodes), choices.plan_tiles(chosen))
    return statistics_of(compile_plan(plan, choices.descriptions).optimized).bytes


def chain() -> Graph:
    builder = Builder("chain", (1, 4, 6, 8))
    x = builder.conv("input", "first", 6, 3)
    return builder.graph(builder.max_pool(builder.conv(builder.act("Relu", x, "relu"), "second", 4, 3, stride=2), "pool", 2, 1))


def test_bytes_of_a_chain_are_counted_exactly_and_the_best_is_found() -> None:
    graph = chain()
    choices = chop_choices(graph, Cluster.even(2), all_descriptions(graph))
    options = [range(len(choices.tiles[node.name])) for node in graph.nodes]
    names = [node.name for node in graph.nodes]
    everything = [dict(zip(names, numbers, strict=True)) for numbers in product(*options)]
    assert min(map(choices.total, everything)) == choices.total(choices.best())
    for chosen in everything[::17]:
        assert choices.total(chosen) == moved(choices, chosen, 2)


@settings(max_examples=examples(15))
@given(networks())
def test_no_start_is_better_than_the_result(graph: Graph) -> None:
    choices = chop_choices(graph, Cluster.even(3), all_descriptions(graph))
    best = choices.total(choices.best())
    assert best <= choices.total({node.name: 0 for node in graph.nodes})


def test_outputs_of_different_shapes_are_counted_by_their_own() -> None:
    """A further output has no tiles of its own: it counts as held whole, whatever the shape of the first."""
    shapes = {"input": (1, 5, 4, 4), "small": (1, 2, 4, 4), "large": (1, 3, 4, 4), "a": (1, 2, 4, 4), "b": (1, 3, 4, 4), "y": (1, 5, 4, 4)}
    sizes = make_weight("sizes", np.array([2, 3]))
    nodes = (
        Node("split", "Split", ("input", "sizes"), ("small", "large"), {"axis": 1}),
        Node("a", "Relu", ("small",), ("a",)),
        Node("b", "Sigmoid", ("large",), ("b",)),
        Node("y", "Concat", ("a", "b"), ("y",), {"axis": 1}),
    )
    types = {name: TensorType(DType.FLOAT, shape) for name, shape in shapes.items()} | {"sizes": sizes.type}
    graph = Graph("two", nodes, ("input",), ("y",), {"sizes": sizes}, types, {"": 17})
    for planner in ("tofu", "equal-chop"):
        assert_partition_agrees(graph, Cluster.even(3), PlanOptions(planner=planner))
