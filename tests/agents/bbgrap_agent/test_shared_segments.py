"""Deployments for many shapes of a model on one agent: each answers right, whatever they share, and what is equal is there once."""

import gc
import tempfile
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bbgrap_agent.compiling import load_compiled, load_portable
from bbgrap_agent.shared_segments import MAX_KNOWN, SharedSegments
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.engine.layout import block_size
from bbgrap.engine.reload import ReloadedModel
from bbgrap.errors import BbgrapError, PlanError
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import verify_plan
from bbgrap.planners.registry import make_plan
from bbgrap.planners.scale import scaled
from bbgrap.zoo import build
from bbgrap.zoo.builder import Builder
from tests.agents.segment_loading import loader_of, run
from tests.examples import examples
from tests.free_models import other_shapes, save_free
from tests.partition import assert_close, plain_outputs
from tests.random_models import networks, plans, random_feeds

BLOCK = block_size() or 16


class Agents:
    """What the agents of a model hold: one `SharedSegments` each, and a count of the sessions that they had to make."""

    def __init__(self, devices, load=load_compiled):
        self.shared = [SharedSegments() for _ in range(devices)]
        self.load = load
        self.made = Counter()

    def loader(self, artifacts, shared):
        plain = loader_of(artifacts)

        def portable(model):
            self.made["portable"] += 1
            return plain.portable(model)

        def compiled(compiler, boundary, model):
            self.made["compiled"] += 1
            return plain.compiled(compiler, boundary, model)

        return replace(plain, portable=portable, compiled=compiled, shared=shared)

    def deploy(self, artifacts):
        devices = zip(artifacts.devices, self.shared, strict=False)
        return [self.load(d.schedule, d.segments, self.loader(artifacts, shared)) for d, shared in devices]

    @property
    def sessions(self):
        return sum(self.made.values())


def assert_right(graph, artifacts, loaded, seed=0):
    feeds = random_feeds(graph, seed)
    for name, got, want in zip(graph.outputs, run(artifacts, feeds, loaded), plain_outputs(graph, feeds), strict=True):
        assert_close(got, want, f"'{name}' of {[feed.shape for feed in feeds]}", 2e-5)


def graphs_of(network, shapes, axes=(0, 2, 3)):
    """The network's graphs for its own shapes and for others, without those that are too small for a window."""
    with tempfile.TemporaryDirectory() as folder:
        path = save_free(network, Path(folder) / "m.onnx", axes)
        model = ReloadedModel(path)
        found = []
        for one in ({name: network.types[name].known_shape for name in network.inputs}, *shapes):
            try:
                graph = model.graph(path, one)
            except BbgrapError:
                continue
            if all(kind.shape is not None for kind in graph.types.values()):
                found.append(graph)
        return found


def exported(plan):
    descriptions = all_descriptions(plan.graph)
    verify_plan(plan, descriptions)
    return export(compile_plan(plan, descriptions).optimized)


def cut_alike(plan, graphs):
    """What is deployed for each graph, as far as the plan scales to it."""
    made = []
    for graph in graphs:
        try:
            made.append((graph, exported(scaled(plan, graph, all_descriptions(graph)))))
        except PlanError:
            continue
    return made


@settings(max_examples=examples(25))
@given(st.sampled_from((1, BLOCK, BLOCK)).flatmap(lambda block: networks(block=block)), st.data())
def test_any_shapes_of_any_plan_answer_right_after_all_are_loaded(network, data):
    first, *others = graphs_of(network, data.draw(st.lists(other_shapes(network), min_size=1, max_size=3)))
    if data.draw(st.booleans()):
        plan = data.draw(plans(first, 3))
    else:
        plan = make_plan(first, Cluster.even(3), PlanOptions(split=data.draw(st.sampled_from(("rows", "columns", "batch", "channels")))))
    deployments = cut_alike(plan, data.draw(st.permutations([first, *others])))
    agents = Agents(3)
    loaded = [agents.deploy(artifacts) for _, artifacts in deployments]
    for (graph, artifacts), one in zip(deployments, loaded, strict=True):
        assert_right(graph, artifacts, one)


