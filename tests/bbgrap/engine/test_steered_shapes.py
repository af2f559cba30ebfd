"""Shapes that follow from lists of sizes: they are those of the run, and what depends on more than shapes is left alone."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from bbgrap.engine.reload import ReloadedModel
from bbgrap.engine.sessions import make_session
from bbgrap.engine.steered_shapes import steered_shapes
from bbgrap.graph.types import DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight
from tests.onnx_models import model_of


def expanded(before, wanted):
    """PyTorch's `expand`: sizes of one value, -1 for what stays."""
    weights = {
        "minus": np.full(len(wanted), -1),
        "ones": np.ones(len(wanted), np.int64),
        "wanted": np.array(wanted),
        "at": np.array([0, 2]),
    }
    nodes = (
        Node("shape", "Shape", ("y",), ("sizes of y",)),
        Node("some", "Gather", ("sizes of y", "at"), ("some sizes",)),
        Node("list", "Concat", ("some sizes", "wanted"), ("sizes",), {"axis": 0}),
        Node("stays", "Equal", ("sizes", "minuses"), ("kept",)),
        Node("told", "Where", ("kept", "all ones", "sizes"), ("told sizes",)),
        Node("expand", "Expand", ("x", "told sizes"), ("z",)),
    )
    count = 2 + len(wanted)
    weights |= {"minuses": np.full(count, -1), "all ones": np.ones(count, np.int64)}
    numbers = TensorType(DType.INT64, (count,))
    types = {
        "x": TensorType(DType.FLOAT, before),
        "y": TensorType(DType.FLOAT, (5, 1, 7)),
        "sizes of y": TensorType(DType.INT64, (3,)),
        "some sizes": TensorType(DType.INT64, (2,)),
        "sizes": numbers,
        "kept": TensorType(DType.BOOL, (count,)),
        "told sizes": numbers,
        "z": TensorType(DType.FLOAT, None),
    }
    made = {name: make_weight(name, np.asarray(array, np.int64)) for name, array in weights.items()}
    return Graph("g", nodes, ("x", "y"), ("z",), made, {**types, **{n: w.type for n, w in made.items()}}, {"": 17}, 8)


@given(st.lists(st.sampled_from([-1, 1, 3]), max_size=3), st.lists(st.sampled_from([1, 3]), max_size=3))
def test_a_shape_is_that_of_the_run(wanted, before):
    found = steered_shapes(expanded(tuple(before), wanted))
    told = tuple(1 if size == -1 else size for size in (5, 7, *wanted))
    try:
        shape = np.broadcast_shapes(tuple(before), told)
    except ValueError:
        assert not found
    else:
        assert found == {"z": TensorType(DType.FLOAT, shape)}


def told(op, before, lists):
    """An operator of one value and of lists, each of which a shape tells: of a value that is as long along each axis."""
    values = {f"list{k}": numbers for k, numbers in enumerate(lists)}
    nodes, types, weights = [], {"x": TensorType(DType.FLOAT, before), "z": TensorType(DType.FLOAT, None)}, {}
    for name, numbers in values.items():
        weights[f"sign of {name}"] = make_weight(f"sign of {name}", np.sign(np.array(numbers, np.int64)))
        types |= {f"as long as {name}": TensorType(DType.FLOAT, tuple(abs(number) for number in numbers))}
        types |= dict.fromkeys((f"sizes of {name}", name), TensorType(DType.INT64, (len(numbers),)))
        nodes.append(Node(f"shape of {name}", "Shape", (f"as long as {name}",), (f"sizes of {name}",)))
        nodes.append(Node(name, "Mul", (f"sizes of {name}", f"sign of {name}"), (name,)))
    nodes.append(Node("z", op, ("x", *values), ("z",)))
    inputs = ("x", *(f"as long as {name}" for name in values))
    types |= {name: weight.type for name, weight in weights.items()}
    return Graph("g", tuple(nodes), inputs, ("z",), weights, types, {"": 17}, 8)


@given(st.data())
def test_what_is_sliced_or_repeated_has_the_shape_of_the_run(data):
    before = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    axes = data.draw(st.permutations(range(len(before))))[: data.draw(st.integers(1, len(before)))]
    bounds = st.lists(st.integers(-6, 6), min_size=len(axes), max_size=len(axes))
    steps = data.draw(st.lists(st.sampled_from([-2, -1, 1, 2]), min_size=len(axes), max_size=len(axes)))
    sliced = (data.draw(bounds), data.draw(bounds), list(axes), steps)
    counts = (data.draw(st.lists(st.integers(0, 3), min_size=len(before), max_size=len(before))),)
    for op, lists in (("Slice", sliced), ("Tile", counts)):
        made = helper.make_node(op, ["x", *(f"list{k}" for k in range(len(lists)))], ["z"])
        constants = {f"list{k}": np.array(numbers, np.int64) for k, numbers in enumerate(lists)}
        model = model_of([made], {"x": before}, {"z": [None] * len(before)}, constants)
        (run,) = make_session(model.SerializeToString(), threads=1, optimize=False).run(None, {"x": np.zeros(before, np.float32)})
        assert steered_shapes(told(op, before, lists)) == {"z": TensorType(DType.FLOAT, run.shape)}


