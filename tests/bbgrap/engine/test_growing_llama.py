"""Decoders of fused operators on two nodes: the words that plain onnxruntime writes, from a part of weights and cache on each."""

import numpy as np
import pytest

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.compiler.simulate import simulate_step
from bbgrap.engine.growing import prepare_growing
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.reload import ReloadedModel
from bbgrap.graph.onnx_io import save_graph
from bbgrap.graph.state import with_state
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo.decoder import Sizes
from bbgrap.zoo.llama import free_axes, llama
from tests.bbgrap.engine.test_growing import halves
from tests.sequence_models import Alone

SIZES = Sizes(2, 256, 8, 4, 2000, 128)
PROMPT, WORDS = 16, 64


@pytest.fixture(scope="module", params=[32, 4], ids=["floats", "int4"])
def model(request, tmp_path_factory):
    graph = llama("llama", SIZES, bits=request.param)
    path = tmp_path_factory.mktemp("llama") / "m.onnx"
    save_graph(graph, path, free=free_axes(graph))
    return path, sum(weight.type.nbytes for weight in graph.weights.values())


def prepared(path, nodes, planner):
    loader = ReloadedModel(path)
    state = {name: name.replace("past_key_values", "present") for name in loader.declared if name.startswith("past")}
    caches = dict.fromkeys(state, (1, SIZES.key_heads, 0, SIZES.head))
    first = with_state(loader.graph(path, {"input_ids": (1, 1), "attention_mask": (1, 1), **caches}), state)
    return first, prepare_growing(first, loader.open_graph, loader.declared, Cluster(nodes), PlanOptions(planner))


@pytest.mark.parametrize(
    ("planner", "shares"), [("tensor-parallel", (1, 1)), ("tensor-parallel", (2, 1)), ("auto", (1, 1))], ids=["even", "uneven", "auto"]
)
def test_words_are_those_of_plain_onnxruntime(model, planner, shares):
    path, whole = model
    # `auto` sees that so small a model gains nothing by two nodes, but one lacks the memory for it.
    room = {"memory_bytes": round(1.3 * whole)} if planner == "auto" else {}
    nodes = tuple(NodeProfile(f"node{number}", share=share, **room) for number, share in enumerate(shares))
    first, (planned, plan) = prepared(path, nodes, planner)
    assert plan.planner == planner
    used = [device.weight_bytes for device in planned.artifacts.devices]
    assert 0 < min(used) <= max(used) < whole
    if planner == "tensor-parallel":  # light tables are everywhere
        tables = sum(weight.type.nbytes for name, weight in plan.graph.weights.items() if name in ("words", "cosines", "sines"))
        most = 0.52 if shares == (1, 1) else 0.76
        assert all(part - tables < most * (whole - tables) for part in used)
    begins, further = halves(planned.artifacts)
    kernels = {True: local_kernels(begins), False: local_kernels(further)}
    empty = {name: np.zeros(first.types[name].known_shape, np.float32) for name in first.state}
    alone = Alone(path.read_bytes(), first.state, empty)
    words = np.random.default_rng(2).integers(0, SIZES.words, (1, PROMPT))
    held, total, written = [()] * begins.host.host, 0, []
    for number in range(WORDS):
        total += words.shape[1]
        feed = {"input_ids": words, "attention_mask": np.ones((1, total), np.int64)}
        given = [(feed | empty)[name] for name in (first.given if number else first.inputs)]
        (logits,), held = simulate_step(further if number else begins, given, held, kernels[not number])
        want = alone.run(feed)[0]
        np.testing.assert_allclose(logits, want, rtol=1e-4, atol=2e-5)
        words = logits[:, -1:].argmax(axis=-1)
        assert words == want[:, -1:].argmax(axis=-1)
        written.append(int(words[0, 0]))
    assert len(set(written)) > 1
    kept = [array.shape for device in held for array in device]
    assert planner == "auto" or sum(shape[1] for shape in kept) == 2 * SIZES.depth * SIZES.key_heads
    assert all(shape[2] == total for shape in kept)
