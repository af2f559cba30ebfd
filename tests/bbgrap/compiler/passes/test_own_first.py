"""What a device can make of its own comes before what is on its way, where that is faster; answers and messages stay the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.cluster.types import Link, Network
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.passes import optimize
from bbgrap.compiler.passes.chunks import narrower
from bbgrap.compiler.passes.own_first import begin_with_own
from bbgrap.compiler.predict import Predictor
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import whole_output
from bbgrap.planners.registry import make_plan
from bbgrap.program.statistics import traffic_bytes
from bbgrap.program.steps import Apply, Compute, Receive, Send
from bbgrap.zoo.vit import vit
from tests.partition import all_values, run_checked
from tests.program_laws import check_program, compile_checked
from tests.random_models import networks, plans, random_feeds

BLOCKS = vit("blocks", depth=2, width=512, heads=8, size=224, patch=16, classes=10)
DESCRIPTIONS = all_descriptions(BLOCKS)
SLOW, FAST = Link(20e6, 1e-4), Link(1e12, 0.0)


def check_divided(graph, plan):
    """Divide all that can be divided of a plan's program, and return how many operations that were."""
    descriptions = all_descriptions(graph)
    fused = optimize(compile_plan(plan, descriptions).initial)
    network = Predictor(plan.cluster).network
    divided, own = begin_with_own(fused, network, narrower(graph, descriptions), descriptions, long_s=0.0, worth_flops=0)
    assert not check_program(divided)
    assert traffic_bytes(divided) == traffic_bytes(fused)
    feeds = random_feeds(graph)
    run_checked(divided, feeds, all_values(graph, feeds))
    return sum(map(len, own))


def test_whatever_can_be_divided_of_any_legal_plan_answers_the_same():
    divided = 0

    @settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
    @given(st.data())
    def check(data):
        nonlocal divided
        graph = data.draw(networks())
        plan = data.draw(plans(graph, data.draw(st.integers(2, 3))))
        divided += check_divided(graph, replace(plan, cluster=slow(len(plan.cluster.nodes))))

    check()
    assert divided > 0


def slow(count, link=SLOW, memory=0):
    nodes = tuple(replace(node, memory_bytes=memory) for node in Cluster.even(count).nodes)
    return Cluster(nodes, Network(link))


def compiled(cluster):
    """Rows of everything, but keys and values of all rows everywhere."""
    plan = make_plan(BLOCKS, cluster, PlanOptions("bbgrap"), DESCRIPTIONS)
    everywhere = {
        node.name: tuple(replace(tile, region=whole_output(BLOCKS, node)) for tile in plan.tiles[node.name])
        for node in BLOCKS.nodes
        if ".key" in node.name or ".value" in node.name
    }
    return compile_checked(replace(plan, tiles={**plan.tiles, **everywhere}), DESCRIPTIONS).optimized


def made_meanwhile(program):
    """Yield what projections an agent makes, by exchange, after it has sent its tokens and before it waits for those of others."""
    for device in program.devices[: program.host]:
        for before, step, after in zip(device.steps, device.steps[1:], device.steps[2:], strict=False):
            match before, step, after:
                case Send(), Compute(ops=ops), Receive(source=source) if source != program.host:
                    names = [op.node for op in ops if isinstance(op, Apply) and op.node.endswith(".product")]
                    yield {name.split(".")[-2] for name in names}


@pytest.mark.parametrize("count", [2, 3])
def test_keys_and_values_of_own_rows_are_made_while_the_tokens_of_others_come(count):
    made = list(made_meanwhile(compiled(slow(count))))
    assert made == [{"query", "key", "value"}] * len(made) != []


@pytest.mark.parametrize("cluster", [slow(2, FAST), slow(2, memory=1)], ids=["fast link", "no memory"])
def test_nothing_is_divided_where_it_does_not_pay_or_fit(cluster):
    made = list(made_meanwhile(compiled(cluster)))
    assert made == [{"query"}] * len(made) != []
