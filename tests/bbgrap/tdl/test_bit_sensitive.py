"""The law of partial sums: what may be divided along its sums, and that answers stay onnxruntime's where rounding follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.graph import Array, DType, Graph, Node, TensorType
from bbgrap.graph.state import with_state
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, Tile, check_plan
from bbgrap.planners.registry import make_plan
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap
from bbgrap.tdl import Part, reducible
from bbgrap.tdl.bit_sensitive import bit_sensitive_nodes
from tests.partition import plain_outputs
from tests.program_laws import compile_checked

F, U8, I64, I32, B = DType.FLOAT, DType.UINT8, DType.INT64, DType.INT32, DType.BOOL
ROWS, WIDTH = 512, 256
"""Large enough that sums in another order move some of the values across the border of two steps."""

DIVIDING = [PlanOptions(split="inputs"), PlanOptions(planner="tofu"), PlanOptions(planner="hypar"), PlanOptions(planner="model-parallel")]


def graph_of(nodes: Sequence[Node], types: dict[str, TensorType], **weights: Array) -> Graph:
    """A graph from `x` to all that nothing reads."""
    held = {name: make_weight(name, np.asarray(array)) for name, array in weights.items()}
    read = {name for node in nodes for name in node.inputs}
    outputs = tuple(name for node in nodes for name in node.outputs if name not in read)
    kinds = types | {name: weight.type for name, weight in held.items()}
    return Graph("g", tuple(nodes), ("x",), outputs, held, kinds, {"": 17, "com.microsoft": 1})


def product_then(*after: Node, **types: TensorType) -> Graph:
    """x [4, 24] times w [24, 8] is p, then what is given."""
    kinds = {"x": TensorType(F, (4, 24)), "p": TensorType(F, (4, 8))} | types
    random = np.random.default_rng(1)
    parameters = {"w": random.standard_normal((24, 8)).astype(np.float32), "v": random.standard_normal((8, 4)).astype(np.float32)}
    used = {name for node in after for name in node.inputs} | {"w"}
    scalars: dict[str, Array] = {"s": np.float32(0.1), "z": np.uint8(128), "k": np.array([2]), "zero": np.float32(0)}  # type: ignore[dict-item]
    weights = {name: array for name, array in (parameters | scalars).items() if name in used}
    return graph_of((Node("product", "MatMul", ("x", "w"), ("p",)), *after), kinds, **weights)


def is_divisible(graph: Graph, name: str = "product") -> bool:
    return bool(reducible(graph, graph.node_by_name[name], all_descriptions(graph)[name]))


def row(kind: DType, *shape: int) -> TensorType:
    return TensorType(kind, shape or (4, 8))


QUANTIZED = Node("q", "QuantizeLinear", ("p", "s", "z"), ("y",))
CHOSEN = Node("best", "ArgMax", ("p",), ("y",), {"axis": 1, "keepdims": 1})
COMPARED = Node("compare", "Greater", ("p", "zero"), ("c",))
MASKED = Node("mask", "Where", ("c", "p", "zero"), ("m",))
SHAPE_ONLY = (Node("shape", "Shape", ("p",), ("n",)), Node("float", "Cast", ("n",), ("y",), {"to": 1}))
LAYER = Node("layer", "MatMul", ("m", "v"), ("y",))


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (product_then(Node("act", "Relu", ("p",), ("y",)), y=row(F)), True),
        (product_then(QUANTIZED, y=row(U8)), False),
        (product_then(Node("act", "Relu", ("p",), ("m",)), Node("floor", "Floor", ("m",), ("y",)), m=row(F), y=row(F)), False),
        (product_then(Node("cast", "Cast", ("p",), ("y",), {"to": 7}), y=row(I64)), False),
        (product_then(Node("cast", "Cast", ("p",), ("y",), {"to": 10}), y=row(DType.FLOAT16)), True),
        (product_then(CHOSEN, y=row(I64, 4, 1)), True),
        (product_then(COMPARED, MASKED, c=row(B), m=row(F)), True),
        (product_then(COMPARED, MASKED, LAYER, c=row(B), m=row(F), y=row(F, 4, 4)), False),
        (product_then(*SHAPE_ONLY, n=row(I64, 2), y=row(F, 2)), True),
    ],
    ids=["relu", "quantize", "floor-later", "to-integer", "to-float16", "arg-max-last", "mask-last", "mask-and-layer", "shape-only"],
)
def test_a_sum_is_divided_unless_a_jump_that_counts_follows(graph: Graph, expected: bool) -> None:
    assert is_divisible(graph) is expected
    for options in DIVIDING:
        tiles = make_plan(graph, Cluster.even(2), options).tiles["product"]
        assert expected or not any(tile.part for tile in tiles), options


def test_what_comes_after_the_last_rounding_is_divided() -> None:
    back = Node("d", "DequantizeLinear", ("y", "s", "z"), ("m",))
    graph = product_then(QUANTIZED, back, Node("last", "MatMul", ("m", "v"), ("o",)), y=row(U8), m=row(F), o=row(F, 4, 4))
    assert not is_divisible(graph)
    assert is_divisible(graph, "last")
    assert bit_sensitive_nodes(graph) == {"product"}
    assert bit_sensitive_nodes(graph) is bit_sensitive_nodes(graph)


@pytest.mark.parametrize(("last", "expected"), [(LAYER, True), (Node("floor", "Floor", ("m",), ("y",)), False)])
def test_a_choice_that_reaches_only_the_next_state_does_not_count_and_rounding_does(last: Node, expected: bool) -> None:
    size = row(F, 4, 4) if last is LAYER else row(F)
    graph = product_then(COMPARED, MASKED, last, Node("loss", "Relu", ("p",), ("l",)), c=row(B), m=row(F), y=size, l=row(F), before=size)
    graph = replace(graph, inputs=("x", "before"))
    assert not is_divisible(graph)
    assert is_divisible(with_state(graph, {"before": "y"})) is expected


def test_a_maximum_is_divided_whatever_follows() -> None:
    nodes = (Node("most", "ReduceMax", ("x",), ("p",), {"axes": (1,), "keepdims": 1}), QUANTIZED)
    types = {"x": row(F, 4, 24), "p": row(F, 4, 1), "y": row(U8, 4, 1)}
    assert is_divisible(graph_of(nodes, types, s=np.float32(0.1), z=np.uint8(128)), "most")  # type: ignore[arg-type]


def test_a_sum_that_is_stored_in_16_bits_is_not_divided() -> None:
    types = {"x": row(DType.FLOAT16, 4, 24), "p": row(DType.FLOAT16)}
    graph = graph_of((Node("product", "MatMul", ("x", "w"), ("p",)),), types, w=np.ones((24, 8), np.float16))
    assert not is_divisible(graph)


def integer_product() -> Graph:
    types = {"x": row(U8, 3, 22), "p": row(I32, 3, 5)}
    weights = np.random.default_rng(2).integers(-128, 128, (22, 5)).astype(np.int8)
    return graph_of((Node("product", "MatMulInteger", ("x", "w"), ("p",)),), types, w=weights)


def test_parts_of_an_integer_product_begin_at_multiples_of_four() -> None:
    graph = integer_product()
    whole = ShapeMap.full((3, 5))

    def faults(at: int) -> tuple[str, ...]:
        tiles = (Tile(0, whole, Part("k", Interval(0, at))), Tile(1, whole, Part("k", Interval(at, 22))))
        return check_plan(Plan("by hand", graph, Cluster.even(2), {"product": tiles}))

    assert faults(12) == ()
    (fault,) = faults(11)
    assert "k 11:22 does not begin at a multiple of 4" in fault


@pytest.mark.parametrize("options", DIVIDING, ids=lambda options: f"{options.planner}-{options.split}")
@pytest.mark.parametrize("devices", [2, 3, 5])
def test_planners_divide_integer_products_in_units(options: PlanOptions, devices: int) -> None:
    graph = integer_product()
    tiles = make_plan(graph, Cluster.even(devices), options).tiles["product"]
    starts = [tile.part.interval.start for tile in tiles if tile.part is not None]
    assert len(tiles) > 1
    assert all(start % 4 == 0 for start in starts)


@pytest.mark.parametrize("options", DIVIDING, ids=lambda options: f"{options.planner}-{options.split}")
def test_a_dynamically_quantized_network_answers_as_onnxruntime_does(options: PlanOptions) -> None:
    random = np.random.default_rng(5)
    nodes: list[Node] = []
    types = {"x": row(F, ROWS, WIDTH)}
    weights: dict[str, Array] = {}
    value = "x"
    for n in range(4):  # a float layer, then a quantized one, as converters leave them
        weights |= {
            f"w{n}": random.standard_normal((WIDTH, WIDTH)).astype(np.float32),
            f"q{n}": random.integers(-99, 99, (WIDTH, WIDTH)).astype(np.int8),
        }
        weights[f"f{n}"] = random.uniform(1e-4, 3e-4, WIDTH).astype(np.float32)
        nodes += [
            Node(f"float{n}", "MatMul", (value, f"w{n}"), (f"p{n}",)),
            Node(f"quantize{n}", "DynamicQuantizeLinear", (f"p{n}",), (f"a{n}", f"s{n}", f"z{n}")),
            Node(f"product{n}", "MatMulInteger", (f"a{n}", f"q{n}", f"z{n}"), (f"i{n}",)),
            Node(f"cast{n}", "Cast", (f"i{n}",), (f"c{n}",), {"to": 1}),
            Node(f"scale{n}", "Mul", (f"c{n}", f"s{n}"), (f"d{n}",)),
            Node(f"small{n}", "Mul", (f"d{n}", f"f{n}"), (f"y{n}",)),
        ]
        types |= {f"{name}{n}": row(F, ROWS, WIDTH) for name in "pcdy"}
        types |= {f"a{n}": row(U8, ROWS, WIDTH), f"s{n}": TensorType(F, ()), f"z{n}": TensorType(U8, ()), f"i{n}": row(I32, ROWS, WIDTH)}
        value = f"y{n}"
    graph = graph_of(nodes, types, **weights)
    feeds = [random.standard_normal((ROWS, WIDTH)).astype(np.float32)]
    (want,) = plain_outputs(graph, feeds)
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, Cluster.even(3), options, descriptions)
    assert any(len(tiles) > 1 for tiles in plan.tiles.values())
    artifacts = export(compile_plan(plan, descriptions).optimized)
    (got,) = simulate(artifacts, feeds, local_kernels(artifacts))
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


def test_a_table_is_divided_whatever_follows():
    """Of its parts one has each element: adding zeros rounds nothing, so that what is quantized behind it is equal to the bit."""
    types = {"x": row(I64, 5), "p": row(F, 5, 8), "y": row(U8, 5, 8)}
    table = np.random.default_rng(0).standard_normal((30, 8)).astype(np.float32)
    graph = graph_of((Node("product", "Gather", ("w", "x"), ("p",)), QUANTIZED), types, w=table, s=np.float32(0.1), z=np.uint8(128))
    assert is_divisible(graph)
    whole = ShapeMap.full((5, 8))
    parts = tuple(Tile(device, whole, Part("k", Interval(15 * device, 15 * device + 15))) for device in range(2))
    plan = Plan("parts", graph, Cluster.even(2), {"product": parts, "q": (Tile(1, whole),)})
    descriptions = all_descriptions(graph)
    assert not check_plan(plan, descriptions)
    artifacts = export(compile_checked(plan, descriptions).optimized)
    feeds = [np.array([0, 29, 15, 14, -1])]
    np.testing.assert_array_equal(simulate(artifacts, feeds, local_kernels(artifacts))[0], plain_outputs(graph, feeds)[0])


@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_one_row_of_a_product_has_the_bits_that_it_has_among_others(op: str) -> None:
    """A matrix that is no weight is not packed, and onnxruntime multiplies one row by it in an order of its own."""
    random = np.random.default_rng(6)
    if op == "MatMul":  # rows of x, a piece of one row on each node
        x, made, operands = (5, 90), (5, 40), ("x", "v")
        weight = random.integers(-127, 127, (90, 40)).astype(np.int8)
    else:  # filters
        x, made, operands = (1, 10, 9, 9), (1, 5, 9, 9), ("x", "v", "b")
        weight = random.integers(-127, 127, (5, 10, 3, 3)).astype(np.int8)
    product = Node("product", op, operands, ("p",), {"pads": (1, 1, 1, 1)} if op == "Conv" else {})
    nodes = (Node("dequantize", "DequantizeLinear", ("w", "ws"), ("v",)), product, QUANTIZED)
    types = {"x": row(F, *x), "v": row(F, *weight.shape), "p": row(F, *made), "y": row(U8, *made)}
    weights = {"w": weight, "ws": np.float32(0.01), "s": np.float32(0.1), "z": np.uint8(128)} | (
        {"b": np.ones(5, np.float32)} if op == "Conv" else {}
    )
    graph = replace(graph_of(nodes, types, **weights), outputs=("p", "y"))  # type: ignore[arg-type]
    assert product.name in bit_sensitive_nodes(graph)
    descriptions, axis = all_descriptions(graph), 0 if op == "MatMul" else 1
    rows = tuple(Tile(device, ShapeMap.full(made).replace(axis, IntervalSet.of((device, device + 1)))) for device in range(5))
    whole = tuple(Tile(device, ShapeMap.full(weight.shape)) for device in range(5))
    plan = Plan("by hand", graph, Cluster.even(5), {"dequantize": whole, "product": rows, "q": rows})
    assert not check_plan(plan, descriptions)
    artifacts = export(compile_plan(plan, descriptions).optimized)
    feeds = [random.standard_normal(x).astype(np.float32)]
    got = simulate(artifacts, feeds, local_kernels(artifacts))
    for mine, want in zip(got, plain_outputs(graph, feeds), strict=True):
        np.testing.assert_array_equal(mine, want)
