"""Inputs in chunks: the same answers from any prefix in any parts, no byte more, and only where it is predicted to pay."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bbgrap.auto.evaluate import Evaluator
from bbgrap.cluster import Cluster
from bbgrap.cluster.types import Link, Network
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.passes import DEFAULT_PASSES, ChunkInputs, optimize
from bbgrap.compiler.passes.chunks import Prefix, derive, made_in_parts, narrower, prefixes_of
from bbgrap.compiler.predict import Predictor
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.registry import make_plan
from bbgrap.program.statistics import traffic_bytes
from bbgrap.program.steps import Apply, Compute, Program, Receive, Send
from bbgrap.shapemap import IntervalSet, ShapeMap
from bbgrap.zoo.builder import Builder
from tests.partition import all_values, run_checked
from tests.program_laws import check_program, compile_checked
from tests.random_models import networks, plan_options, plans, random_feeds

GIGABIT = Link(125e6, 150e-6)
SLOW = Link(40e6, 100e-6)


def cut(draw: st.DrawFn, region: ShapeMap) -> list[ShapeMap]:
    """Divide a region along one of its axes into parts of any size."""
    axes = [axis for axis in range(region.rank) if region.shape[axis] > 1 and len(region.axes[axis].ranges) == 1]
    assume(axes)
    axis = draw(st.sampled_from(axes))
    hull = region.axes[axis].hull
    bounds = sorted(draw(st.sets(st.integers(hull.start + 1, hull.stop - 1), min_size=1, max_size=3)))
    pairs = zip([hull.start, *bounds], [*bounds, hull.stop], strict=True)
    return [region.replace(axis, IntervalSet.of(pair)) for pair in pairs]


def check_any_head(data: st.DataObject, before: Program, graph: Graph) -> None:
    """Make a prefix of any device in any parts: every law holds, every value is as onnxruntime's, and no byte more travels."""
    prefixes = [(device, prefix) for device in before.devices[: before.host] for prefix in prefixes_of(before, device)]
    assume(prefixes)
    device, prefix = data.draw(st.sampled_from(prefixes))
    parts = data.draw(st.composite(cut)(device.buffers[prefix.target].region))
    after = made_in_parts(before, device, prefix, parts, narrower(graph, all_descriptions(graph)))
    assume(after is not None)
    assert not check_program(after)
    assert traffic_bytes(after) <= traffic_bytes(before)
    run_checked(after, random_feeds(graph), all_values(graph, random_feeds(graph)))


@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.data())
def test_any_head_of_the_planner_in_any_parts(data):
    graph = data.draw(networks())
    plan = make_plan(graph, Cluster.even(data.draw(st.integers(1, 3))), data.draw(plan_options()), all_descriptions(graph))
    check_any_head(data, optimize(compile_plan(plan, all_descriptions(graph)).initial), graph)


@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.data())
def test_any_head_of_any_legal_plan_in_any_parts(data):
    graph = data.draw(networks())
    plan = data.draw(plans(graph, data.draw(st.integers(2, 3))))
    check_any_head(data, optimize(compile_plan(plan, all_descriptions(graph)).initial), graph)


def test_partial_results_are_made_at_once():
    graph = stack(1)
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, Cluster.even(2), PlanOptions("bbgrap", split="inputs"), descriptions)
    program = optimize(compile_plan(plan, descriptions).initial)
    tried = 0
    for device in program.devices[: program.host]:
        receive = next(step for step in device.steps if isinstance(step, Receive))
        send = program.senders[receive.message][1]
        for op in (op for step in device.steps if isinstance(step, Compute) for op in step.ops if isinstance(op, Apply)):
            target = device.buffers[op.writes[0]]
            if target.part is not None:
                tried += 1
                prefix = Prefix(send, receive, (op,), (), op.writes[0])
                assert derive(device, prefix.ops, prefix.target, target.region, lambda op, region: (op.local, op.work)) is None
    assert tried


# --- when it pays -----------------------------------------------------------------------------------------------------------------


def cluster(link: Link, count: int = 2) -> Cluster:
    """Equal nodes, the coordinator beside the first one."""
    nodes = Cluster.even(count)
    return replace(nodes, network=Network(link, coordinator_on=nodes.nodes[0].name))


def stack(batch: int, side: int = 64, convs: int = 6) -> Graph:
    """Build convolutions that take some milliseconds an image."""
    builder = Builder("stack", (batch, 16, side, side))
    x = "input"
    for number in range(convs):
        x = builder.act("Relu", builder.conv(x, f"conv{number}", 32, 3, pad=1), f"relu{number}")
    return builder.graph(x)


def receives(program: Program, device: int) -> list[str]:
    """Return what a device does before anything else, in words."""
    words = [type(step).__name__ for step in program.devices[device].steps]
    return words[: words.index("Send")]


