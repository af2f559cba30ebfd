"""A program built directly is the one that the passes leave: the same messages of the same bytes, the same work, the same time."""

from collections import Counter

from hypothesis import event, given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.direct import build_direct
from bbgrap.compiler.export import export
from bbgrap.compiler.memory import program_bytes
from bbgrap.compiler.predict import Predictor
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.plan import Plan, Tile, whole_output
from bbgrap.planners.registry import make_plan
from bbgrap.program.statistics import traffic_bytes
from bbgrap.program.steps import Apply, Compute, Program, Send
from bbgrap.work import NO_WORK
from tests.program_laws import check_program
from tests.random_models import clusters, networks, plan_options, plans


def messages(program: Program) -> Counter[tuple[int, int, int]]:
    """Return (sender, receiver, bytes) of all messages."""
    return Counter(
        (device.device, step.destination, sum(program.part_bytes(device.device, step)))
        for device in program.devices
        for step in device.steps
        if isinstance(step, Send)
    )


def work(program: Program) -> list[Counter[str]]:
    """Return the operations of every device."""
    return [
        Counter(op.node for step in device.steps if isinstance(step, Compute) for op in step.ops if isinstance(op, Apply))
        for device in program.devices
    ]


@given(networks(), clusters(), plan_options())
def test_planned_along_one_direction_it_takes_the_same_time(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, cluster, options, descriptions)
    long_way, short = compile_plan(plan, descriptions).optimized, build_direct(plan, Pieces(graph, descriptions))
    assert not check_program(short)
    assert messages(short) == messages(long_way)
    assert work(short) == work(long_way)
    predictor = Predictor(cluster)
    assert predictor.timeline(short).total_s <= predictor.timeline(long_way).total_s * 1.02


@given(st.data(), networks())
def test_any_plan_whose_tiles_are_all_needed_sends_no_byte_more(data: st.DataObject, graph: Graph) -> None:
    plan = data.draw(plans(graph))
    descriptions = all_descriptions(graph)
    long_way, short = compile_plan(plan, descriptions).optimized, build_direct(plan, Pieces(graph, descriptions))
    assert not check_program(short)
    needed = all(left <= right for left, right in zip(work(short), work(long_way), strict=True))
    assert all(left >= right for left, right in zip(work(short), work(long_way), strict=True))
    event("every tile is needed" if needed else "a tile is not needed: the passes drop it, a planner that asks for it pays for it")
    assert not needed or traffic_bytes(short) <= traffic_bytes(long_way)


@given(networks(), clusters(), plan_options())
def test_the_work_of_a_program_is_that_of_its_tiles(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    descriptions = all_descriptions(graph)
    plan, pieces = make_plan(graph, cluster, options, descriptions), Pieces(graph, descriptions)
    for device in compile_plan(plan, descriptions).optimized.devices:
        for op in (op for step in device.steps if isinstance(step, Compute) for op in step.ops if isinstance(op, Apply)):
            node = graph.node_by_name[op.node]
            tile = next(t for t in plan.tiles[op.node] if t.device == device.device)
            assert op.work == pieces.work(node, tile)
            whole = pieces.work(node, Tile(0, whole_output(graph, node)))
            assert op.work == NO_WORK or op.work.kind == whole.kind
            assert op.work.flops <= whole.flops


@given(networks(), clusters(), plan_options())
def test_memory_counts_the_weights_that_are_shipped(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, cluster, options, descriptions)
    compiled = compile_plan(plan, descriptions).optimized
    exact, estimated = program_bytes(compiled), program_bytes(build_direct(plan, Pieces(graph, descriptions)))
    assert all(size >= device.loading_bytes for size, device in zip(exact, export(compiled).devices, strict=True))
    assert all(0.5 * size - 4096 <= short <= 2 * size + 4096 for short, size in zip(estimated, exact, strict=True))


def test_one_node_does_all_the_work() -> None:
    from bbgrap.zoo import build

    graph = build("tiny")
    cluster = Cluster.even(2)
    tiles = {node.name: (Tile(1, whole_output(graph, node)),) for node in graph.nodes}
    program = build_direct(Plan("single", graph, cluster, tiles), Pieces(graph, all_descriptions(graph)))
    assert [len(device.steps) for device in program.devices] == [0, 3, 2]
