"""Tensor parallelism: heads and features divide, only sums travel, and answers stay."""

import numpy as np
import pytest
from onnx import helper

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.engine.load import load_graph
from bbgrap.graph.state import with_state
from bbgrap.graph.top_k import blocks_for, with_top
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import make_plan
from bbgrap.program.statistics import statistics_of
from bbgrap.zoo.decoder import DecoderSizes, decoder
from tests.onnx_models import model_of
from tests.partition import assert_partition_agrees

OPTIONS = PlanOptions("tensor-parallel")
TINY = DecoderSizes(2, 64, 4, 4, 300, 64)


def stateful(sizes, **lengths):
    graph = decoder("decoder", sizes, **lengths)
    return with_state(graph, {name: name.replace("past_key_values", "present") for name in graph.inputs if name.startswith("past")})


def programmed(graph, nodes):
    descriptions = all_descriptions(graph)
    return compile_plan(make_plan(graph, Cluster.even(nodes), OPTIONS, descriptions), descriptions, instalments=False).optimized


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_word_takes_two_sums_a_layer_and_one_for_the_table(nodes):
    counts = statistics_of(programmed(stateful(TINY), nodes))
    sums = (2 * TINY.depth + 1) * nodes * (nodes - 1)
    assert counts.transfers == sums
    assert counts.bytes == sums * TINY.width * 4


def test_a_cache_and_the_weights_are_divided():
    graph = stateful(DecoderSizes(2, 64, 4, 4, 100_000, 64))
    program = programmed(graph, 2)
    whole = sum(weight.type.nbytes for weight in graph.weights.values())
    assert all(device.weight_bytes < 0.51 * whole for device in export(program).devices)
    held = sum(device.buffers[feed].region.size for device in program.devices for feed in device.feeds if device.device != program.host)
    assert held == sum(graph.types[name].nbytes // 4 for name in graph.state)


@pytest.mark.parametrize("sizes", [TINY, DecoderSizes(1, 48, 12, 4, 300, 64)], ids=["heads", "grouped"])
@pytest.mark.parametrize("shares", [(1, 1), (3, 1), (1, 1, 1)], ids=str)
def test_answers_are_those_of_the_whole_model(sizes, shares):
    graph = decoder("decoder", sizes, batch=2, sequence=3, past=5)
    cluster = Cluster(tuple(NodeProfile(f"node{number}", share=share) for number, share in enumerate(shares)))
    assert_partition_agrees(graph, cluster, OPTIONS, 1e-4)


@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 5])
def test_of_the_largest_logits_only_candidates_travel(nodes, count):
    blocks = blocks_for(nodes)
    counts = statistics_of(programmed(with_top(stateful(TINY), {"logits": count}, blocks), nodes))
    sums = (2 * TINY.depth + 1) * nodes * (nodes - 1)
    candidates = blocks * count // nodes
    assert counts.transfers == sums + nodes - 1
    assert counts.bytes == sums * TINY.width * 4 + (nodes - 1) * candidates * (4 + 8)
    assert counts.gather_bytes == count * (4 + 8)


