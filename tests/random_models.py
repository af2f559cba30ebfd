"""Random small networks and clusters for property tests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.graph import Array, Graph
from bbgrap.planners.options import SPLITS, PlanOptions
from bbgrap.planners.plan import Plan, Tile, whole_output
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap, covers
from bbgrap.tdl import Part, describe, reducible
from bbgrap.tdl.language import Index
from bbgrap.zoo.builder import Builder

BLOCK_LAYERS = ("conv", "conv", "conv", "relu", "residual", "residual", "concat", "pool", "average", "double")
LAYERS = ("conv", "conv", "conv", "relu", "norm", "pool", "average", "residual", "concat", "double", "sigmoid")


@st.composite
def networks(draw: st.DrawFn, block: int = 1) -> Graph:
    """Draw a network of up to seven layers with branches, over maps of up to 13 x 11; sometimes with a classifier at its end.

    With a `block` above 1, maps have multiples of it as channels, and most layers are such as work on blocks of channels.
    """
    height, width = draw(st.integers(4, 13)), draw(st.integers(4, 11))
    builder = Builder(
        f"random{draw(st.integers(0, 9))}", (draw(st.integers(1, 3)), draw(st.integers(1, 6 if block == 1 else 2)) * block, height, width)
    )
    values = ["input"]
    for number in range(draw(st.integers(1 if block == 1 else 4, 7))):
        x = draw(st.sampled_from(values[-3:]))
        made = _layer(draw, builder, draw(st.sampled_from(LAYERS if block == 1 else BLOCK_LAYERS)), x, f"l{number}", values, block)
        if made is not None:
            values.append(made)
    if len(values) == 1:
        values.append(builder.act("Relu", "input", "only"))
    outputs = [values[-1]]
    if draw(st.booleans()):
        pooled = builder.mean(values[-1], "mean")
        outputs = [builder.dense(builder.flatten(pooled, "flat"), "head", draw(st.integers(1, 7)))]
    if draw(st.integers(0, 3)) == 0 and len(values) > 2:
        outputs.append(draw(st.sampled_from(values[1:-1])))  # an output that is also consumed inside
    return _without_unused(builder.graph(*dict.fromkeys(outputs)))


def _layer(draw: st.DrawFn, builder: Builder, kind: str, x: str, name: str, values: list[str], block: int) -> str | None:
    _, channels, height, width = builder.shape(x)
    match kind:
        case "conv":
            return _conv(draw, builder, x, name, block)
        case "relu":
            return builder.act("Relu", x, name)
        case "sigmoid":
            return builder.act("Sigmoid", x, name)
        case "norm":
            return builder.norm(x, name)
        case "pool" if min(height, width) >= 2:
            return builder.max_pool(x, name, 2, draw(st.integers(1, 2)), draw(st.integers(0, 1)))
        case "average" if min(height, width) >= 3:
            shape = (builder.shape(x)[0], channels, height, width)
            attributes = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": draw(st.integers(0, 1))}
            return builder.node("AveragePool", name, [x], shape, attributes)
        case "residual":
            same = [v for v in values if builder.shape(v) == builder.shape(x)]
            return builder.binary("Add", x, draw(st.sampled_from(same)), name)
        case "concat":
            near = [v for v in values if builder.shape(v)[0] == builder.shape(x)[0] and builder.shape(v)[2:] == builder.shape(x)[2:]]
            return builder.concat([x, draw(st.sampled_from(near))], name)
        case "double" if height * width <= 100:
            return builder.double(x, name)
        case _:
            return None


def _conv(draw: st.DrawFn, builder: Builder, x: str, name: str, block: int) -> str | None:
    _, channels, height, width = builder.shape(x)
    kernel, stride, pad = draw(st.sampled_from((1, 3, 3, 5))), draw(st.integers(1, 3)), draw(st.integers(0, 2))
    if pad >= kernel or min(height, width) + 2 * pad < kernel:
        return None
    if block == 1:
        groups = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
        out = groups * draw(st.integers(1, 3))
    else:
        groups = draw(st.sampled_from((1, 1, channels)))
        out = channels if groups == channels else block * draw(st.integers(1, 2))
    return builder.conv(x, name, out, kernel, stride=stride, pad=pad, groups=groups, bias=draw(st.booleans()))


def _without_unused(graph: Graph) -> Graph:
    needed = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            nodes.append(node)
    kept = {name: weight for name, weight in graph.weights.items() if name in needed}
    types = {name: kind for name, kind in graph.types.items() if name in needed}
    return Graph(graph.name, tuple(reversed(nodes)), graph.inputs, graph.outputs, kept, types, graph.opsets, graph.ir_version)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Draw one to five nodes, even or with speeds from 1 to 100."""
    count = draw(st.integers(1, 5))
    if draw(st.booleans()):
        return Cluster.even(count)
    return Cluster(tuple(NodeProfile(f"node{n}", share=draw(st.integers(1, 100))) for n in range(count)))


