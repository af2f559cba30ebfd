"""Every pass keeps the answer and adds no byte; together they leave what `needed - held` says and nothing more."""

from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, Tile, check_plan
from bbgrap.program.compile import compile_plan
from bbgrap.program.passes import DEFAULT_PASSES
from bbgrap.program.statistics import statistics_of, traffic_bytes
from bbgrap.program.steps import Receive, Send, check_program
from bbgrap.shapemap import ShapeMap, subtract_all
from bbgrap.zoo import build
from tests.partition import all_values, assert_close, compiled, run_checked
from tests.random_models import clusters, networks, plan_options, plans, random_feeds


@given(networks(), clusters(), plan_options())
def test_every_pass_keeps_every_tensor_and_adds_no_byte(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    feeds = random_feeds(graph)
    values = all_values(graph, feeds)
    program = compiled(graph, cluster, options).initial
    assert not check_program(program)
    programs = [program]
    for step in DEFAULT_PASSES:
        programs.append(step.run(programs[-1]))
        assert not check_program(programs[-1]), type(step).__name__
        assert traffic_bytes(programs[-1]) <= traffic_bytes(programs[-2]), type(step).__name__
        assert statistics_of(step.run(programs[-1])) == statistics_of(programs[-1]), f"{type(step).__name__} is not idempotent"
    for candidate in (programs[0], programs[1], programs[-1]):
        for name, got in zip(graph.outputs, run_checked(candidate, feeds, values), strict=True):
            assert_close(got, values[name], name)


@given(networks(), clusters(), plan_options())
def test_every_needed_element_arrives_exactly_once_from_a_holder(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    result = compiled(graph, cluster, options)
    program = result.optimized
    for device in program.devices:
        arrived: dict[tuple[str, int | None], list[ShapeMap]] = {}
        for step in device.steps:
            if not isinstance(step, Receive):
                continue
            sender, send = program.senders[step.message]
            for buffer, part in zip(step.buffers, send.parts, strict=True):
                got = device.buffers[buffer]
                held = _tile(result.plan, got.value, sender)
                assert held is None or held.region.issuperset(got.region), f"{got}: device {sender} sends what it does not hold"
                own = _tile(result.plan, got.value, device.device)
                if own is not None and (got.part is None or got.part == _number(result.plan, got.value, own)):
                    assert own.region.intersect(got.region).is_empty, f"{got}: device {device.device} is sent what it holds"
                before = arrived.setdefault((got.value, got.part), [])
                assert all(b.intersect(got.region).is_empty for b in before), f"{got} arrives twice at device {device.device}"
                before.append(got.region)
                assert part.region == got.region


def _tile(plan: Plan, value: str, device: int) -> Tile | None:
    producer = plan.graph.producers.get(value)
    return next((t for t in plan.tiles[producer.name] if t.device == device), None) if producer else None


def _number(plan: Plan, value: str, tile: Tile) -> int | None:
    tiles = plan.tiles[plan.graph.producers[value].name]
    return sorted({t.part.interval for t in tiles if t.part}).index(tile.part.interval) if tile.part else None


@given(networks(), clusters(), plan_options())
def test_tiles_cover_every_output_without_overlap(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    for node, tiles in compiled(graph, cluster, options).plan.tiles.items():
        whole = ShapeMap.full(graph.types[graph.node_by_name[node].outputs[0]].known_shape)
        assert not subtract_all(whole, (t.region for t in tiles))
        parts = {t.part for t in tiles}
        assert sum(t.region.size for t in tiles) == whole.size * len(parts)


@given(networks(), clusters(), plan_options())
def test_the_same_input_gives_the_same_program(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    first, second = compiled(graph, cluster, options), compiled(graph, cluster, options)
    assert [d.steps for d in first.optimized.devices] == [d.steps for d in second.optimized.devices]


def test_messages_are_one_per_neighbour_and_exchange() -> None:
    program = compiled(build("tiny"), Cluster.even(3), PlanOptions(split="rows")).optimized
    for device in program.devices:
        run: list[int] = []
        for step in device.steps:
            if isinstance(step, Send):
                assert step.destination not in run or device.device == program.host
                run.append(step.destination)
            else:
                run = []


@given(st.data())
def test_any_legal_plan_runs_overlapping_uneven_with_nodes_left_out(data: st.DataObject) -> None:
    graph = data.draw(networks())
    plan = data.draw(plans(graph))
    descriptions = all_descriptions(graph)
    assert not check_plan(plan, descriptions)
    feeds = random_feeds(graph)
    values = all_values(graph, feeds)
    result = compile_plan(plan, descriptions, verify=True)
    for name, got in zip(graph.outputs, run_checked(result.optimized, feeds, values), strict=True):
        assert_close(got, values[name], name)