SHAPES = [{"input": shape} for shape in ((1, 3, 64, 64), (1, 3, 96, 64), (2, 3, 64, 64), (1, 3, 33, 96), (4, 3, 32, 32))]


@pytest.fixture(scope="module")
def tiny():
    """Tiny for several shapes, cut over two devices."""
    graphs = graphs_of(build("tiny"), SHAPES)
    plan = make_plan(graphs[1], Cluster.even(2), PlanOptions())
    found = cut_alike(plan, graphs[1:])
    assert len(found) == len(SHAPES)
    return found


@pytest.mark.parametrize("load", [load_compiled, load_portable])
def test_equal_segments_are_one_session(tiny, load):
    agents, held = Agents(2, load), []
    for graph, artifacts in tiny:
        held.append(agents.deploy(artifacts))
        assert_right(graph, artifacts, held[-1])
    made = agents.sessions
    for (graph, artifacts), before in zip(reversed(tiny), reversed(held), strict=True):
        again = agents.deploy(artifacts)
        assert agents.sessions == made, "all are there"
        for one, other in zip(again, before, strict=True):
            assert all(a is b for a, b in zip(one.segments, other.segments, strict=True))
        assert_right(graph, artifacts, again, 1)
    asked = sum(len(one.segments) for loaded in held for one in loaded)
    distinct = len({id(segment) for loaded in held for one in loaded for segment in one.segments})
    assert distinct <= 0.7 * asked, "most of what another shape needs is there"


def test_taller_pictures_need_nearly_nothing_new(tiny):
    """The same batch and width, half as high again: by digests, before any agent has seen them."""
    (_, square), (_, tall), *_ = tiny
    for one, other in zip(square.devices, tall.devices, strict=True):
        known = {model.digest for model in one.segments}
        assert sum(model.digest in known for model in other.segments) >= len(other.segments) - 3


@pytest.mark.parametrize("load", [load_compiled, load_portable])
def test_what_no_deployment_holds_is_gone(tiny, load):
    agents = Agents(2, load)
    (_, kept_artifacts), *others = tiny
    kept = agents.deploy(kept_artifacts)
    released = [agents.deploy(artifacts) for _, artifacts in others]
    stay = {id(segment) for one in kept for segment in one.segments}
    watched = [weakref.ref(s) for loaded in released for one in loaded for s in one.segments if id(s) not in stay]
    assert watched
    del released
    gc.collect()
    assert not any(reference() is not None for reference in watched)
    made = agents.sessions
    agents.deploy(kept_artifacts)
    assert agents.sessions == made


def test_what_is_known_of_segments_is_bounded():
    shared = SharedSegments()
    first = shared.known((0,))
    for number in range(1, MAX_KNOWN + 5):
        shared.known((number,))
        if number % 1000 == 0:
            assert shared.known((0,)) is first, "what was asked for lately stays"
    assert len(shared._known) == MAX_KNOWN
    assert shared.known((0,)) is first


def test_other_weights_are_other_segments():
    """Two models that differ in nothing but what they learned."""

    def exported_of(scale):
        graph = build("tiny")
        weights = {
            n: w if w.array.ndim != 4 else replace(w, array=w.array * scale, digest=w.digest[::-1]) for n, w in graph.weights.items()
        }
        graph = replace(graph, weights=weights if scale != 1 else graph.weights)
        return graph, exported(make_plan(graph, Cluster.even(2), PlanOptions()))

    agents = Agents(2)
    deployments = [exported_of(np.float32(scale)) for scale in (1, 0.5)]
    loaded = [agents.deploy(artifacts) for _, artifacts in deployments]
    for (graph, artifacts), one in zip(deployments, loaded, strict=True):
        assert_right(graph, artifacts, one)


