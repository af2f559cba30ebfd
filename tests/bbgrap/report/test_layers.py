"""Which part of every layer each device computes and fetches."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap import zoo
from bbgrap.cluster import Cluster
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.errors import RemoteProtocolError
from bbgrap.planners.options import PlanOptions
from bbgrap.program.cases import needs_of
from bbgrap.report.layers import Fetch, LayerReport, LayerTile, layers_of, read_layers


@pytest.fixture(scope="module")
def graph():
    return load_graph(zoo.materialize("tiny"), {"input": (1, 3, 32, 32)})


def layers(graph, devices, **options):
    compiled = plan_graph(graph, Cluster.even(devices), PlanOptions(**options)).compiled
    return layers_of(compiled.plan, needs_of(compiled.plan, compiled.initial))


def test_rows_and_their_halos(graph):
    by_name = {layer.name: layer for layer in layers(graph, 2)}
    first = by_name["conv1"]
    assert (first.operator, first.axis, first.extent) == ("Conv", "rows", 16)
    assert [tile.computes for tile in first.tiles] == [((0, 8),), ((8, 16),)]
    inner = by_name["layer1.0.conv2"]
    assert inner.axis == "rows"
    half = inner.extent // 2
    upper, lower = (tile.fetches for tile in inner.tiles)
    assert [(fetch.axis, fetch.ranges) for fetch in (*upper, *lower)] == [("rows", ((half, half + 1),)), ("rows", ((half - 1, half),))]
    assert upper[0].elements == lower[0].elements > 0


@pytest.mark.parametrize(("options", "axis"), [({"split": "channels"}, "channels"), ({"split": "columns"}, "columns")])
def test_other_axes(graph, options, axis):
    first = layers(graph, 2, **options)[0]
    assert first.axis == axis
    assert [tile.computes for tile in first.tiles] == [((0, first.extent // 2),), ((first.extent // 2, first.extent),)]


def test_partial_sums_are_cut_along_their_index(graph):
    summed = [layer for layer in layers(graph, 2, split="inputs") if layer.axis.startswith("sum over ")]
    assert summed
    for layer in summed:
        ((first,), (second,)) = (tile.computes for tile in layer.tiles)
        assert (first[0], first[1], second[1]) == (0, second[0], layer.extent)


def test_a_layer_on_one_device_is_whole(graph):
    (tile,) = layers(graph, 1)[0].tiles
    assert tile.computes == ((0, 1),)
    assert layers(graph, 1)[0].axis == "whole"


def test_every_layer_is_there_and_survives_json(graph):
    found = layers(graph, 3)
    assert [layer.name for layer in found] == [node.name for node in graph.nodes]
    assert read_layers(json.loads(json.dumps([asdict(layer) for layer in found]))) == found


PLAIN = st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["name", "operator", "axis", "extent", "tiles", "device", "computes", "fetches", "value", "ranges", "elements"]), inner
))  # fmt: skip


@given(PLAIN)
def test_anything_else_is_refused(plain):
    try:
        read_layers(plain)
    except RemoteProtocolError:
        return


def test_a_damaged_field_is_refused():
    layer = asdict(LayerReport("n", "Conv", "rows", 4, (LayerTile(0, ((0, 4),), (Fetch("x", "rows", 4, ((0, 1),), 5),)),)))
    for damage in ({"extent": None}, {"tiles": 3}, {"tiles": [{"device": "x", "computes": [], "fetches": []}]}):
        with pytest.raises(RemoteProtocolError, match="report: its layers are not as expected"):
            read_layers([layer | damage])