def plan_options() -> st.SearchStrategy[PlanOptions]:
    """Draw any split of the paper's planner."""
    return st.builds(PlanOptions, split=st.sampled_from(SPLITS))


def random_feeds(graph: Graph, seed: int = 0) -> list[Array]:
    """Return standard normal inputs."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(graph.types[name].known_shape).astype(np.float32) for name in graph.inputs]


@st.composite
def plans(draw: st.DrawFn, graph: Graph, devices: int = 4) -> Plan:
    """Draw any legal plan: per node a random subset of devices, random axes, random uneven cuts, overlaps, or the whole on one device."""
    tiles: dict[str, tuple[Tile, ...]] = {}
    for node in graph.nodes:
        description = describe(graph, node)
        inner = [index for index in reducible(graph, node, description) if index.extent > 1]
        if inner and draw(st.booleans()):
            tiles[node.name] = _partial_tiles(draw, whole_output(graph, node), draw(st.sampled_from(inner)), devices)
            continue
        regions = [whole_output(graph, node)]
        if description is not None:
            for axis in draw(st.lists(st.sampled_from(description.splittable_axes), max_size=2, unique=True)):
                regions = [piece for region in regions for piece in _random_cut(draw, region, axis)][:devices] or regions
        regions = _covering(regions, whole_output(graph, node))
        order = draw(st.permutations(range(devices)))
        tiles[node.name] = tuple(sorted((Tile(d, r) for d, r in zip(order, regions, strict=False)), key=lambda t: t.device))
    return Plan("random", graph, Cluster.even(devices), tiles)


def _partial_tiles(draw: st.DrawFn, whole: ShapeMap, index: Index, devices: int) -> tuple[Tile, ...]:
    cuts = sorted(draw(st.sets(st.integers(1, index.extent - 1), min_size=1, max_size=devices - 1)))
    order = draw(st.permutations(range(devices)))
    parts = [Part(index.name, Interval(start, stop)) for start, stop in pairwise([0, *cuts, index.extent])]
    return tuple(sorted((Tile(d, whole, part) for d, part in zip(order, parts, strict=False)), key=lambda t: t.device))


def _random_cut(draw: st.DrawFn, region: ShapeMap, axis: int) -> list[ShapeMap]:
    (extent,) = region.axes[axis].ranges
    if len(extent) < 2:
        return [region]
    at = draw(st.integers(extent.start + 1, extent.stop - 1))
    overlap = draw(st.integers(0, 2))
    first = Interval(extent.start, min(extent.stop, at + overlap))
    return [region.replace(axis, IntervalSet.of(first)), region.replace(axis, IntervalSet.of((at, extent.stop)))]


def _covering(regions: list[ShapeMap], whole: ShapeMap) -> list[ShapeMap]:
    """Return the regions if they cover the whole (a cut may have been dropped for want of devices), else the whole alone."""
    return regions if covers(regions, whole) else [whole]
