"""Concatenations that only make outputs are done by the host: no agent computes them, and nothing of an answer changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap import zoo
from bbgrap.cluster import Cluster
from bbgrap.compiler import host_concat as joins
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.direct import build_direct
from bbgrap.compiler.host_concat import joined_by_host, shifted
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.registry import make_plan
from bbgrap.program.steps import Apply, Compute, Program, Receive
from bbgrap.runtime.schedule import place
from bbgrap.zoo.builder import Builder
from tests.bbgrap.compiler.test_direct import messages, work
from tests.partition import assert_partition_agrees
from tests.random_models import clusters, plan_options


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    monkeypatch.setattr(joins, "WORTH_JOINING_BYTES", 0)


def applied(program: Program, device: int) -> set[str]:
    """Return the nodes that a device applies."""
    steps = program.devices[device].steps
    return {op.node for step in steps if isinstance(step, Compute) for op in step.ops if isinstance(op, Apply)}


@st.composite
def heads(draw) -> Graph:
    """A network that ends in concatenations, one of another perhaps, of which agents may need a part, too."""
    b = Builder("heads", (1, 4, draw(st.integers(6, 12)), draw(st.integers(6, 9))))
    axis = draw(st.sampled_from((1, 2, 3)))
    first = b.conv("input", "first", draw(st.sampled_from((3, 4))), 3, pad=1)
    second = b.conv(first, "second", 4, 3, pad=1)
    third = b.act("Relu", b.conv(second, "third", 4, 1), "third.relu")
    parts = [first, third] if axis == 1 or b.shape(first) == b.shape(third) else [second, third]
    inner = b.concat(parts, "inner", axis)
    nested = axis == 1 and draw(st.booleans())
    outputs = [b.concat([second, inner], "outer", 1) if nested else inner]
    if draw(st.booleans()):
        outputs.append(draw(st.sampled_from([second, third, inner])))
    if draw(st.booleans()):
        outputs.append(b.act("Abs", draw(st.sampled_from([second, inner])), "after"))
    return b.graph(*outputs)


@given(heads(), clusters(), plan_options())
def test_answers_are_those_of_onnxruntime(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    compiled = assert_partition_agrees(graph, cluster, options)
    program, joined = compiled.optimized, joined_by_host(compiled.plan, all_descriptions(graph))
    ends = {node.name for node in graph.nodes if node.op == "Concat" and node.outputs[0] not in graph.consumers}
    assert ends <= joined if len(compiled.plan.devices_used) > 1 else not joined
    for device in range(program.host):
        assert applied(program, device).isdisjoint(joined)


@given(heads(), clusters(), plan_options())
def test_the_short_way_makes_the_same_program(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, cluster, options, descriptions)
    long_way, short = compile_plan(plan, descriptions).optimized, build_direct(plan, Pieces(graph, descriptions))
    assert messages(short) == messages(long_way)
    assert work(short) == work(long_way)


def test_what_an_agent_reads_or_a_weight_makes_stays_with_the_agents():
    b = Builder("read", (1, 2, 8, 8))
    x = b.conv("input", "x", 2, 3, pad=1)
    read = b.concat([x, "input"], "read")
    inner = b.concat([x, b.act("Relu", x, "y")], "inner")
    graph = b.graph(b.act("Relu", inner, "z"), read, inner)
    descriptions = all_descriptions(graph)
    assert joined_by_host(make_plan(graph, Cluster.even(2), PlanOptions(), descriptions), descriptions) == frozenset()


@given(st.integers(0, 3), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_region_of_an_operand_is_where_the_concatenation_puts_it(axis: int, extents: list[int], data: st.DataObject) -> None:
    shape = [3, 2, 4, 3]
    operands = [np.random.default_rng(n).random([e if a == axis else s for a, s in enumerate(shape)]) for n, e in enumerate(extents)]
    whole = np.concatenate(operands, axis)
    number = data.draw(st.integers(0, len(operands) - 1))
    start = sum(extents[:number])
    where = tuple(((start, start + extents[number]) if a == axis else (0, s),) for a, s in enumerate(shape))
    box = tuple(((0, 1), (s - 1, s)) if s > 2 else ((0, s),) for s in operands[number].shape)
    made = whole.copy()
    piece = -np.ones([sum(b - a for a, b in ranges) for ranges in box])
    place(made, shifted(where, box), piece)
    expected = operands[number].copy()
    place(expected, box, piece)
    assert np.array_equal(np.concatenate([*operands[:number], expected, *operands[number + 1 :]], axis), made)


def test_heads_of_a_detector_leave_as_soon_as_they_are_there(monkeypatch):
    monkeypatch.undo()
    graph = zoo.build("yolo")
    descriptions = all_descriptions(graph)
    program = compile_plan(make_plan(graph, Cluster.even(2), PlanOptions(), descriptions), descriptions).optimized
    host = program.devices[program.host]
    values = [host.buffers[step.buffers[0]].value for step in host.steps if isinstance(step, Receive)]
    assert sorted(values) == sorted(2 * ["head3.rows", "head4.rows", "head5.rows"])
    agent = program.devices[0]
    sends = {
        agent.buffers[s.parts[0].buffer].value: n for n, s in enumerate(agent.steps) if getattr(s, "destination", None) == program.host
    }
    last = max(n for n, step in enumerate(agent.steps) if isinstance(step, Compute))
    assert sends["head3.rows"] < sends["head4.rows"] < last
