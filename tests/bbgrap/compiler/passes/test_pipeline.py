"""Every pass keeps the answer and adds no byte; together they leave what `needed - held` says and nothing more."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.passes import DEFAULT_PASSES, optimize
from bbgrap.compiler.passes.crops import forward_crops
from bbgrap.errors import ProgramError
from bbgrap.graph import Graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, Tile, check_plan, whole_output
from bbgrap.planners.registry import make_plan
from bbgrap.program.statistics import statistics_of, traffic_bytes
from bbgrap.program.steps import Program, Receive, Send
from bbgrap.shapemap import ShapeMap, subtract_all
from bbgrap.zoo import build
from bbgrap.zoo.builder import Builder
from tests.partition import all_values, assert_close, compiled, run_checked
from tests.program_laws import check_program, compile_checked
from tests.random_models import clusters, networks, plan_options, plans, random_feeds


@given(networks(), clusters(), plan_options())
def test_every_pass_keeps_every_tensor_and_adds_no_byte(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    feeds = random_feeds(graph)
    values = all_values(graph, feeds)
    program = compiled(graph, cluster, options).initial
    assert not check_program(program)
    programs = [program]
    for step in DEFAULT_PASSES:
        programs.append(step(programs[-1]))
        assert not check_program(programs[-1]), step.__name__
        assert traffic_bytes(programs[-1]) <= traffic_bytes(programs[-2]), step.__name__
        assert statistics_of(step(programs[-1])) == statistics_of(programs[-1]), f"{step.__name__} is not idempotent"
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


def two_outputs() -> Program:
    """Build a network whose first output needs much from the other device, on two devices by rows: device 0 makes all of that output."""
    b = Builder("two", (1, 8, 64, 64))
    body = b.conv("input", "body", 64, 3, pad=1)
    first = b.conv(b.act("Relu", body, "relu"), "first", 64, 1)
    second = b.conv(b.conv(body, "further", 64, 3, pad=1), "second", 8, 3, pad=1)
    graph = b.graph(first, second)
    descriptions = all_descriptions(graph)
    plan = make_plan(graph, Cluster.even(2), PlanOptions(split="rows"), descriptions)
    whole = whole_output(graph, graph.node_by_name["first"])
    return optimize(compile_plan(replace(plan, tiles={**plan.tiles, "first": (Tile(0, whole),)}), descriptions).initial)


def test_nobody_waits_for_what_only_the_host_reads_nor_for_what_is_large_and_read_later() -> None:
    program = two_outputs()
    near = program.devices[0].steps
    place = {(type(step).__name__, label): n for n, step in enumerate(near) for label in labels(program, 0, step)}
    assert place["Receive", "body halo"] < place["Send", "further halo"] < place["Receive", "relu large"] < place["Send", "first"]
    run_checked(program, random_feeds(program.graph), all_values(program.graph, random_feeds(program.graph)))


def labels(program: Program, device: int, step: object) -> list[str]:
    """Name what a step of the program above carries."""
    if not isinstance(step, Send | Receive):
        return []
    held = program.devices[device].buffers
    parts = (
        [(held[p.buffer].value, p.region) for p in step.parts]
        if isinstance(step, Send)
        else [(held[b].value, held[b].region) for b in step.buffers]
    )
    names = []
    for value, region in parts:
        rows = region.shape[2]
        names.append(value if value in program.graph.outputs else f"{value} {'halo' if rows <= 2 else 'large'}")
    return names


@given(st.data())
def test_any_legal_plan_runs_overlapping_uneven_with_nodes_left_out(data: st.DataObject) -> None:
    graph = data.draw(networks())
    plan = data.draw(plans(graph))
    descriptions = all_descriptions(graph)
    assert not check_plan(plan, descriptions)
    feeds = random_feeds(graph)
    values = all_values(graph, feeds)
    result = compile_checked(plan, descriptions)
    for name, got in zip(graph.outputs, run_checked(result.optimized, feeds, values), strict=True):
        assert_close(got, values[name], name)


def test_passes_that_send_more_are_refused() -> None:
    program = compiled(build("tiny"), Cluster.even(2), PlanOptions())

    def undo(_: Program) -> Program:
        return program.initial

    with pytest.raises(ProgramError, match=r"traffic grew from \d+ to \d+ bytes by passes forward_crops, undo"):
        optimize(program.optimized, (forward_crops, undo))