@pytest.mark.parametrize("shares", [(1, 1), (5, 3), (1, 0.01), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("count", [1, 7, 500])
def test_the_largest_logits_are_those_of_the_whole_model(count, shares):
    cluster = Cluster(tuple(NodeProfile(f"node{number}", share=share) for number, share in enumerate(shares)))
    graph = with_top(decoder("decoder", TINY, batch=2, sequence=3, past=5), {"logits": count}, blocks_for(len(shares)))
    assert_partition_agrees(graph, cluster, OPTIONS, 1e-4)


def test_words_are_cut_at_borders_of_blocks_and_the_table_with_them():
    graph = with_top(stateful(TINY), {"logits": 1}, 12)
    plan = make_plan(graph, Cluster((NodeProfile("fast", share=5), NodeProfile("slow", share=3))), OPTIONS)
    assert [str(tile.region.axes[1]) for tile in plan.tiles["logits.flat"]] == ["0:200", "200:300"]  # 7.5 of 12 blocks, and 4.5
    assert [str(tile.part.interval) for tile in plan.tiles["words.gathered"]] == ["0:200", "200:300"]


def test_the_largest_of_what_is_whole_are_taken_where_it_is(attention):
    counts = statistics_of(programmed(with_top(attention, {"y": 2}, 12), 3))
    assert (counts.transfers, counts.bytes_by_operator.keys()) == (2, {"MatMul"})


def in_one(width=24, heads=3):
    """Attention whose queries, keys and values are made by one product, which is then split."""
    random = np.random.default_rng(0)
    sizes = {"qkv": (width, 3 * width), "out": (width, width)}
    weights = {name: random.standard_normal(size).astype(np.float32) / 5 for name, size in sizes.items()}
    weights |= {"thirds": [width] * 3, "heads": [0, 0, heads, width // heads], "flat": [0, 0, width]}
    node = helper.make_node
    nodes = [node("MatMul", ["x", "qkv"], ["all"]), node("Split", ["all", "thirds"], ["q", "k", "v"], axis=2)]
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [node("Reshape", [name, "heads"], [f"{name}.split"]), node("Transpose", [f"{name}.split"], [f"{name}.heads"], perm=order)]
    nodes += [
        node("MatMul", ["q.heads", "k.heads"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v.heads"], ["mixed"]),
        node("Transpose", ["mixed"], ["together"], perm=[0, 2, 1, 3]),
        node("Reshape", ["together", "flat"], ["joined"]),
        node("MatMul", ["joined", "out"], ["projected"]),
        node("Add", ["projected", "x"], ["y"]),
    ]
    return model_of(nodes, {"x": (1, 4, width)}, {"y": (1, 4, width)}, weights)


@pytest.fixture
def attention(tmp_path):
    (tmp_path / "m.onnx").write_bytes(in_one().SerializeToString())
    return load_graph(tmp_path / "m.onnx", {})


def test_a_product_of_queries_keys_and_values_is_cut_in_three_ranges(attention):
    graph = attention
    plan = make_plan(graph, Cluster.even(3), OPTIONS)
    product = next(node for node in graph.nodes if "qkv" in node.inputs)
    assert [str(tile.region.axes[2]) for tile in plan.tiles[product.name]] == ["0:8,24:32,48:56", "8:16,32:40,56:64", "16:24,40:48,64:72"]
    assert statistics_of(programmed(graph, 3)).transfers == 2  # one node adds up and answers
    assert_partition_agrees(graph, Cluster.even(3), OPTIONS, 1e-4)


def with_room(words=6, width=24, heads=6):
    """Attention over a cache with room, written by a word's place: of keys the other places are kept, values are turned round and back."""
    random = np.random.default_rng(3)
    weights = {f"{name}.w": random.standard_normal((width, width)).astype(np.float32) / 5 for name in ("q", "k", "v", "out")}
    weights |= {"heads": [0, 0, heads, width // heads], "flat": [0, 0, width], "one": np.float32(1)}
    node = helper.make_node
    nodes = [node("Sub", ["one", "place"], ["kept"]), node("Transpose", ["values"], ["turned"], perm=[1, 2, 0, 3])]
    for name in "qkv":
        nodes += [
            node("MatMul", ["x", f"{name}.w"], [name]),
            node("Reshape", [name, "heads"], [f"{name}.split"]),
            node("Transpose", [f"{name}.split"], [f"{name}.heads"], perm=[0, 2, 1, 3]),
        ]
    for name, cache, made in (("k", "keys", "keys_out"), ("v", "turned", "all values")):
        nodes += [
            node("Mul", [cache, "kept"], [f"{name}.others"]),
            node("Mul", [f"{name}.heads", "place"], [f"{name}.own"]),
            node("Add", [f"{name}.others", f"{name}.own"], [made]),
        ]
    nodes += [
        node("Transpose", ["all values"], ["values_out"], perm=[2, 0, 1, 3]),
        node("Transpose", ["keys_out"], ["columns"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q.heads", "columns"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "all values"], ["mixed"]),
        node("Transpose", ["mixed"], ["together"], perm=[0, 2, 1, 3]),
        node("Reshape", ["together", "flat"], ["joined"]),
        node("MatMul", ["joined", "out.w"], ["y"]),
    ]
    caches = {"keys": (1, heads, words, width // heads), "values": (words, 1, heads, width // heads)}
    made = {f"{name}_out": shape for name, shape in caches.items()}
    return model_of(nodes, {"x": (1, 1, width), "place": (1, 1, words, 1), **caches}, {"y": (1, 1, width), **made}, weights)


@pytest.mark.parametrize("shares", [(1, 1), (1, 1, 1), (2, 1)], ids=str)
def test_state_that_is_turned_or_scaled_before_it_is_read_is_cut_as_it_is_read(shares, tmp_path):
    """Else a node that has a part of what becomes state needs all of it for the next word."""
    (tmp_path / "m.onnx").write_bytes(with_room().SerializeToString())
    graph = load_graph(tmp_path / "m.onnx", {})
    cluster = Cluster(tuple(NodeProfile(f"node{number}", share=share) for number, share in enumerate(shares)))
    assert_partition_agrees(graph, cluster, OPTIONS, 1e-4)
    graph = with_state(graph, {"keys": "keys_out", "values": "values_out"})
    descriptions = all_descriptions(graph)
    program = compile_plan(make_plan(graph, cluster, OPTIONS, descriptions), descriptions, instalments=False).optimized
    assert statistics_of(program).bytes == (len(shares) - 1) * 24 * 4, "sums alone travel, to who answers"


@pytest.mark.parametrize("nodes", [2, 3])
def test_what_scales_features_of_whole_tokens_travels_and_divides_no_tokens(nodes, tmp_path):
    """Diffusion transformers make scales of the time. Tokens were cut as these are, so that the next product was summed up."""
    tokens, width = 50, 24
    random, node = np.random.default_rng(0), helper.make_node
    sizes = {"time.w": (width, width), "first": (width, 4 * width), "second": (4 * width, width)}
    weights = {name: random.standard_normal(size).astype(np.float32) / 5 for name, size in sizes.items()}
    made = [
        node("MatMul", ["t", "time.w"], ["scale"]),
        node("Tanh", ["x"], ["normal"]),
        node("Mul", ["normal", "scale"], ["scaled"]),
        node("MatMul", ["scaled", "first"], ["wide"]),
        node("Relu", ["wide"], ["active"]),
        node("MatMul", ["active", "second"], ["narrow"]),
        node("Add", ["x", "narrow"], ["y"]),
    ]
    shape = (1, tokens, width)
    (tmp_path / "m.onnx").write_bytes(model_of(made, {"x": shape, "t": (1, 1, width)}, {"y": shape}, weights).SerializeToString())
    graph = load_graph(tmp_path / "m.onnx", {})
    assert statistics_of(programmed(graph, nodes)).bytes <= 4 * (nodes - 1) * (tokens + nodes) * width
    assert_partition_agrees(graph, Cluster.even(nodes), OPTIONS, 1e-4)
