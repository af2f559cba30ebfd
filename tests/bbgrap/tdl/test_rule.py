"""When a node has a description, what a local piece looks like, and what is refused."""

import itertools

import numpy as np
import pytest

from bbgrap.errors import PlanError
from bbgrap.graph.types import DType, Graph, Node, Subgraph, TensorType, Weight
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.tdl import Input, describe, localize, site_of
from bbgrap.tdl.language import Description
from bbgrap.tdl.rule import OperatorRule, register
from tests.bbgrap.tdl.verifier import Case, Whole, run_local

FLOAT = TensorType(DType.FLOAT, (1, 4, 6, 6))


def graph_of(op, inputs, *, output=FLOAT, attributes=None, constants=None, opset=18, outputs=("y",), domain=""):
    """A graph of one node; `inputs` are types, `constants` arrays by position."""
    constants = {f"x{k}": np.asarray(a) for k, a in (constants or {}).items()}
    names = tuple("" if kind is None else f"x{k}" for k, kind in enumerate(inputs))
    node = Node("node", op, names, outputs, attributes or {}, domain)
    types = {name: kind for name, kind in zip(names, inputs, strict=True) if name} | dict.fromkeys(filter(None, outputs), output)
    weights = {name: Weight(name, types[name], "", array) for name, array in constants.items()}
    return Graph("g", (node,), tuple(n for n in names if n), outputs, weights, types, {"": opset})


def described(*arguments, **options):
    graph = graph_of(*arguments, **options)
    return describe(graph, graph.nodes[0])


def integers(*values):
    return TensorType(DType.INT64, (len(values),))


def test_a_plain_node_is_described():
    assert described("Relu", (FLOAT,)).shape == (1, 4, 6, 6)


CONV = {"kernel_shape": (3, 3)}
WEIGHT = TensorType(DType.FLOAT, (4, 4, 3, 3))
POINTS = TensorType(DType.FLOAT, (4, 4, 1, 1))
SMALL = TensorType(DType.FLOAT, (1, 4, 3, 3))
LARGE = TensorType(DType.FLOAT, (1, 4, 12, 12))
UNKNOWN = TensorType(DType.FLOAT, None)


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("no rule", {"op": "NonZero"}),
        ("no rule in this domain", {"op": "Relu", "domain": "com.example"}),
        ("opset below 13", {"op": "Relu", "opset": 12}),
        ("input of unknown shape", {"op": "Relu", "inputs": (UNKNOWN,)}),
        ("output of unknown shape", {"op": "Relu", "output": UNKNOWN}),
        ("a type that cannot be sent", {"op": "Relu", "inputs": (TensorType(DType.BFLOAT16, (1, 4)),)}),
        ("a function of no axis", {"op": "Softmax", "inputs": (TensorType(DType.FLOAT, ()),), "output": TensorType(DType.FLOAT, ())}),
        ("empty output", {"op": "Relu", "output": TensorType(DType.FLOAT, (1, 0))}),
        ("second output in use", {"op": "MaxPool", "outputs": ("y", "indices"), "attributes": {"kernel_shape": (1, 1)}}),
        ("control flow", {"op": "Relu", "attributes": {"body": Subgraph(b"", ("outer",))}}),
        ("column-major indices", {"op": "MaxPool", "attributes": {"kernel_shape": (1, 1), "storage_order": 1}}),
        ("SAME with ceil_mode", {"op": "MaxPool", "attributes": {"kernel_shape": (1, 1), "auto_pad": "SAME_UPPER", "ceil_mode": 1}}),
        (
            "SAME with a stride that skips the end",
            {"op": "MaxPool", "output": SMALL, "attributes": {"kernel_shape": (1, 1), "strides": (2, 2), "auto_pad": "SAME_UPPER"}},
        ),
        (
            "SAME with a stride that skips the end",
            {"op": "Conv", "inputs": (FLOAT, POINTS), "output": SMALL, "attributes": {"strides": (2, 2), "auto_pad": "SAME_LOWER"}},
        ),
        ("outputs between windows", {"op": "ConvTranspose", "inputs": (FLOAT, WEIGHT), "attributes": {**CONV, "strides": (4, 4)}}),
        ("bounds of all axes known at run time", {"op": "Slice", "inputs": (FLOAT, integers(*[0] * 4), integers(*[1] * 4))}),
        ("axes to slice known at run time", {"op": "Slice", "inputs": (FLOAT, *map(integers, (0, 1, 0)))}),
        ("axes known at run time", {"op": "ReduceSum", "inputs": (FLOAT, integers(0))}),
        ("nothing is reduced", {"op": "ReduceSum", "attributes": {"noop_with_empty_axes": 1}}),
        ("widths known at run time", {"op": "Pad", "inputs": (FLOAT, integers(*range(8)))}),
        ("value known at run time", {"op": "Pad", "inputs": (FLOAT, integers(*range(8)), FLOAT), "constants": {1: np.zeros(8, np.int64)}}),
        ("scales known at run time", {"op": "Resize", "inputs": (FLOAT, None, TensorType(DType.FLOAT, (4,)))}),
        (
            "every axis stays whole",
            {"op": "Resize", "inputs": (FLOAT, None, None, integers(2, 8, 9, 9)), "output": TensorType(DType.FLOAT, (2, 8, 9, 9))}
            | {"attributes": {"mode": "cubic"}},
        ),
        (
            "crop and resize",
            {"op": "Resize", "inputs": (FLOAT, FLOAT, None, integers(1, 4, 12, 12)), "output": LARGE}
            | {"attributes": {"coordinate_transformation_mode": "tf_crop_and_resize"}},
        ),
        (
            "aspect ratio",
            {"op": "Resize", "inputs": (FLOAT, None, None, integers(12, 12)), "output": LARGE}
            | {"attributes": {"axes": (2, 3), "keep_aspect_ratio_policy": "not_larger"}},
        ),
    ],
)
def test_what_runs_whole(reason, options):
    options = {"inputs": (FLOAT,)} | options
    assert described(options.pop("op"), options.pop("inputs"), **options) is None, reason


