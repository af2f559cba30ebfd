"""How long caches are that an attention puts out: what follows from shapes is known, what follows from an input's content is not."""

from dataclasses import replace

import numpy as np
import pytest

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.cache_shapes import CACHING, cached_shapes
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.told_numbers import told_numbers
from bbgrap.graph.onnx_io import save_graph
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import make_plan
from bbgrap.zoo.decoder import DecoderSizes
from bbgrap.zoo.llama import free_axes, llama
from tests.partition import assert_close, compiled, plain_outputs

SIZES = DecoderSizes(1, 64, 4, 2, 100, 64)


def shapes_of(graph, words, past):
    shapes = {"input_ids": (1, words), "attention_mask": (1, past + words)}
    return shapes | dict.fromkeys((name for name in graph.inputs if name.startswith("past")), (1, SIZES.key_heads, past, SIZES.head))


@pytest.mark.parametrize(("words", "past"), [(1, 7), (3, 0)])
def test_the_number_of_words_is_computed_from_the_shape_of_the_mask(words, past):
    graph = llama("one", SIZES, sequence=words, past=past)
    total = told_numbers(graph, "words.total")
    assert total is not None
    assert total.tolist() == past + words
    assert told_numbers(graph, "words.last") is None


@pytest.mark.parametrize("inferred", [None, (1, SIZES.key_heads, 7, SIZES.head)], ids=["nothing", "the past's"])
def test_caches_are_as_long_as_all_words_whatever_is_inferred(inferred):
    graph = llama("one", SIZES, sequence=2, past=7)
    (node,) = (node for node in graph.nodes if node.op in CACHING)
    types = graph.types | {name: replace(graph.types[name], shape=inferred) for name in node.outputs[1:]}
    first, *caches = cached_shapes(replace(graph, types=types), node)
    assert first == graph.types[node.outputs[0]].shape
    assert caches == [(1, SIZES.key_heads, 9, SIZES.head)] * 2


def test_a_cache_of_the_last_words_stays_as_long_as_it_was():
    graph = llama("one", SIZES, sequence=2, past=7)
    (node,) = (node for node in graph.nodes if node.op in CACHING)
    rolling = replace(node, attributes={**node.attributes, "local_window_size": 4, "sliding_window_cache": 1})
    first, *caches = cached_shapes(graph, rolling)
    assert first == graph.types[node.outputs[0]].shape
    assert caches == [(1, SIZES.key_heads, 7, SIZES.head)] * 2


def test_an_attention_that_is_told_by_an_inputs_content_runs_whole(tmp_path):
    graph = llama("one", SIZES)
    flat = replace(graph.node_by_name["mask.shape"], op="Reshape", inputs=("mask.sums", "one"), outputs=("mask.flat",))
    first = replace(graph.node_by_name["mask.length"], inputs=("mask.flat", "zero"))
    nodes = tuple({"mask.shape": flat, "mask.length": first}.get(node.name, node) for node in graph.nodes)
    weights = {**graph.weights, "zero": make_weight("zero", np.array(0))}
    types = {**graph.types, "zero": weights["zero"].type, "mask.flat": graph.weights["one"].type}
    changed = replace(graph, nodes=nodes, weights=weights, types=types)
    save_graph(changed, tmp_path / "m.onnx", free=free_axes(graph))
    loaded = load_graph(tmp_path / "m.onnx", shapes_of(graph, 2, 5))
    descriptions = all_descriptions(loaded)
    assert [node.op for node in loaded.nodes if descriptions[node.name] is None] == ["GroupQueryAttention"]
    assert loaded.types["present.0.key"].shape is None
    random = np.random.default_rng(0)
    feeds = [
        random.integers(0, 100, (1, 2)),
        np.ones((1, 7), np.int64),
        *(random.standard_normal((1, SIZES.key_heads, 5, SIZES.head)).astype(np.float32) for _ in "kv"),
    ]
    cluster, options = Cluster.even(2), PlanOptions("tensor-parallel")
    assert make_plan(loaded, cluster, options, descriptions).devices_used == (0, 1)
    artifacts = export(compiled(loaded, cluster, options).optimized)
    outputs = simulate(artifacts, feeds, local_kernels(artifacts))
    for name, got, want in zip(loaded.outputs, outputs, plain_outputs(loaded, feeds), strict=True):
        assert_close(got, want, name)
