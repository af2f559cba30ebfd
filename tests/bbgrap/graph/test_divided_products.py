"""Products of rows in which batch and words are one axis, as GPT-2's: their second form answers as the first, and is cut by words."""

from dataclasses import replace

import numpy as np
import pytest

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.graph.divided_products import with_products_apart
from bbgrap.graph.types import DType, Node, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions, plan_bbgrap
from bbgrap.planners.forms import forms_of
from bbgrap.planners.options import PlanOptions
from tests.partition import assert_partition_agrees, plain_outputs

WIDTH, COLUMNS = 8, 12


def joined(before=(3, 5, WIDTH), after=(3, 5, COLUMNS), *, rows=15, bias=(COLUMNS,), attributes=None, outputs=("y",)) -> Graph:
    """A product whose rows are joined before it and parted behind it, with an activation on either side."""
    random = np.random.default_rng(1)
    arrays = {"w": random.standard_normal((WIDTH, COLUMNS)).astype(np.float32), "joined": np.array([rows, WIDTH])}
    arrays |= {"parted": np.array(after)} | ({"b": random.standard_normal(bias).astype(np.float32)} if bias is not None else {})
    shapes = {"x": before, "a": before, "in rows": (rows, WIDTH), "product": (rows, COLUMNS), "z": after, "y": after}
    known = {name: TensorType(DType.FLOAT, shape) for name, shape in shapes.items()}
    held = {name: make_weight(name, array) for name, array in arrays.items()}
    nodes = (
        Node("first", "Relu", ("x",), ("a",)),
        Node("join", "Reshape", ("a", "joined"), ("in rows",)),
        Node("gemm", "Gemm", ("in rows", "w", *(("b",) if bias is not None else ())), ("product",), attributes or {}),
        Node("part", "Reshape", ("product", "parted"), ("z",)),
        Node("last", "Relu", ("z",), ("y",)),
    )
    return Graph("g", nodes, ("x",), outputs, held, known | {name: weight.type for name, weight in held.items()}, {"": 18})


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"bias": None},
        {"bias": (1, COLUMNS)},
        {"bias": ()},
        {"before": (3, 5, 2, 4)},
        {"after": (3, 5, 3, 4)},
        {"before": (2, 2, 4, WIDTH), "after": (16, COLUMNS), "rows": 16},
        {"outputs": ("y", "product")},
    ],
)
def test_it_answers_as_the_first_form(sizes):
    graph = joined(**sizes)
    apart = with_products_apart(graph, ())
    assert {node.op for node in apart.nodes} & {"MatMul", "Gemm"} == {"MatMul"}
    feeds = [np.random.default_rng(2).standard_normal(graph.types["x"].known_shape).astype(np.float32)]
    for mine, expected in zip(plain_outputs(apart, feeds), plain_outputs(graph, feeds), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "sizes",
    [
        {"before": (1, 15, WIDTH), "after": (1, 15, COLUMNS)},  # one axis: a range of it is one of rows
        {"before": (3, 40), "after": (3, 5, COLUMNS)},
        {"bias": (15, 1)},
        {"attributes": {"alpha": 0.5}},
    ],
)
def test_what_is_cut_as_it_is_stays(sizes):
    graph = joined(**sizes)
    assert with_products_apart(graph, ()) is graph


def test_a_product_that_must_keep_its_bits_stays():
    graph = joined()
    assert with_products_apart(graph, {"gemm"}) is graph
    of_doubles = replace(graph, types={**graph.types, "product": TensorType(DType.DOUBLE, (15, COLUMNS))})
    assert with_products_apart(of_doubles, ()) is of_doubles


def test_words_of_several_sequences_are_divided():
    graph, apart = forms_of(joined())
    options = PlanOptions("bbgrap", "rows")
    tiles = [plan_bbgrap(form, Cluster.even(2), options, all_descriptions(form)) for form in (graph, apart)]
    assert len(tiles[0]["gemm"]) == 1, "of a range of words there are several ranges of rows"
    assert [[len(made) for made in form.values()] for form in tiles][1] == [2] * len(apart.nodes)
    assert_partition_agrees(apart, Cluster.even(2), options)
