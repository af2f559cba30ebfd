"""Decoders of fused operators on two nodes: the words that plain onnxruntime writes, from a part of weights and cache on each."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.compiler.simulate import simulate_step
from bbgrap.engine.growing_state import prepare_growing
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.reload import ReloadedModel
from bbgrap.graph.onnx_io import save_graph
from bbgrap.graph.state import with_state
from bbgrap.graph.types import DType, TensorType
from bbgrap.graph.weights import make_weight
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo.decoder import DecoderSizes
from bbgrap.zoo.llama import free_axes, llama
from tests.bbgrap.engine.test_growing_state import halves
from tests.sequence_models import Alone

SIZES = DecoderSizes(2, 256, 8, 4, 2000, 128)
PROMPT, WORDS = 16, 64


@pytest.fixture(scope="module", params=[pytest.param(32, id="floats"), pytest.param(4, id="int4", marks=pytest.mark.broad)])
def model(request, tmp_path_factory):
    graph = llama("llama", SIZES, bits=request.param)
    path = tmp_path_factory.mktemp("llama") / "m.onnx"
    save_graph(graph, path, free=free_axes(graph))
    return path, sum(weight.type.nbytes for weight in graph.weights.values())


@pytest.fixture(scope="module")
def rounding(tmp_path_factory):
    """Return the same with products that take what they read in 8 bits, as is usual: nothing before them may be summed in parts."""
    graph = llama("llama", SIZES, bits=4)
    nodes = (replace(n, attributes={**n.attributes, "accuracy_level": 4}) if n.op == "MatMulNBits" else n for n in graph.nodes)
    path = tmp_path_factory.mktemp("rounding") / "m.onnx"
    save_graph(replace(graph, nodes=tuple(nodes)), path, free=free_axes(graph))
    return path


def prepared(path, nodes, planner, room=0):
    loader = ReloadedModel(path)
    state = {name: name.replace("past_key_values", "present") for name in loader.declared if name.startswith("past")}
    caches = dict.fromkeys(state, (1, SIZES.key_heads, room, SIZES.head))
    first = with_state(loader.graph(path, {"input_ids": (1, 1), "attention_mask": (1, 1), **caches}), state)
    return first, prepare_growing(first, loader.open_graph, loader.declared, Cluster(nodes), PlanOptions(planner))


def written(path, state, artifacts, room=0, dtype=np.float32):
    """Return the words that a deployment writes, which are those of plain onnxruntime, and what it keeps at the end."""
    first, further = halves(artifacts)
    kernels = {True: local_kernels(first), False: local_kernels(further)}
    begin = {name: np.zeros((1, SIZES.key_heads, room, SIZES.head), dtype) for name in state}
    alone = Alone(path.read_bytes(), state, begin)
    words = np.random.default_rng(2).integers(0, SIZES.words, (1, PROMPT))
    held, total, found = [()] * first.host.host, 0, []
    for number in range(WORDS):
        total += words.shape[1]
        feed = {"input_ids": words, "attention_mask": np.ones((1, total), np.int64)}
        given = [*feed.values(), *(() if number else begin.values())]
        (logits,), held = simulate_step(further if number else first, given, held, kernels[not number])
        want = alone.run(feed)[0]
        bound = 1e-4 if dtype == np.float32 else 1e-2
        np.testing.assert_allclose(logits, want, rtol=bound, atol=bound / 5)
        words = logits[:, -1:].argmax(axis=-1)
        assert words == want[:, -1:].argmax(axis=-1)
        found.append(int(words[0, 0]))
    return found, [array.shape for device in held for array in device]


@pytest.mark.parametrize(
    ("planner", "shares"),
    [
        pytest.param("tensor-parallel", (1, 1), marks=pytest.mark.broad),
        pytest.param("tensor-parallel", (2, 1), marks=pytest.mark.broad),
        ("auto", (1, 1)),
    ],
    ids=["even", "uneven", "auto"],
)
def test_words_are_those_of_plain_onnxruntime(model, planner, shares):
    path, whole = model
    # `auto` sees that so small a model gains nothing by two nodes, but one lacks the memory for it.
    room = {"memory_bytes": round(1.1 * whole)} if planner == "auto" else {}
    nodes = tuple(NodeProfile(f"node{number}", share=share, **room) for number, share in enumerate(shares))
    first, (planned, plan) = prepared(path, nodes, planner)
    assert plan.planner == planner
    used = [device.weight_bytes for device in planned.artifacts.devices]
    assert 0 < min(used) <= max(used) < whole
    if planner == "tensor-parallel":  # light tables are everywhere
        tables = sum(weight.type.nbytes for name, weight in plan.graph.weights.items() if name in ("words", "cosines", "sines"))
        most = 0.52 if shares == (1, 1) else 0.76
        assert all(part - tables < most * (whole - tables) for part in used)
    words, kept = written(path, first.state, planned.artifacts)
    assert len(set(words)) > 1
    assert planner == "auto" or sum(shape[1] for shape in kept) == 2 * SIZES.depth * SIZES.key_heads
    assert all(shape[2] == PROMPT + WORDS - 1 for shape in kept)


def test_products_that_round_are_all_cut_by_features(rounding):
    nodes = tuple(NodeProfile(f"node{number}") for number in range(2))
    first, (planned, plan) = prepared(rounding, nodes, "tensor-parallel")
    for node in (node for node in plan.graph.nodes if node.op == "MatMulNBits"):
        features = plan.graph.types[node.outputs[0]].known_shape[-1]
        assert [(tile.part, 2 * tile.region.shape[-1]) for tile in plan.tiles[node.name]] == [(None, features)] * 2
    tables = sum(plan.graph.weights[name].type.nbytes for name in ("words", "cosines", "sines"))
    whole = sum(weight.type.nbytes for weight in plan.graph.weights.values())
    assert all(device.weight_bytes - tables < 0.52 * (whole - tables) for device in planned.artifacts.devices)
    written(rounding, first.state, planned.artifacts)


@pytest.mark.broad
def test_floats_of_16_bits(tmp_path):
    graph = llama("llama", SIZES)
    halves_of = {n: make_weight(n, w.array.astype(np.float16)) for n, w in graph.weights.items() if w.type.dtype is DType.FLOAT}
    types = {n: TensorType(DType.FLOAT16, kind.shape) if kind.dtype is DType.FLOAT else kind for n, kind in graph.types.items()}
    path = tmp_path / "m.onnx"
    save_graph(replace(graph, weights={**graph.weights, **halves_of}, types=types), path, free=free_axes(graph))
    nodes = tuple(NodeProfile(f"node{number}") for number in range(2))
    first, (planned, plan) = prepared(path, nodes, "tensor-parallel")
    assert plan.planner == "tensor-parallel"
    _, kept = written(path, first.state, planned.artifacts, dtype=np.float16)
    assert sum(shape[1] for shape in kept) == 2 * SIZES.depth * SIZES.key_heads


@pytest.mark.broad
@pytest.mark.parametrize("declared", [True, False], ids=["in the file", "in the feed"])
def test_a_cache_with_room_for_all_words_is_filled(model, tmp_path, declared):
    path, room = model[0], 96
    if declared:
        fixed = onnx.load(path)
        for value in (*fixed.graph.input, *fixed.graph.output):
            if value.name.startswith(("past", "present")):
                value.type.tensor_type.shape.dim[2].dim_value = room
        path = tmp_path / "fixed.onnx"
        onnx.save(fixed, path)
    nodes = tuple(NodeProfile(f"node{number}") for number in range(2))
    first, (planned, _) = prepared(path, nodes, "tensor-parallel", room if declared else 0)
    _, kept = written(path, first.state, planned.artifacts, room)
    assert sum(shape[1] for shape in kept) == 2 * SIZES.depth * SIZES.key_heads
    assert all(shape[2] == room for shape in kept)
