"""Attention with a cache, cut anywhere: answers and caches of all pieces are those of the whole, packed or not, whatever the lengths."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.graph import DType, Graph, Node, TensorType
from bbgrap.graph.lower import lower
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.plan import Plan, Tile, check_plan
from bbgrap.shapemap import IntervalSet, ShapeMap
from tests.partition import all_values, assert_close, plain_outputs, run_checked
from tests.program_laws import compile_checked

SIZE, DEVICES = 16, 3


def graph_of(batch, groups, shared, new, past, room, *, packed):
    """Return an attention of an input of rows, which are packed or sliced of it, and a node behind it."""
    heads, total = groups * shared, past + new
    widths = (heads * SIZE, groups * SIZE, groups * SIZE)
    angles = np.random.default_rng(0).uniform(-1, 1, (2, total + 1, SIZE // 2)).astype(np.float32)
    constants = {
        "last": np.full((batch, 1), total - 1, np.int32),
        "total": np.array(total, np.int32),
        "cosines": angles[0].copy(),
        "sines": angles[1].copy(),
        "widths": np.array(widths),
    }
    weights = {name: make_weight(name, array) for name, array in constants.items()}
    types = {name: weight.type for name, weight in weights.items()}
    types["rows"] = TensorType(DType.FLOAT, (batch, new, sum(widths)))
    types |= {name: TensorType(DType.FLOAT, (batch, new, width)) for name, width in zip("qkv", widths, strict=True)}
    types |= {name: TensorType(DType.FLOAT, (batch, groups, room, SIZE)) for name in ("past.k", "past.v")}
    types |= {name: TensorType(DType.FLOAT, (batch, groups, max(room, total), SIZE)) for name in ("present.k", "present.v")}
    types |= {name: TensorType(DType.FLOAT, (batch, new, widths[0])) for name in ("mixed", "y")}
    rows = ("rows", "", "") if packed else ("q", "k", "v")
    operands = (*rows, "past.k", "past.v", "last", "total", "cosines", "sines")
    attributes = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": 1}
    nodes = [] if packed else [Node("split", "Split", ("rows", "widths"), ("q", "k", "v"), {"axis": 2})]
    nodes.append(Node("attention", "GroupQueryAttention", operands, ("mixed", "present.k", "present.v"), attributes, "com.microsoft"))
    nodes.append(Node("after", "Abs", ("mixed",), ("y",)))
    inputs, outputs = ("rows", "past.k", "past.v"), ("y", "present.k", "present.v")
    return Graph("g", tuple(nodes), inputs, outputs, weights, types, {"": 17, "com.microsoft": 1})


@settings(max_examples=25)
@given(data=st.data())
def test_pieces_are_those_of_the_whole(data):
    batch, groups, shared, new, past = data.draw(st.tuples(*[st.integers(1, 3)] * 4, st.integers(1, 6)), label="sizes")
    assume(batch == 1 or new == 1)  # the kernel takes no others behind a past
    room = past if data.draw(st.booleans(), label="grows") else past + new + 2
    given_ = graph_of(batch, groups, shared, new, past, room, packed=data.draw(st.booleans(), label="packed"))
    graph = lower(given_)
    descriptions = all_descriptions(graph)
    tiles = {node.name: (Tile(0, ShapeMap.full(graph.types[node.outputs[0]].known_shape)),) for node in graph.nodes}
    whole = ShapeMap.full(graph.types["mixed"].known_shape)
    axis = data.draw(st.sampled_from([a for a in (0, 2) if whole.shape[a] > 1]), label="axis")
    extent = whole.shape[axis]
    cuts = sorted(data.draw(st.sets(st.integers(1, extent - 1), min_size=1, max_size=DEVICES - 1), label="cuts"))
    pieces = zip([0, *cuts], [*cuts, extent], strict=True)
    tiles["attention"] = tuple(Tile(d, whole.replace(axis, IntervalSet.of(piece))) for d, piece in enumerate(pieces))
    plan = Plan("pieces", graph, Cluster.even(DEVICES), tiles)
    assert not check_plan(plan, descriptions)
    random = np.random.default_rng(1)
    feeds = [random.standard_normal(graph.types[name].known_shape).astype(np.float32) for name in graph.inputs]
    values = all_values(graph, feeds)
    outputs = run_checked(compile_checked(plan, descriptions).optimized, feeds, values)
    for name, got, want in zip(graph.outputs, outputs, plain_outputs(given_, feeds), strict=True):
        assert_close(got, want, name)