def test_without_a_description_the_node_runs_as_it_is():
    graph = graph_of("Loop", (FLOAT, None, UNKNOWN), attributes={"a": 1})
    local = localize(graph, graph.nodes[0], None, ShapeMap.full((1, 4, 6, 6)))
    assert local.reads == (ShapeMap.full((1, 4, 6, 6)), None, ShapeMap(()))
    (node,) = local.nodes
    assert (node.op, node.operands, node.attributes) == ("Loop", (Input(0), None, Input(2)), {"a": 1})


def test_an_axis_of_an_opaque_function_cannot_be_cut():
    whole = Whole(Case("Softmax", (np.ones((2, 6), np.float32),)))
    with pytest.raises(PlanError, match=r"node 'node' \(Softmax\): axis 1 of its output cannot be split, but the tile is \[0:2, 0:3\]"):
        whole.localize(ShapeMap.of((0, 2), (0, 3)))


@pytest.mark.parametrize(
    ("case", "axis"),
    [
        (Case("MaxPool", (np.ones((1, 1, 6), np.float32),), {"kernel_shape": (1,)}), 2),
        (Case("LRN", (np.ones((1, 6, 1, 1), np.float32),), {"size": 3}), 1),
        (Case("Pad", (np.ones(4, np.float32), np.array([1, 1])), parameters=frozenset((1,))), 0),
        (Case("Slice", (np.ones(12, np.float32), *(np.array([v]) for v in (0, 12, 0, 2))), parameters=frozenset(range(1, 5))), 0),
        (Case("Resize", (np.ones(3, np.float32), None, np.array([2], np.float32)), parameters=frozenset((2,))), 0),
    ],
)
def test_a_tile_with_a_gap_needs_two_windowed_nodes(case, axis):
    whole = Whole(case)
    with pytest.raises(PlanError, match=f"expected one range along axis {axis}, got 0:2,4:6"):
        whole.localize(ShapeMap.full(whole.output.shape).replace(axis, IntervalSet.of((0, 2), (4, 6))))


def test_channels_that_cut_through_groups_become_one_conv_per_run():
    x, w = np.ones((1, 6, 3), np.float32), np.ones((12, 2, 1), np.float32)
    whole = Whole(Case("Conv", (x, w), {"group": 3, "kernel_shape": (1,)}))

    def nodes(*channels):
        return [
            (n.op, n.attributes.get("group")) for n in whole.localize(ShapeMap.full((1, 12, 3)).replace(1, IntervalSet.of(channels))).nodes
        ]

    assert nodes(4, 12) == [("Conv", 2)]
    assert nodes(5, 7) == [("Conv", 1)]
    assert [n for n in nodes(2, 12) if n[0] == "Conv"] == [("Conv", 1), ("Conv", 2)]
    assert [n for n in nodes(3, 9) if n[0] == "Conv"] == [("Conv", 1), ("Conv", 1), ("Conv", 1)]


def test_concat_reads_only_the_operands_that_a_tile_touches():
    whole = Whole(Case("Concat", tuple(np.ones((2, n), np.float32) for n in (3, 1, 4)), {"axis": 1}))
    local = whole.localize(ShapeMap.of((0, 2), (4, 6)))
    assert [read.is_empty for read in local.reads] == [True, True, False]
    assert local.nodes[0].op == "Identity"


