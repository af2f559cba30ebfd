"""State: what one request leaves is what the next one begins with, whichever device needs which part of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.direct import build_direct
from bbgrap.compiler.export import export
from bbgrap.compiler.passes.state import layout_of
from bbgrap.compiler.simulate import simulate_step
from bbgrap.engine.kernels import local_kernels
from bbgrap.errors import ModelError
from bbgrap.graph.state import kept_region, with_state
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.registry import make_plan
from bbgrap.program.statistics import traffic_bytes
from bbgrap.program.steps import check_program
from bbgrap.zoo.builder import Builder
from tests.partition import assert_close
from tests.random_models import clusters, plan_options, plans, random_feeds
from tests.stateful_models import accumulating, plain_sequence, stateful_networks

STEPS = 3


def sequence_of(begin, step, first, further):
    """Answers of a sequence, simulated: the first request by one program, all others by another."""
    outputs, state = simulate_step(export(begin), first, [()] * begin.host, local_kernels(export(begin)))
    answers, artifacts = [outputs], export(step)
    kernels = local_kernels(artifacts)
    for feeds in further:
        outputs, state = simulate_step(artifacts, feeds, state, kernels)
        answers.append(outputs)
    return answers


@given(stateful_networks(), st.data())
def test_sequences_answer_as_plain_onnxruntime_does_whatever_the_plans_are(graph, data):
    descriptions = all_descriptions(graph)
    step = compile_plan(data.draw(plans(graph, 3)), descriptions, verify=True).optimized
    begin = compile_plan(data.draw(plans(graph, 3)), descriptions, verify=True, begins=layout_of(step)).optimized
    first = random_feeds(graph)
    further = [random_feeds(graph, seed)[: len(graph.given)] for seed in range(1, STEPS)]
    wanted = plain_sequence(graph, first, further)
    for got, want in zip(sequence_of(begin, step, first, further), wanted, strict=True):
        for one, other in zip(got, want, strict=True):
            assert_close(one, other, "answer")


@given(stateful_networks(), st.data())
def test_what_is_read_of_state_is_what_is_kept_of_it(graph, data):
    program = compile_plan(data.draw(plans(graph, 3)), all_descriptions(graph), verify=True).optimized
    for device in program.devices[: program.host]:
        for feed, result in zip(device.feeds, device.results, strict=True):
            held, made = device.buffers[feed], device.buffers[result]
            assert made.value == graph.state[held.value]
            assert made.region == kept_region(graph, held.value, held.region)


@given(stateful_networks(), clusters(), plan_options())
def test_a_program_for_planners_sends_the_same(graph, cluster, options):
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, cluster, options, descriptions)
    long_way, short = compile_plan(plan, descriptions).optimized, build_direct(plan, Pieces(graph, descriptions))
    assert not check_program(short)
    assert traffic_bytes(short) == traffic_bytes(long_way)
    assert [sorted(map(str, held)) for held in layout_of(short)] == [sorted(map(str, held)) for held in layout_of(long_way)]


@pytest.fixture
def counter():
    """A sum over rows that grows with every request: cut by rows, nothing of it has to move."""
    builder = Builder("counter", (1, 4, 8, 8))
    builder.act("Relu", "input", "r")
    graph = accumulating(builder.graph("r"), "r")
    return with_state(graph, {"state of r": "state of r.next"})


def test_tied_tiles_move_no_state(counter):
    descriptions = all_descriptions(counter)
    plan = make_plan(counter, Cluster.even(2), PlanOptions(split="rows"), descriptions)
    program = compile_plan(plan, descriptions, verify=True).optimized
    assert [[str(region) for _, region in device] for device in layout_of(program)] == [["[0:1, 0:4, 0:4, 0:8]"], ["[0:1, 0:4, 4:8, 0:8]"]]
    assert traffic_bytes(program) == 2 * counter.types["input"].nbytes  # there and back


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"nothing": "state of r.next"}, "it is no input"),
        ({"state of r": "r"}, "is no output"),
        ({"input": "state of r.next", "state of r": "state of r.next"}, "state of two inputs"),
    ],
)
def test_pairs_that_are_none_are_refused(counter, pairs, said):
    with pytest.raises(ModelError, match=said):
        with_state(counter, pairs)
