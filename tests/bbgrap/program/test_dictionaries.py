"""Inputs of few values: what comes back has the bits of what was sent, whatever it was; pictures take a byte a number."""

from __future__ import annotations

import math
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bbgrap.cluster import Cluster
from bbgrap.cluster.types import Link, LinkProfile, Network
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.compiler.predict import Predictor
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.errors import RemoteProtocolError
from bbgrap.graph import Graph
from bbgrap.graph.types import Array
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import make_plan
from bbgrap.program import dictionaries
from bbgrap.program.dictionaries import (
    LEAST_BYTES,
    LEAST_VALUES,
    MOST,
    decode_with_dictionary,
    dictionary_devices_of,
    encode_with_dictionary,
    have_few_values,
)
from bbgrap.program.encodings import carried
from bbgrap.report.plan_report import explain, report_of
from bbgrap.zoo import build
from tests.examples import examples
from tests.program_laws import compile_checked
from tests.random_models import clusters, networks, plan_options, random_feeds

SIDE = 160
PICTURES = [(1, 3, SIDE, SIDE), (2, 3, SIDE, SIDE), (1, SIDE, SIDE, 3), (1, 1, SIDE, SIDE), (SIDE, SIDE), (2, 5, SIDE, SIDE), (30_000,)]


def picture(seed: int, shape: tuple[int, ...], levels: int = 256, mean: float = 0.0, deviation: float = 1.0) -> Array:
    """Return bytes as networks get them: divided, less a mean, over a deviation; the colours differ."""
    drawn = np.random.default_rng(seed).integers(0, levels, shape)
    colours = np.ones(shape[1] if len(shape) > 2 else 1, np.float32)
    colours += np.arange(colours.size, dtype=np.float32) / 7
    by_colour = colours.reshape(-1, *[1] * (len(shape) - 2)) if len(shape) > 2 else colours
    return ((drawn / np.float32(255) - np.float32(mean)) / np.float32(deviation) * by_colour).astype(np.float32)


