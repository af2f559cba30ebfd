"""State: what one request leaves is what the next one begins with, whichever device needs which part of it."""

import numpy as np
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
from bbgrap.errors import ModelError, PlanError
from bbgrap.graph import DType, Graph, Node, TensorType
from bbgrap.graph.state import kept_region, with_growth, with_state
from bbgrap.graph.weights import make_weight
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Plan, Tile, whole_output
from bbgrap.planners.registry import make_plan
from bbgrap.program.statistics import traffic_bytes
from bbgrap.shapemap import IntervalSet
from bbgrap.zoo.builder import Builder
from tests.partition import assert_close, plain_outputs
from tests.program_laws import check_program, compile_checked
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
    step = compile_checked(data.draw(plans(graph, 3)), descriptions).optimized
    begin = compile_checked(data.draw(plans(graph, 3)), descriptions, begins=layout_of(step)).optimized
    first = random_feeds(graph)
    further = [random_feeds(graph, seed)[: len(graph.given)] for seed in range(1, STEPS)]
    wanted = plain_sequence(graph, first, further)
    for got, want in zip(sequence_of(begin, step, first, further), wanted, strict=True):
        for one, other in zip(got, want, strict=True):
            assert_close(one, other, "answer")


@given(stateful_networks(), st.data())
def test_what_is_read_of_state_is_what_is_kept_of_it(graph, data):
    program = compile_checked(data.draw(plans(graph, 3)), all_descriptions(graph)).optimized
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
    program = compile_checked(plan, descriptions).optimized
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


def attention(past, heads=4, size=3):
    """One step of attention over a cache: of every head, keys and values of all requests so far."""
    width = heads * size
    random = np.random.default_rng(0)
    types = {"x": (1, 1, width), "shape": (4,), "flat": (3,), "y": (1, 1, width), "zeros": (1, 1, width)}
    weights = {"shape": np.array([0, 0, heads, size], np.int64), "flat": np.array([0, 0, width], np.int64)}
    nodes = []

    def node(op, inputs, output, shape, **attributes):
        nodes.append(Node(output, op, tuple(inputs), (output,), attributes))
        types[output] = shape
        return output

    for name in "qkv":
        weights[f"{name}.weight"] = random.standard_normal((width, width)).astype(np.float32) / width
        types[f"{name}.weight"] = (width, width)
        flat = node("MatMul", ["x", f"{name}.weight"], f"{name}.flat", (1, 1, width))
        divided = node("Reshape", [flat, "shape"], f"{name}.divided", (1, 1, heads, size))
        node("Transpose", [divided], f"{name}.heads", (1, heads, 1, size), perm=(0, 2, 1, 3))
    state = {}
    for name in "kv":
        types[f"past.{name}"] = (1, heads, past, size)
        state[f"past.{name}"] = node("Concat", [f"past.{name}", f"{name}.heads"], f"present.{name}", (1, heads, past + 1, size), axis=2)
    node("Transpose", ["present.k"], "keys", (1, heads, size, past + 1), perm=(0, 1, 3, 2))
    node("MatMul", ["q.heads", "keys"], "scores", (1, heads, 1, past + 1))
    node("Softmax", ["scores"], "shares", (1, heads, 1, past + 1), axis=-1)
    node("MatMul", ["shares", "present.v"], "mixed", (1, heads, 1, size))
    node("Transpose", ["mixed"], "together", (1, 1, heads, size), perm=(0, 2, 1, 3))
    node("Reshape", ["together", "flat"], "y", (1, 1, width))
    made = {name: make_weight(name, array) for name, array in weights.items()}
    kinds = {name: made[name].type if name in made else TensorType(DType.FLOAT, shape) for name, shape in types.items() if name != "zeros"}
    graph = Graph("attention", tuple(nodes), ("x", *state), ("y", *state.values(), "scores"), made, kinds, {"": 18})
    return with_state(graph, state)


@pytest.mark.parametrize("split", ["single", "heads"])
def test_one_program_serves_a_cache_that_grows(split):
    graph = with_growth(attention(2), attention(3))
    assert graph.moving["present.k"] == {2}
    cluster = Cluster.even(2)
    descriptions = all_descriptions(graph)
    axes = {"flat": 2, "divided": 2, "together": 2, "y": 2}
    tiles = {}
    for node in graph.nodes:
        whole = whole_output(graph, node)
        axis = axes.get(node.name.split(".")[-1], 1)
        halves = [IntervalSet.of((0, len(whole.axes[axis]) // 2)), IntervalSet.of((len(whole.axes[axis]) // 2, len(whole.axes[axis])))]
        parts = [whole.replace(axis, half) for half in halves] if split == "heads" else [whole]
        tiles[node.name] = tuple(Tile(d, region) for d, region in enumerate(parts))
    step = compile_checked(Plan("heads", graph, cluster, tiles), descriptions, open_sizes=True).optimized
    inputs = [random_feeds(graph, seed)[:1] for seed in range(5)]
    start = attention(1)
    single = {node.name: (Tile(0, whole_output(start, node)),) for node in start.nodes}
    begin = compile_checked(Plan("single", start, cluster, single), all_descriptions(start), begins=layout_of(step)).optimized
    first = [*inputs[0], *random_feeds(start)[1:]]
    wanted, feeds = [], dict(zip(start.inputs, first, strict=True))
    for number in range(5):
        now = attention(1 + number)
        found = dict(zip(now.outputs, plain_outputs(now, [feeds[name] for name in now.inputs]), strict=True))
        wanted.append([found[name] for name in now.answered])
        feeds = {name: found[output] for name, output in now.state.items()} | {"x": inputs[min(number + 1, 4)][0]}
    for got, want in zip(sequence_of(begin, step, first, inputs[1:]), wanted, strict=True):
        for one, other in zip(got, want, strict=True):
            assert_close(one, other, "answer")
    if split == "heads":
        assert traffic_bytes(step) < sum(graph.types[name].nbytes for name in ("x", "x", "y", "scores")) * 2


def test_an_axis_that_grows_is_not_cut():
    graph = with_growth(attention(2), attention(3))
    descriptions = all_descriptions(graph)
    tiles = {node.name: (Tile(0, whole_output(graph, node)),) for node in graph.nodes}
    whole = whole_output(graph, graph.node_by_name["scores"])
    tiles["scores"] = tuple(Tile(d, whole.replace(3, IntervalSet.of(part))) for d, part in enumerate([(0, 2), (2, 3)]))
    with pytest.raises(PlanError, match=r"is cut along axis 3, whose size changes"):
        compile_plan(Plan("cut", graph, Cluster.even(2), tiles), descriptions, open_sizes=True)