def resizing():
    """Whatever its input's size, inside it has maps of 16x16: the layer that makes them is another one for each size."""
    builder = Builder("resizing", (1, 3, 8, 8))
    first = builder.act("Relu", builder.conv("input", "first", BLOCK, 3, pad=1), "before")
    sizes = builder.weight("sizes", np.array([1, BLOCK, 16, 16]))
    mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    made = builder.node("Resize", "resized", [first, "", "", sizes], (1, BLOCK, 16, 16), mode)
    return builder.graph(builder.conv(made, "second", BLOCK, 3, pad=1))


def test_maps_resized_to_fixed_sizes_are_right_for_all_sizes():
    first, *others = graphs_of(resizing(), [{"input": (1, 3, side, side)} for side in (4, 2, 16)], (2, 3))
    plan = make_plan(first, Cluster.even(2), PlanOptions())
    deployments = [(first, exported(plan)), *cut_alike(plan, others)]
    assert len(deployments) >= 3
    agents = Agents(2)
    loaded = [agents.deploy(artifacts) for _, artifacts in deployments]
    for (graph, artifacts), one in zip(deployments, loaded, strict=True):
        assert_right(graph, artifacts, one)


def gated(x, builder):
    """Weigh channels by their means over the whole map."""
    kernel = {"kernel_shape": (1, 1)}
    mean = builder.node("GlobalAveragePool", "mean", [x], (1, BLOCK, 1, 1))
    weight = builder.weight("gate.weight", np.random.default_rng(1).random((BLOCK, BLOCK, 1, 1), np.float32))
    gate = builder.act("Sigmoid", builder.node("Conv", "gate", [mean, weight], (1, BLOCK, 1, 1), kernel), "open")
    return builder.conv(builder.binary("Mul", x, gate, "gated"), "third", BLOCK, 3, pad=1)


def columns(x, builder):
    """Make rows of columns, as where text is read, and multiply these."""
    x = builder.node("Reshape", "joined", [x, builder.weight("sizes", np.array([0, BLOCK * 16, -1]))], (1, BLOCK * 16, 64))
    x = builder.transpose(x, "rows", (0, 2, 1))
    weight = builder.weight("product.weight", np.random.default_rng(1).random((BLOCK * 16, 8), np.float32))
    x = builder.node("MatMul", "product", [x, weight], (1, 64, 8))
    x = builder.binary("Add", x, builder.weight("bias", np.ones(8, np.float32)), "sum")
    x = builder.node("Reshape", "heads", [x, builder.weight("parts", np.array([0, 0, 2, 4]))], (1, 64, 2, 4))
    x = builder.node(
        "Reshape", "named", [builder.transpose(x, "part", (2, 0, 1, 3)), builder.weight("two", np.array([2, 0, -1, 4]))], (2, 1, 64, 4)
    )
    return builder.act("Sigmoid", x, "end")


@pytest.mark.skipif(block_size() is None, reason="onnxruntime does not block feature maps on this CPU")
@pytest.mark.parametrize("rest", [gated, columns])
@pytest.mark.parametrize("split", ["rows", "fewer-exchanges"])
def test_other_batches_and_widths_need_next_to_nothing_new(rest, split):
    builder = Builder("reader", (1, 3, 16, 64))
    x = builder.act("Relu", builder.conv("input", "first", BLOCK, 3, pad=1), "before")
    x = builder.act("Relu", builder.conv(x, "second", BLOCK, 3, pad=1), "after")
    network = builder.graph(rest(x, builder))
    shapes = [(4, 3, 16, 96), (3, 3, 16, 80), (4, 3, 16, 48), (5, 3, 16, 128), (3, 3, 16, 56)]
    _, *graphs = graphs_of(network, [{"input": shape} for shape in shapes], (0, 3))
    options = PlanOptions(split="rows") if split == "rows" else PlanOptions(planner=split)
    deployments, agents = cut_alike(make_plan(graphs[0], Cluster.even(2), options), graphs), Agents(2)
    assert len(deployments) == len(shapes)
    loaded, made = [], []
    for graph, artifacts in deployments:
        loaded.append((graph, artifacts, agents.deploy(artifacts)))
        made.append(agents.sessions)
    for one in loaded:
        assert_right(*one)
    assert made[-1] - made[0] <= 1