def same_bits(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


@given(
    st.integers(0, 2**32),
    st.sampled_from([(1, 3, SIDE, SIDE), (3, 1, SIDE, SIDE), (1, SIDE, SIDE, 3), (2, 4, 90, 200)]),
    st.integers(1, 256),
    st.floats(-1, 1, width=32),
    st.floats(2**-6, 4, width=32),
)
def test_pictures_take_a_byte_a_number(seed: int, shape: tuple[int, ...], levels: int, mean: float, deviation: float) -> None:
    drawn = np.random.default_rng(seed).integers(0, levels, shape)
    array = ((drawn / np.float32(255) - np.float32(mean)) / np.float32(deviation)).astype(np.float32)
    encoded = encode_with_dictionary(array)
    assert encoded is not None
    assert encoded.nbytes <= array.size + 8 + 4 * 4 * MOST
    assert same_bits(decode_with_dictionary(encoded.tobytes(), shape), array)
    assert have_few_values([array]) == (levels >= LEAST_VALUES)
    assert not have_few_values([array, np.random.default_rng(seed).standard_normal(shape).astype(np.float32)])


@pytest.mark.parametrize("shape", [(1, 3, SIDE, SIDE), (2, 3, SIDE, SIDE), (1, 1, SIDE, SIDE), (SIDE, SIDE), (30_000,)])
def test_parts_are_looked_at_as_the_whole_is(monkeypatch, shape):
    array = picture(1, shape, 200)
    whole = encode_with_dictionary(array)
    assert whole is not None
    monkeypatch.setattr(dictionaries, "_BLOCK", 1000)
    assert same_bits(encode_with_dictionary(array), whole)
    array[(-1,) * len(shape)] += np.float32(1e-3)
    assert encode_with_dictionary(array) is None


def test_large_inputs_take_little_beside_them():
    """200 MB took another 850 to be looked at, and two seconds."""
    array = picture(2, (1 << 21, 4))
    tracemalloc.start()
    try:
        assert have_few_values([array])
        assert tracemalloc.get_traced_memory()[1] < array.nbytes / 2
    finally:
        tracemalloc.stop()


@given(st.data(), st.sampled_from(PICTURES))
def test_whatever_is_sent_comes_back_bit_by_bit(data: st.DataObject, shape: tuple[int, ...]) -> None:
    array = picture(data.draw(st.integers(0, 2**32)), shape, data.draw(st.integers(1, 300)))
    odd = data.draw(st.lists(st.floats(width=32) | st.sampled_from([-0.0, 1e-45, 3.4e38, float("nan")]), max_size=20))
    places = data.draw(hnp.arrays(np.int64, len(odd), elements=st.integers(0, array.size - 1)))
    array.reshape(-1)[places] = odd
    if data.draw(st.booleans()):
        array = np.moveaxis(array, 0, -1)
    assert same_bits(carried(array, "dictionary"), array)


def test_a_cut_of_a_picture_is_one_too() -> None:
    whole = picture(1, (1, 3, 320, 320))
    part = whole[:, :, 100:260, 7:]
    encoded = encode_with_dictionary(part)
    assert encoded is not None
    assert same_bits(decode_with_dictionary(encoded, part.shape), part)


def test_values_that_the_sample_does_not_have_are_found() -> None:
    values = np.arange(256) / np.float32(255)
    array = np.resize(np.delete(values, [100, 101, 255]), (1, 1, 400, 400)).astype(np.float32)
    array[0, 0, 200, 201:205] = values[[100, 101, 255, 0]]
    array[array == 0] = values[1]
    array[0, 0, 399, 399] = 0
    encoded = encode_with_dictionary(array)
    assert encoded is not None
    assert same_bits(decode_with_dictionary(encoded, array.shape), array)


@pytest.mark.parametrize("array", [np.random.default_rng(0).standard_normal((1, 3, SIDE, SIDE)).astype(np.float32), picture(0, (4, 4))])
def test_other_floats_and_small_ones_are_sent_as_they_are(array: Array) -> None:
    assert encode_with_dictionary(array) is None
    assert not have_few_values([array])
    assert same_bits(carried(array, "dictionary"), array)


def test_what_people_try_things_with_says_nothing() -> None:
    for array in (
        np.zeros((1, 3, SIDE, SIDE), np.float32),
        np.ones((LEAST_BYTES,), np.float32),
        picture(0, (1, 3, SIDE, SIDE)).astype(float),
    ):
        assert not have_few_values([array])


@given(st.data(), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
def test_bytes_from_elsewhere_are_floats_or_an_error(data: st.DataObject, shape: tuple[int, ...]) -> None:
    dictionaries = data.draw(st.integers(0, 6))
    length = dictionaries * 4 * MOST + (1 if dictionaries else 4) * math.prod(shape) + data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    content = struct.pack("<Q", dictionaries)[: data.draw(st.sampled_from([8, 8, 8, 3]))] + data.draw(st.binary(max_size=9))
    content = content.ljust(8 + max(0, length), b"\xff")[: 8 + max(0, length)]
    try:
        found = decode_with_dictionary(content, shape)
    except RemoteProtocolError:
        return
    assert found.shape == shape
    assert found.dtype == np.float32


def test_numbers_of_dictionaries_that_do_not_fit_are_refused() -> None:
    array = picture(0, (1, 3, SIDE, SIDE))
    encoded = encode_with_dictionary(array)
    assert encoded is not None
    for place, value in ((0, 2), (0, 200), (4, 2), (7, 255)):
        broken = encoded.copy()
        broken[place] = value
        with pytest.raises(RemoteProtocolError, match="dictionaries"):
            decode_with_dictionary(broken, array.shape)
    with pytest.raises(RemoteProtocolError, match="bytes"):
        decode_with_dictionary(encoded[:-1], array.shape)


def slow_way(rate: float) -> Cluster:
    return Cluster(Cluster.even(3).nodes, Network(Link(rate, 1e-4), coordinator_on="node0"))


def test_they_are_for_slow_ways_to_other_machines() -> None:
    assert dictionary_devices_of(slow_way(12.5e6), "few") == {1, 2}
    assert dictionary_devices_of(slow_way(12.5e6), "any") == dictionary_devices_of(slow_way(1.25e8), "few") == frozenset()
    one_fast = slow_way(12.5e6)
    nodes = (*one_fast.nodes[:2], replace(one_fast.nodes[2], links=(LinkProfile("coordinator", 1e9, 1e-4),)))
    assert dictionary_devices_of(replace(one_fast, nodes=nodes), "few") == {1}


def test_a_plan_with_dictionaries_sends_less_and_answers_the_same() -> None:
    graph, cluster = build("mobilenet_v2"), slow_way(12.5e6)
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, cluster, PlanOptions(), descriptions)
    exact, less = (compile_checked(plan, descriptions, "exact", ways).optimized for ways in (frozenset(), frozenset({1, 2})))
    assert Predictor(cluster).timeline(less).total_s < Predictor(cluster).timeline(exact).total_s
    feeds = [picture(3, graph.types[graph.inputs[0]].known_shape)]
    answers = []
    for program in (exact, less):
        artifacts = export(program)
        answers.append(simulate(artifacts, feeds, local_kernels(artifacts)))
    assert same_bits(answers[0][0], answers[1][0])


def test_a_report_says_who_gets_them() -> None:
    graph, cluster = build("tiny"), slow_way(12.5e6)
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, cluster, PlanOptions(), descriptions)
    told = {}
    for wire in ("exact", "float16"):
        compiled = compile_plan(plan, descriptions, wire, frozenset({1, 2}))
        told[wire] = report_of(compiled, 0.0)["dictionaries"], "inputs go to node1, node2 with dictionaries" in "\n".join(explain(compiled))
    assert told == {"exact": (["node1", "node2"], True), "float16": ([], False)}


@settings(max_examples=examples(30))
@given(networks(), clusters(), plan_options())
def test_any_plan_is_compiled_with_dictionaries_and_answers_the_same(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    descriptions, ways = all_descriptions(graph), frozenset(range(len(cluster.nodes)))
    plan, feeds = make_plan(graph, cluster, options, descriptions), random_feeds(graph)
    answers = []
    for devices in (frozenset[int](), ways):
        artifacts = export(compile_checked(plan, descriptions, "exact", devices).optimized)
        answers.append(simulate(artifacts, feeds, local_kernels(artifacts)))
    for one, other in zip(*answers, strict=True):
        assert same_bits(one, other)