def test_scales_count_and_not_the_ratio_of_extents():
    """5 by 2.1 gives 10 and is no doubling: the axis stays whole, whereas 5 to size 10 is one."""
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    by_scale = Whole(Case("Resize", (x, None, np.array([1, 2.1], np.float32)), parameters=frozenset((2,))))
    by_size = Whole(Case("Resize", (x, None, None, np.array([2, 10])), parameters=frozenset((3,))))
    assert by_scale.output.shape == by_size.output.shape
    assert by_scale.describe().splittable_axes == (0,)
    assert by_size.describe().splittable_axes == (0, 1)


@pytest.mark.parametrize("transform", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize(("scale", "size"), [(1.6, None), (None, (700, 7)), (None, (333, 9)), (0.7, None), (0.4, None)])
def test_pictures_are_resized_in_pieces_by_any_factor(transform, scale, size):
    """As detectors do first: as near to the whole as its own rounding, also where places are large."""
    x = np.random.default_rng(0).standard_normal((1, 1, 640, 5), np.float32)
    operands = (None, np.array([1, 1, *size])) if size else (np.array([1, 1, scale, scale], np.float32),)
    whole = Whole(Case("Resize", (x, None, *operands), {"mode": "linear", "coordinate_transformation_mode": transform}, frozenset((2, 3))))
    assert whole.describe().splittable_axes == (0, 1, 2, 3)
    rows, columns = whole.output.shape[2:]
    for row, column in [((0, 200), (0, columns)), ((200, rows), (1, columns)), ((rows - 1, rows), (0, 1)), ((0, rows), (1, 2))]:
        local = whole.localize(ShapeMap.of((0, 1), (0, 1), row, column))
        np.testing.assert_allclose(run_local(whole.case, local)[0], whole.output[:, :, slice(*row), slice(*column)], rtol=0, atol=2e-6)
    assert len(whole.localize(ShapeMap.of((0, 1), (0, 1), (0, 200), (0, columns))).reads[0].axes[2]) < 510


@pytest.mark.parametrize("transform", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("rows", [6, 3])
def test_what_keeps_its_extent_or_its_shape_is_resized_in_pieces_as_in_the_whole(transform, rows):
    """onnxruntime copies what keeps its shape, whatever scales say: a piece whose other axis keeps its extent was copied."""
    x = np.random.default_rng(0).standard_normal((2, 1, rows, 3), np.float32)
    attributes = {"mode": "linear", "coordinate_transformation_mode": transform}
    whole = Whole(Case("Resize", (x, None, np.array([1, 1, 1.25, 1.25], np.float32)), attributes, frozenset((2,))))
    assert whole.output.shape == (2, 1, rows + (rows == 6), 3)
    for row, column in itertools.product([(0, 2), (1, 3), (0, rows)], [(0, 1), (1, 3), (0, 3)]):
        local = whole.localize(ShapeMap.of((0, 1), (0, 1), row, column))
        np.testing.assert_allclose(run_local(whole.case, local)[0], whole.output[:1, :, slice(*row), slice(*column)], rtol=0, atol=2e-6)


def test_a_resized_map_is_as_infinite_in_pieces():
    x = np.full((1, 1, 4, 1), np.inf, np.float32)
    whole = Whole(Case("Resize", (x, None, None, np.array([1, 1, 6, 1])), {"mode": "linear"}, frozenset((3,))))
    local = whole.localize(ShapeMap.of((0, 1), (0, 1), (5, 6), (0, 1)))
    np.testing.assert_array_equal(run_local(whole.case, local)[0], whole.output[:, :, 5:])


def test_a_contiguous_cut_inside_a_unit_is_a_slice():
    whole = Whole(Case("Flatten", (np.arange(24, dtype=np.float32).reshape(1, 4, 6),), {"axis": 1}))
    local = whole.localize(ShapeMap.of((0, 1), (5, 15)))
    assert local.reads[0] == ShapeMap.of((0, 1), (0, 3), (0, 6))
    assert [node.op for node in local.nodes] == ["Reshape", "Slice", "Reshape"]
    np.testing.assert_array_equal(run_local(whole.case, local)[0], np.arange(5, 15, dtype=np.float32)[None])


def test_an_operator_has_one_rule():
    with pytest.raises(ValueError, match="operator :Conv has a rule already"):
        register(OperatorRule(lambda _site: Description((), None)), "Conv")


def test_a_site_names_the_node_when_an_attribute_is_wrong():
    graph = graph_of("Conv", (FLOAT, None), attributes={"group": 1.5, "alpha": "x", "pads": 3, "auto_pad": b"VALID"})
    site = site_of(graph, graph.nodes[0])
    assert site.text("auto_pad", "") == "VALID"
    assert not site.has(1)
    assert site.constant(5) is None
    for read, text in (
        (lambda: site.integer("group", 1), "attribute 'group' is no integer: 1.5"),
        (lambda: site.integers("pads", ()), "attribute 'pads' is no list: 3"),
        (lambda: site.shape(1), "operand 1 is absent"),
    ):
        with pytest.raises(PlanError, match=rf"node 'node' \(Conv\): {text}"):
            read()