@given(st.data())
def test_what_is_reshaped_has_the_shape_of_the_run(data):
    before = data.draw(st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, max_size=3).map(tuple))
    sizes, literal = data.draw(st.lists(st.sampled_from([-1, 0, 1, 2, 3, 6]), min_size=1, max_size=4)), data.draw(st.booleans())
    made = helper.make_node("Reshape", ["x", "list0"], ["z"], allowzero=int(literal))
    model = model_of([made], {"x": before}, {"z": [None] * len(sizes)}, {"list0": np.array(sizes, np.int64)})
    graph = told("Reshape", before, [sizes])
    graph = replace(graph, nodes=(*graph.nodes[:-1], replace(graph.nodes[-1], attributes={"allowzero": int(literal)})))
    found = steered_shapes(graph)
    try:
        (run,) = make_session(model.SerializeToString(), threads=1, optimize=False).run(None, {"x": np.zeros(before, np.float32)})
    except Exception:  # onnxruntime's have no common base
        assert not found
    else:
        # Of nothing, -1 may be any size: the run says 0, nobody else need.
        assert found == {"z": TensorType(DType.FLOAT, run.shape)} or (-1 in sizes and 0 in before and not found)


@given(st.integers(-4, 4), st.integers(1, 6), st.sampled_from([-2, -1, 1, 3]))
def test_numbers_in_a_row_are_as_many_as_of_the_run(start, size, step):
    weights = {name: make_weight(name, np.array(number, np.int64)) for name, number in (("start", start), ("step", step))}
    nodes = (
        Node("shape", "Shape", ("x",), ("sizes",)),
        Node("one", "Squeeze", ("sizes",), ("size",)),
        Node("limit", "Mul", ("size", "step"), ("limit",)),
        Node("range", "Range", ("start", "limit", "step"), ("z",)),
    )
    types = {"x": TensorType(DType.FLOAT, (size,)), "sizes": TensorType(DType.INT64, (1,)), "z": TensorType(DType.INT64, None)}
    types |= dict.fromkeys(("size", "limit"), TensorType(DType.INT64, ())) | {name: weight.type for name, weight in weights.items()}
    graph = Graph("g", nodes, ("x",), ("z",), weights, types, {"": 17}, 8)
    made = [helper.make_node(node.op, node.inputs, node.outputs) for node in nodes]
    model = model_of(made, {"x": [size]}, {"z": [None]}, {"start": np.int64(start), "step": np.int64(step)}, kinds={"z": TensorProto.INT64})
    (run,) = make_session(model.SerializeToString(), threads=1, optimize=False).run(None, {"x": np.zeros(size, np.float32)})
    assert steered_shapes(graph) == {"z": TensorType(DType.INT64, run.shape)}


def test_sizes_of_what_has_no_known_shape_are_not_told():
    graph = expanded((1,), [-1])
    unknown = {"y": TensorType(DType.FLOAT, None), "sizes of y": TensorType(DType.INT64, (3,))}
    assert not steered_shapes(replace(graph, types={**graph.types, **unknown}))


def test_what_follows_an_expansion_has_a_shape(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Equal", ["sizes", "minus"], ["stays"]),
        helper.make_node("Where", ["stays", "ones", "sizes"], ["told"]),
        helper.make_node("Expand", ["one", "told"], ["wide"]),
        helper.make_node("Add", ["x", "wide"], ["y"]),
    ]
    constants = {"minus": np.full(2, -1), "ones": np.ones(2, np.int64), "one": np.ones((1, 1), np.float32)}
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(nodes, {"x": ["N", 3]}, {"y": None}, constants).SerializeToString())
    loader = ReloadedModel(path)
    graph = loader.open_graph({"x": (5, 3)}, {"x": frozenset({0})})
    assert graph.types["wide"].shape == (5, 3)


def test_places_of_all_words_have_a_shape(tmp_path):
    """As decoders of BART, T5 and Whisper, which take a word at once, count them."""
    nodes = [
        helper.make_node("Shape", ["past"], ["before"], start=2, end=3),
        helper.make_node("Squeeze", ["before"], ["words before"]),
        helper.make_node("Add", ["words before", "one"], ["all words"]),
        helper.make_node("Range", ["none", "all words", "one"], ["places"]),
        helper.make_node("LessOrEqual", ["places", "words before"], ["seen"]),
        helper.make_node("Where", ["seen", "scores", "least"], ["y"]),
    ]
    constants = {"one": np.int64(1), "none": np.int64(0), "least": np.float32(-1e9)}
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(nodes, {"past": [1, 2, "P", 4], "scores": [1, 2, 1, "T"]}, {"y": None}, constants).SerializeToString())
    graph = ReloadedModel(path).open_graph(
        {"past": (1, 2, 5, 4), "scores": (1, 2, 1, 6)}, {"past": frozenset({2}), "scores": frozenset({3})}
    )
    assert graph.types["places"].shape == (6,)
    assert graph.types["y"].shape == (1, 2, 1, 6)
