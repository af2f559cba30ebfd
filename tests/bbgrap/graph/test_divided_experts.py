"""Mixtures with their experts on several machines: onnxruntime's bits, and what stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.prepare import plan_graph
from bbgrap.graph.divided_experts import CHOSEN_EXPERTS, with_experts_apart
from bbgrap.graph.types import Array, Attribute, DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.forms import forms_of
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, Tile, check_plan
from bbgrap.shapemap import Interval, ShapeMap
from bbgrap.tdl import Part
from tests.partition import plain_outputs
from tests.program_laws import compile_checked

MICROSOFT = "com.microsoft"
DEVICES = 3


def mixture(
    op: str = "MoE",
    words: tuple[int, ...] = (5,),
    experts: int = 6,
    *,
    features: int = 32,
    inner: int = 16,
    biased: bool = True,
    beside: bool = False,
    shifted: bool = False,
    **attributes: Attribute,
) -> Graph:
    """A graph of one mixture of words and their scores, and a product of what it makes.

    `beside`: with weights of answers that are no scores; `shifted`: with zero points; both of few bits only.
    """
    random = np.random.default_rng(experts)
    said: dict[str, Attribute] = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "normalize_routing_weights": 1, **attributes}
    fused = 2 if said["activation_type"] == "swiglu" else 1
    shapes = ((experts, fused * inner, features), (experts, features, inner))
    biases = [random.standard_normal(shape[:2]).astype(np.float32) if biased else None for shape in shapes]
    operands: list[Array | None] = []
    for shape, bias in zip(shapes, biases, strict=True):
        if op == "MoE":
            operands += [(random.standard_normal(shape) / 4).astype(np.float32), bias]
        else:
            packed = random.integers(0, 256, (*shape[:2], shape[2] // 2)).astype(np.uint8)
            operands += [packed, random.uniform(0.02, 0.04, shape[:2]).astype(np.float32), bias]
    if shifted:
        operands += [None] * 3 + [random.integers(0, 256, (experts, shape[1] // 2)).astype(np.uint8) for shape in shapes]
    weights = {f"w{number}": make_weight(f"w{number}", array) for number, array in enumerate(operands) if array is not None}
    weights["last"] = make_weight("last", (random.standard_normal((features, 4)) / 4).astype(np.float32))
    rows = int(np.prod(words))
    types = {"x": TensorType(DType.FLOAT, (*words, features)), "s": TensorType(DType.FLOAT, (rows, experts))}
    types |= {"y": types["x"], "z": TensorType(DType.FLOAT, (*words, 4))} | {name: weight.type for name, weight in weights.items()}
    types |= {"m": types["s"]} if beside else {}
    names = ["x", "s", *("" if array is None else f"w{number}" for number, array in enumerate(operands))]
    names += [*[""] * (14 - len(names)), "m"] if beside else []
    nodes = (Node("mixture", op, tuple(names), ("y",), said, MICROSOFT), Node("product", "MatMul", ("y", "last"), ("z",)))
    inputs = tuple(name for name in ("x", "s", "m") if name in types)
    return Graph("g", nodes, inputs, ("y", "z"), weights, types, {"": 21, MICROSOFT: 1})


def feeds_of(graph: Graph, seed: int = 0, least: float = 0.0) -> list[Array]:
    """Words, scores of which some are minus infinity, and what answers are mixed with."""
    random = np.random.default_rng(seed)
    made = {name: random.standard_normal(graph.types[name].known_shape).astype(np.float32) for name in graph.inputs}
    forbidden = random.random(made["s"].shape) < least
    forbidden[np.arange(len(forbidden)), random.integers(0, forbidden.shape[1], len(forbidden))] = False
    made["s"][forbidden] = -np.inf
    return [abs(array) if name == "m" else array for name, array in made.items()]


def divided(graph: Graph, borders: tuple[int, ...]) -> Plan:
    """A plan of a second form: every node whole on every device, but experts, which are divided."""
    nodes = len(borders) - 1
    tiles = {
        node.name: tuple(Tile(device, ShapeMap.full(graph.types[node.first_output].known_shape)) for device in range(nodes))
        for node in graph.nodes
    }
    for node in graph.nodes:
        if node.op == CHOSEN_EXPERTS:
            parts = [Part("e", Interval(*part)) for part in pairwise(borders)]
            tiles[node.name] = tuple(replace(tile, part=part) for tile, part in zip(tiles[node.name], parts, strict=True))
    return Plan("experts", graph, Cluster.even(nodes), tiles)


def answers(plan: Plan, feeds: list[Array]) -> list[Array]:
    """What devices answer that run a plan."""
    descriptions = all_descriptions(plan.graph)
    assert not check_plan(plan, descriptions)
    artifacts = export(compile_checked(plan, descriptions).optimized)
    return simulate(artifacts, feeds, local_kernels(artifacts))


ATTRIBUTES: tuple[Mapping[str, Attribute], ...] = (
    {},
    {"normalize_routing_weights": 0},
    {"activation_type": "silu", "swiglu_fusion": 0},
    {"activation_type": "gelu", "swiglu_fusion": 0, "normalize_routing_weights": 0},
    {"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 1.0},
)


@settings(max_examples=30)
@given(st.data())
def test_its_bits_are_those_of_onnxruntime(data: st.DataObject) -> None:
    """Of floats always; of few bits for one word, or up to two experts that each asks."""
    op = data.draw(st.sampled_from(("MoE", "QMoE")))
    experts = data.draw(st.sampled_from((1, 2, 3, 5, 8, 16)))
    asked = data.draw(st.integers(1, experts))
    one, several = ((1,), (1, 1)), ((5,), (1, 7), (2, 3), (40,))
    words = data.draw(st.sampled_from((*one, *several) if op == "MoE" or asked < 3 else one))
    said = data.draw(st.sampled_from(ATTRIBUTES))
    beside, shifted = data.draw(st.tuples(st.booleans(), st.booleans())) if op == "QMoE" else (False, False)
    graph = mixture(op, words, experts, biased=data.draw(st.booleans()), beside=beside, shifted=shifted, **said, k=asked)
    feeds = feeds_of(graph, data.draw(st.integers(0, 99)), least=data.draw(st.sampled_from((0.0, 0.5))))
    apart = with_experts_apart(graph)
    assert [node.op for node in apart.nodes].count(CHOSEN_EXPERTS) == 1
    cuts = data.draw(st.sets(st.integers(1, experts - 1), max_size=DEVICES - 1)) if experts > 1 else ()
    for got, expected in zip(answers(divided(apart, (0, *sorted(cuts), experts)), feeds), plain_outputs(graph, feeds), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("words", [1, 40])
def test_of_few_bits_answers_for_several_words_are_added_in_another_order(words: int) -> None:
    graph = mixture("QMoE", (words,), 40, k=4)
    feeds = feeds_of(graph)
    for got, expected in zip(answers(divided(with_experts_apart(graph), (0, 15, 40)), feeds), plain_outputs(graph, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5 * (words > 1), atol=1e-6 * abs(expected).max() * (words > 1))


@pytest.mark.parametrize("op", ["MoE", "QMoE"])
def test_each_node_has_its_share_of_the_experts(op: str) -> None:
    """Experts are divided where a jump follows, too, since nothing but zeros is added to an answer."""
    graph = mixture(op, (1,), 8)
    graph = replace(graph, nodes=(*graph.nodes, Node("round", "Round", ("z",), ("r",))), outputs=("y", "r"))
    graph = replace(graph, types={**graph.types, "r": graph.types["z"]})
    plain, apart = forms_of(graph)
    assert plain is graph
    compiled = plan_graph(apart, Cluster.even(2), PlanOptions("tensor-parallel")).compiled
    (chosen,) = (node for node in apart.nodes if node.op == CHOSEN_EXPERTS)
    assert [str(tile.part) for tile in compiled.plan.tiles[chosen.name]] == ["e 0:4", "e 4:8"]
    feeds, artifacts = feeds_of(graph), export(compiled.optimized)
    for got, expected in zip(simulate(artifacts, feeds, local_kernels(artifacts)), plain_outputs(graph, feeds), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", ["float16", "unknown", "old", "sparse", "given"])
def test_what_has_no_second_form(kind: str) -> None:
    graph = mixture()
    types, node = dict(graph.types), graph.nodes[0]
    match kind:
        case "float16":
            types["x"] = TensorType(DType.FLOAT16, types["x"].shape)
        case "unknown":
            types["s"] = TensorType(DType.FLOAT, None)
        case "old":
            graph = replace(graph, opsets={"": 12, MICROSOFT: 1})
        case "sparse":
            node = replace(node, attributes={**node.attributes, "use_sparse_mixer": 1})
        case "given":
            weights = {name: weight for name, weight in graph.weights.items() if name != "w0"}
            graph = replace(graph, weights=weights, inputs=(*graph.inputs, "w0"))
    graph = replace(graph, types=types, nodes=(node, *graph.nodes[1:]))
    assert with_experts_apart(graph) is graph


def test_sizes_that_move_go_on_moving() -> None:
    graph = replace(mixture(words=(1, 5)), moving={"x": frozenset({1}), "s": frozenset({0}), "y": frozenset({1})})
    apart = with_experts_apart(graph)
    (chosen,) = (node for node in apart.nodes if node.op == CHOSEN_EXPERTS)
    assert apart.moving[chosen.first_output] == {0}
    assert apart.moving["y"] == {1}


def test_where_whole_mixtures_have_no_room_their_experts_are_divided() -> None:
    graph = mixture("MoE", (1,), 8, k=1)
    taken = sum(kind.nbytes for name, kind in graph.types.items() if name in graph.weights)
    for room, is_divided in ((0, False), (round(1.5 * taken), True)):
        nodes = tuple(replace(node, memory_bytes=room) for node in Cluster.even(2).nodes)
        plan = plan_graph(graph, replace(Cluster.even(2), nodes=nodes), PlanOptions("tensor-parallel")).compiled.plan
        assert any(node.op == CHOSEN_EXPERTS for node in plan.graph.nodes) == is_divided
