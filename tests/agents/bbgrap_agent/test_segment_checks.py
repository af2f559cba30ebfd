"""Compiled segments are compared with what was shipped at small sizes, and what answers wrongly is found there, too."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bbgrap_agent.compiling import load_compiled
from bbgrap_agent.segment_checks import SMALL, smaller
from bbgrap_agent.shared_segments import SharedSegments
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.engine.layout import block_size
from bbgrap.engine.load import load_graph
from bbgrap.errors import ModelError
from bbgrap.graph import Graph, Node, TensorType
from bbgrap.graph.onnx_forms import shapes_at
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.types import DType
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import make_plan
from bbgrap.zoo.builder import Builder
from tests.agents.segment_loading import loader_of
from tests.free_models import save_free

BLOCK = block_size() or 16
SIDE = 96
needs_blocks = pytest.mark.skipif(block_size() is None, reason="onnxruntime does not block feature maps on this CPU")


def network(window=3):
    """Two convolutions with a stride of two between them, and a window of any size."""
    builder = Builder("network", (1, 3, SIDE, SIDE))
    first = builder.act("Relu", builder.conv("input", "first", BLOCK, 3, pad=1), "active")
    kept = SIDE - window + 1
    pooled = builder.node("MaxPool", "pooled", [first], (1, BLOCK, kept, kept), {"kernel_shape": (window, window)})
    return builder.graph(builder.conv(pooled, "second", BLOCK, 3, stride=2, pad=1))


def strange():
    """Of a sine nobody says that onnxruntime concludes nothing from its size."""
    builder = Builder("strange", (1, 3, SIDE, SIDE))
    first = builder.act("Relu", builder.conv("input", "first", BLOCK, 3, pad=1), "active")
    wave = builder.act("Sin", builder.conv(first, "second", BLOCK, 3, pad=1), "wave")
    return builder.graph(builder.conv(wave, "third", BLOCK, 3, pad=1))


def deployed(graph, spoil=lambda answers, inputs: answers):
    """Load a network with free sizes on two agents; `spoil` makes other answers of those of the compiled forms.

    Returns, for each run of a portable form, whether it pools and how wide its maps were, and the compiled forms that are kept.
    """
    with tempfile.TemporaryDirectory() as folder:
        free = load_graph(save_free(graph, Path(folder) / "m.onnx"), {"input": (1, 3, SIDE, SIDE)})
    plan = make_plan(free, Cluster.even(2), PlanOptions(split="rows"))
    artifacts = export(compile_plan(plan, all_descriptions(free), instalments=False).optimized)
    sides, compiled, plain = [], [], loader_of(artifacts)

    def portable(model):
        call = plain.portable(model)

        def run(arrays):
            sides.append((b"MaxPool" in model.skeleton, max(array.shape[3] for array in arrays)))
            return call(arrays)

        return run

    def compile_it(compiler, boundary, model):
        call = plain.compiled(compiler, boundary, model)

        def run(arrays):
            return spoil(call(arrays), arrays)

        compiled.append(run)
        return run

    kept = []
    for device in artifacts.devices:
        loader = replace(plain, portable=portable, compiled=compile_it, reference=portable, shared=SharedSegments())
        kept += load_compiled(device.schedule, device.segments, loader).segments
    return sides, [run for run in compiled if run in kept]


@needs_blocks
def test_segments_of_any_size_are_compared_at_small_sizes():
    sides, kept = deployed(network())
    assert kept
    assert max(side for _, side in sides) <= 2 * SMALL


@needs_blocks
def test_what_answers_wrongly_stays_portable():
    _, kept = deployed(network(), lambda answers, _: [answer + np.float32(1) for answer in answers])
    assert not kept


@needs_blocks
def test_what_is_right_for_the_sizes_of_the_deployment_only_stays_portable():
    """It would serve other sizes, too."""
    full = {SIDE, SIDE - 2}
    _, kept = deployed(network(), lambda answers, inputs: answers if inputs[0].shape[3] in full else [answers[0] * 2, *answers[1:]])
    assert not kept


@needs_blocks
def test_maps_are_not_made_smaller_than_a_window():
    """onnxruntime would end the process: of a pooling that has no rows it computes how many there are at a time."""
    window = SMALL + 1
    sides, kept = deployed(network(window))
    assert kept
    assert min(side for pools, side in sides if pools) >= window
    assert max(side for _, side in sides) <= 4 * SMALL, "nor are they compared as deployed"


def test_maps_are_not_made_even_where_a_crop_leaves_rows_over():
    """Of an odd number of rows a stride of two takes other ones than of an even one."""
    shapes = {"rows": (2, 64, 129, 278), "halo": (2, 64, 1, 278)}
    made = smaller(shapes, dict.fromkeys(shapes, frozenset((0, 2, 3))), 2 * SMALL, 2)
    assert made == {"rows": (2, 64, 2 * SMALL + 1, 2 * SMALL), "halo": (2, 64, 1, 2 * SMALL)}


@needs_blocks
def test_a_segment_that_may_be_another_one_for_each_size_is_compared_as_it_is():
    sides, kept = deployed(strange())
    assert kept
    assert max(side for _, side in sides) == SIDE


def test_no_shapes_of_a_pooling_without_rows():
    data = write_graph(network(5 * SMALL), weights="inline").data
    assert shapes_at(data, {"input": (1, 3, 5 * SMALL, SIDE)})["pooled"] == (1, BLOCK, 1, SIDE - 5 * SMALL + 1)
    for rows in (5 * SMALL - 1, 5 * SMALL - 2, 1):
        with pytest.raises(ModelError, match="makes nothing"):
            shapes_at(data, {"input": (1, 3, rows, SIDE)})


def test_no_shapes_of_a_cut_through_rows_below_zero():
    """A window larger than its map leaves fewer rows than none; onnx ends the process where these are cut."""
    weights = {"kernel": np.ones((1, 1, 5, 1), np.float32), "start": np.array([0]), "stop": np.array([1]), "axis": np.array([2])}
    made = {name: make_weight(name, array) for name, array in weights.items()}
    sides = {"x": (1, 1, 9, 9), "c": (1, 1, 5, 9), "y": (1, 1, 1, 9)}
    types = {name: TensorType(DType.FLOAT, shape) for name, shape in sides.items()} | {name: weight.type for name, weight in made.items()}
    nodes = (Node("c", "Conv", ("x", "kernel"), ("c",)), Node("y", "Slice", ("c", "start", "stop", "axis"), ("y",)))
    data = write_graph(Graph("g", nodes, ("x",), ("y",), made, types, {"": 17}), weights="inline").data
    assert shapes_at(data, {"x": (1, 1, 7, 9)})["y"] == (1, 1, 1, 9)
    for rows in (4, 3, 1):
        with pytest.raises(ModelError, match="makes nothing"):
            shapes_at(data, {"x": (1, 1, rows, 9)})


SIZES = st.lists(st.tuples(st.integers(1, 4), st.just(BLOCK), st.integers(1, 700), st.integers(1, 700)), min_size=1, max_size=4)


@given(SIZES, st.frozensets(st.integers(0, 3)))
def test_small_sizes(sizes, axes):
    shapes = {str(number): shape for number, shape in enumerate(sizes)}
    made = smaller(shapes, dict.fromkeys(shapes, axes))
    for name, shape in shapes.items():
        for axis, (before, after) in enumerate(zip(shape, made[name], strict=True)):
            assert 1 <= after <= before
            assert after == before or axis in axes - {1}
            assert (after == 1) == (before == 1)
            assert all(made[other][axis] == after for other in shapes if shapes[other][axis] == before)


@pytest.mark.parametrize("rows", [61, 62, 245, 489])
def test_sizes_that_a_stride_relates_shrink_together(rows):
    shapes = {"before": (2, 64, rows, 139), "after": (2, 64, -(-rows // 2), 70), "halo": (2, 64, 1, 139)}
    made = smaller(shapes, dict.fromkeys(shapes, frozenset((0, 2, 3))))
    assert made["halo"][2] == 1
    assert made["before"][2] <= 2 * SMALL
    assert made["before"][3] <= 2 * SMALL
    assert [-(-size // 2) for size in made["before"][2:]] == list(made["after"][2:])
