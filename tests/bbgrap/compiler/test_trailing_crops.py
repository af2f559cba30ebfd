"""Crops that nothing sees leave the segment; those that matter stay."""

import pytest

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import segment_graphs
from bbgrap.compiler.trailing_crops import TrailingCrop, without_idle_crops
from bbgrap.graph import Graph, Node
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo.builder import Builder
from tests.partition import assert_partition_agrees, compiled

WHOLE, KEPT = (1, 4, 8, 8), (1, 4, 7, 8)
CROP = Node("crop c", "Slice", ("x", "starts", "ends", "axes"), ("c",))


def left(*readers, outputs=("y",), kept=KEPT):
    return without_idle_crops([CROP, *readers], {"c": TrailingCrop("x", WHOLE, kept)}, {}, set(outputs))


def window(name="pool", **attributes):
    return Node(name, "MaxPool", ("c",), ("y" if name == "pool" else name,), {"kernel_shape": (1, 1), "strides": (2, 2), **attributes})


def test_a_stride_that_skips_the_last_row_reads_the_whole():
    (node,) = left(window())
    assert node.inputs == ("x",)


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": (1, 1)},  # the row is read
        {"pads": (0, 0, 1, 0), "kernel_shape": (2, 1)},  # zeros are read in its place
        {"kernel_shape": (2, 1)},  # one more output row
        {"ceil_mode": 1},
        {"auto_pad": "SAME_UPPER"},
        {"kernel_shape": (1,)},
    ],
)
def test_crops_that_matter_stay(attributes):
    assert left(window(**attributes))[0].op == "Slice"


def test_every_reader_counts_and_so_do_outputs():
    assert left(window(), Node("relu", "Relu", ("c",), ("z",)))[0].op == "Slice"
    assert left(window(), outputs=("y", "c"))[0].op == "Slice"
    assert left(window(), kept=(1, 3, 7, 8))[0].op == "Slice"
    assert len(left(window(), window("other"))) == 2


def strided() -> Graph:
    builder = Builder("strided", (1, 3, 16, 12))
    first = builder.conv("input", "first", 4, 3, pad=1)
    down = builder.conv(first, "down", 4, 1, stride=2)
    return builder.graph(builder.binary("Add", down, builder.conv(first, "other", 4, 3, stride=2, pad=1), "sum"))


def test_a_strided_shortcut_needs_no_crop():
    program = compiled(strided(), Cluster.even(2), PlanOptions(split="rows")).optimized
    for segments in segment_graphs(program):
        for segment in segments:
            assert not [node.name for node in segment.graph.nodes if node.op == "Slice"]
            assert not [name for name in segment.graph.weights if name.startswith("crop ")]
    assert_partition_agrees(strided(), Cluster.even(2), PlanOptions(split="rows"))