def test_a_batch_comes_image_by_image_where_the_way_is_slow_and_the_near_agent_gets_its_own_at_once():
    graph = stack(8)
    plan = make_plan(graph, cluster(GIGABIT), PlanOptions("data-parallel"), all_descriptions(graph))
    program = compile_checked(plan, all_descriptions(graph)).optimized
    assert receives(program, 0) == ["Receive", "Compute"]
    assert receives(program, 1)[:4] == ["Receive", "Compute", "Receive", "Compute"]
    assert receives(program, 1)[-1] == "Compute"
    sent = [step for step in program.devices[program.host].steps if isinstance(step, Send)]
    assert [send.destination for send in sent] == [1] * (len(sent) - 1) + [0]
    assert traffic_bytes(program) == traffic_bytes(optimize(compile_plan(plan, all_descriptions(graph)).initial))


@pytest.mark.parametrize(("batch", "options"), [(1, PlanOptions("fused-tiles")), (4, PlanOptions("bbgrap", split="batch"))])
def test_answers_are_right_and_the_request_is_predicted_to_be_shorter(batch, options):
    graph = stack(batch)
    slow = cluster(SLOW)
    plan = make_plan(graph, slow, options, all_descriptions(graph))
    descriptions, predictor = all_descriptions(graph), Predictor(slow)
    before = optimize(compile_plan(plan, descriptions).initial, DEFAULT_PASSES)
    after = ChunkInputs(predictor, narrower(graph, descriptions))(before)
    assert predictor.timeline(after).total_s < predictor.timeline(before).total_s
    assert len([s for s in after.devices[1].steps if isinstance(s, Receive) and s.source == after.host]) > 1
    run_checked(after, random_feeds(graph), all_values(graph, random_feeds(graph)))


def test_where_the_way_is_fast_or_scales_belong_to_messages_inputs_come_at_once():
    graph = stack(4)
    for link, transfers in ((Link(10e9, 10e-6), "exact"), (SLOW, "int8")):
        nodes = cluster(link)
        plan = make_plan(graph, nodes, PlanOptions("bbgrap", split="batch"), all_descriptions(graph))
        program = compile_plan(plan, all_descriptions(graph), transfers).optimized
        assert receives(program, 1) == ["Receive", "Compute"]


def test_weights_are_not_repeated_without_bound(monkeypatch):
    graph = stack(4)
    nodes = cluster(SLOW)
    plan = make_plan(graph, nodes, PlanOptions("bbgrap", split="batch"), all_descriptions(graph))
    assert receives(compile_plan(plan, all_descriptions(graph)).optimized, 1) != ["Receive", "Compute"]
    monkeypatch.setattr("bbgrap.compiler.passes.chunk_inputs.REPEATED_BYTES", 0)
    assert receives(compile_plan(plan, all_descriptions(graph)).optimized, 1) == ["Receive", "Compute"]


def test_what_search_looks_at_is_what_is_compiled():
    graph = stack(4)
    nodes, descriptions = cluster(SLOW), all_descriptions(graph)
    plan = make_plan(graph, nodes, PlanOptions("bbgrap", split="batch"), descriptions)
    looked_at = Evaluator(Pieces(graph, descriptions), nodes, PlanOptions("auto")).program(plan.tiles)
    compiled_ = compile_plan(plan, descriptions).optimized

    def messages(program: Program) -> Counter[tuple[int, int, int]]:
        sent = [(d.device, step) for d in program.devices for step in d.steps if isinstance(step, Send)]
        return Counter((device, send.destination, sum(program.part_bytes(device, send))) for device, send in sent)

    def work(program: Program) -> list[int]:
        ops = [[op for step in d.steps if isinstance(step, Compute) for op in step.ops] for d in program.devices]
        return [sum(op.work.flops for op in of if isinstance(op, Apply)) for of in ops]

    assert messages(looked_at) == messages(compiled_)
    assert work(looked_at) == work(compiled_)
    assert sum(messages(compiled_).values()) > 4


def test_of_many_small_layers_few_stretches_are_looked_at():
    def looked_at(layers: int) -> int:
        builder, x = Builder("many", (1, 3, 1024, 1024)), "input"
        for number in range(layers):
            x = builder.act("Exp", x, f"exp{number}")
        graph = builder.graph(x)
        descriptions = all_descriptions(graph)
        cluster = replace(Cluster.even(2), network=Network(GIGABIT))
        program = optimize(compile_plan(make_plan(graph, cluster, PlanOptions(), descriptions), descriptions, instalments=False).initial)
        asked: list[Apply] = []
        narrow = narrower(graph, descriptions)

        def counting(op, region):
            asked.append(op)
            return narrow(op, region)

        ChunkInputs(Predictor(cluster), counting)(program)
        return len(asked)

    assert looked_at(200) < 3 * looked_at(100)
