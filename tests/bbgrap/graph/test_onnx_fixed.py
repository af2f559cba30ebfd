"""Sizes that are taken of shapes: those that no open axis changes become constants, and nothing else does."""

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from bbgrap.graph.onnx_fixed import with_fixed_sizes
from bbgrap.graph.onnx_io import read_model
from tests.onnx_models import write_model

SHAPE = ["words", 4, "all", 16]
FIXED = {1: 4, 3: 16}


def told_by(tmp_path, nodes, constants, **options):
    """What of these nodes, which read the shape of `x`, is a constant now, by the names of their outputs."""
    outputs = [node.output[0] for node in nodes]
    shape = helper.make_node("Shape", ["x"], ["sizes"], **options)
    path = write_model(tmp_path / "m.onnx", [shape, *nodes], {"x": SHAPE}, outputs, constants)
    model = with_fixed_sizes(read_model(path))
    found = {node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in model.proto.graph.node if node.op_type == "Constant"}
    for words, total in ((1, 7), (3, 16), (4, 4)):
        feed = {"x": np.zeros((words, 4, total, 16), np.float32)}
        was, now = (ort.InferenceSession(m).run(outputs, feed) for m in (path, model.proto.SerializeToString()))
        for name, one, other in zip(outputs, was, now, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
            assert name not in found or found[name].shape == one.shape
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fixed")


@given(order=st.permutations(range(4)), places=st.lists(st.integers(-4, 3), min_size=1, max_size=3), alone=st.booleans())
def test_what_is_gathered_is_a_constant_if_all_of_it_is_fixed(folder, order, places, alone):
    places = places[0] if alone else places
    nodes = [helper.make_node("Gather", ["sizes", "order"], ["turned"]), helper.make_node("Gather", ["turned", "places"], ["taken"])]
    found = told_by(folder, nodes, {"order": np.array(order), "places": np.array(places)})
    is_fixed = all(order[place] in FIXED for place in np.ravel(places))
    assert ("taken" in found) == is_fixed
    assert "turned" not in found


@given(st.tuples(*[st.integers(-6, 6)] * 2), st.sampled_from([1, 2, -1]), st.integers(2, 4))
def test_what_is_sliced_is_a_constant_if_all_of_it_is_fixed(folder, bounds, step, count):
    parameters = {"start": [bounds[0]], "end": [bounds[1]], "axis": [0], "step": [step]}
    constants = dict([*parameters.items()][:count])
    found = told_by(folder, [helper.make_node("Slice", ["sizes", *constants], ["taken"])], constants)
    if step == 1 or count < 4:
        assert ("taken" in found) == all(axis in FIXED for axis in range(4)[slice(*bounds)])
    else:
        assert not found


def test_sizes_come_through_lists_that_are_not_all_fixed(folder):
    nodes = [
        helper.make_node("Gather", ["sizes", "first"], ["words"]),
        helper.make_node("Unsqueeze", ["words", "axis"], ["words in a list"]),
        helper.make_node("Concat", ["words in a list", "sizes", "one"], ["more"], axis=0),
        helper.make_node("Gather", ["more", "fourth"], ["elements"]),
        helper.make_node("Gather", ["more", "last"], ["known"]),
    ]
    constants = {"first": 0, "axis": [0], "one": [1], "fourth": 3, "last": [-1]}
    found = told_by(folder, nodes, constants, start=1)
    assert {name: array.tolist() for name, array in found.items()} == {"words": 4, "elements": 16, "known": [1]}


def test_a_model_of_which_nothing_is_fixed_is_the_very_same(folder):
    path = write_model(folder / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": SHAPE}, ["y"])
    model = read_model(path)
    assert with_fixed_sizes(model) is model


def test_a_place_beyond_the_end_is_left_to_the_run(folder):
    nodes = [helper.make_node("Shape", ["x"], ["sizes"]), helper.make_node("Gather", ["sizes", "place"], ["y"])]
    model = read_model(write_model(folder / "m.onnx", nodes, {"x": SHAPE}, ["y"], {"place": 9}))
    assert with_fixed_sizes(model) is model
