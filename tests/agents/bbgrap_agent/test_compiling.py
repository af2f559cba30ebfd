"""A deployment compiled for this machine answers like the portable one, and stays portable where it cannot be compiled."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from bbgrap_agent import compiling
from bbgrap_agent.compiling import load_compiled, load_portable
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.cluster.types import LOCAL, Network
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.export import export
from bbgrap.engine.layout import block_size
from bbgrap.engine.prepare import plan_graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.runtime.blocked import BlockedSlicePlan
from bbgrap.runtime.execution import SlicePlan
from bbgrap.runtime.schedule import LocalJoin
from bbgrap.zoo import build
from bbgrap.zoo.builder import Builder
from tests.agents.segment_loading import loader_of, run
from tests.examples import examples
from tests.partition import assert_close
from tests.random_models import networks, plans, random_feeds

BLOCK = block_size() or 16
needs_blocks = pytest.mark.skipif(block_size() is None, reason="onnxruntime does not block feature maps on this CPU")


def assert_same_answers(graph, artifacts, tolerance=1e-5):
    feeds, loader = random_feeds(graph), loader_of(artifacts)
    portable, compiled = ([load(d.schedule, d.segments, loader) for d in artifacts.devices] for load in (load_portable, load_compiled))
    answers = zip(graph.outputs, run(artifacts, feeds, compiled), run(artifacts, feeds, portable), strict=True)
    for name, got, want in answers:
        assert_close(got, want, name, tolerance)
    return compiled


@st.composite
def deployments(draw, blocks=(BLOCK,)):
    """Any plan of any network, or one of those that leave maps whole in their channels."""
    graph = draw(networks(block=draw(st.sampled_from(blocks))))
    if draw(st.booleans()):
        return graph, export(compile_plan(draw(plans(graph, 3)), all_descriptions(graph)).optimized)
    options = PlanOptions(split=draw(st.sampled_from(("rows", "rows", "grid"))))
    return graph, export(plan_graph(graph, Cluster.even(draw(st.integers(2, 3))), options).compiled.optimized)


@settings(max_examples=examples(30))
@given(deployments())
def test_any_plan_answers_the_same(deployment):
    assert_same_answers(*deployment)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(deployments((1, BLOCK)))
def test_any_plan_answers_the_same_at_length(deployment):
    assert_same_answers(*deployment)


@pytest.mark.broad
@needs_blocks
def test_rows_of_resnet50_are_blocked_throughout():
    graph = build("resnet50")
    artifacts = export(plan_graph(graph, Cluster.even(2), PlanOptions(split="rows")).compiled.optimized)
    for loaded in assert_same_answers(graph, artifacts):
        assert isinstance(loaded.slices, BlockedSlicePlan)
        assert len(loaded.slices.blocked) > 40
        joins = {step.output for step in loaded.schedule.steps if isinstance(step, LocalJoin)}
        assert len(joins) >= 12
        assert joins & loaded.slices.blocked


@settings(max_examples=examples(8))
@given(networks(block=BLOCK), st.sampled_from(("float16", "int8")))
def test_transfers_in_fewer_bits(graph, transfers):
    """Rounding is the same on both sides; where a sum in another order crosses a step of it, by one step."""
    options = PlanOptions(split="rows", transfer_dtype=transfers)
    artifacts = export(plan_graph(graph, Cluster.even(3), options).compiled.optimized)
    assert_same_answers(graph, artifacts, {"float16": 1e-2, "int8": 0.1}[transfers])


def tiny():
    graph = build("tiny")
    return graph, export(plan_graph(graph, Cluster.even(2), PlanOptions(split="rows")).compiled.optimized)


def test_without_the_layout_all_stays_as_shipped(monkeypatch):
    graph, artifacts = tiny()
    monkeypatch.setattr(compiling, "block_size", lambda: None)
    for loaded, device in zip(assert_same_answers(graph, artifacts), artifacts.devices, strict=True):
        assert loaded.schedule is device.schedule
        assert type(loaded.slices) is SlicePlan


@pytest.fixture(scope="module")
def shipped():
    """What is shipped of ResNet50, all of it loaded as shipped, and what that answers."""
    graph = build("resnet50")
    cluster = replace(Cluster.even(2), network=Network(LOCAL))  # inputs come at once
    artifacts = export(plan_graph(graph, cluster, PlanOptions(split="rows")).compiled.optimized)
    loader, feeds = loader_of(artifacts), random_feeds(graph)
    portable = [load_portable(device.schedule, device.segments, loader) for device in artifacts.devices]
    return artifacts, portable, feeds, run(artifacts, feeds, portable)


@needs_blocks
@pytest.mark.parametrize("broken", ["wrong", pytest.param("raises", marks=pytest.mark.broad)])
def test_a_segment_that_compiles_badly_stays_portable(broken, caplog, shipped):
    artifacts, (_, *others), feeds, want = shipped
    device, good = artifacts.devices[0], loader_of(artifacts)
    victim = device.segments[4].name

    def compiled(compiler, boundary, model):
        call = good.compiled(compiler, boundary, model)
        if model.name != victim:
            return call
        if broken == "raises":
            raise RuntimeError("no such kernel")
        return lambda arrays: [array + np.float32(1) for array in call(arrays)]

    with caplog.at_level(logging.INFO):
        loaded = load_compiled(device.schedule, device.segments, replace(good, compiled=compiled))
    assert f"segment '{victim}' stays portable" in caplog.text
    with_maps = len(device.segments) - 1  # the last one adds up the partial results of the pool and classifies them
    assert f"{with_maps - 1} of {len(device.segments)} segments compiled" in caplog.text
    assert_close(run(artifacts, feeds, [loaded, *others])[0], want[0], "output")


def test_a_model_whose_channels_fill_no_block_stays_as_shipped():
    builder = Builder("small", (1, 3, 9, 8))
    graph = builder.graph(builder.conv(builder.conv("input", "first", 5, 3, pad=1), "second", 3, 3, pad=1))
    artifacts = export(plan_graph(graph, Cluster.even(2), PlanOptions(split="rows")).compiled.optimized)
    for loaded, device in zip(assert_same_answers(graph, artifacts), artifacts.devices, strict=True):
        assert loaded.schedule == device.schedule
        assert not getattr(loaded.slices, "blocked", None)
