"""Training steps, divided as what they are: steps go on from each other's weights, and what travels is what the papers say."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from bbgrap.auto.candidates import FOR_TRAINING
from bbgrap.auto.search import plan_auto
from bbgrap.cluster import Cluster
from bbgrap.compiler.compile import compile_plan
from bbgrap.compiler.direct import build_direct
from bbgrap.compiler.export import export
from bbgrap.compiler.passes.chunks import made_in_parts, narrower, prefixes_of
from bbgrap.compiler.passes.state import layout_of
from bbgrap.compiler.simulate import simulate_step
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.state import with_state
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.pieces import Pieces
from bbgrap.planners.placements import Levels
from bbgrap.planners.registry import make_plan
from bbgrap.planners.shares import split_by_shares
from bbgrap.planners.training import training_structure
from bbgrap.planners.training_chain import forms_of
from bbgrap.planners.training_search import bytes_moved, place_by_bytes
from bbgrap.shapemap import IntervalSet
from bbgrap.zoo import training
from benchmarks.papers.graphs import between_agents
from tests.partition import assert_close
from tests.program_laws import compile_checked
from tests.training_networks import NETWORKS, batch_of

STEPS = 4
PLANNERS = ("data-parallel", "model-parallel", "one-weird-trick", "hypar", "soybean", "tofu")
MOMENTS = ".momentum"


@cache
def known(name):
    """A training step of a small network, and its graph with state."""
    step = training.step_of(NETWORKS[name](4))
    graph = with_state(step.graph, step.state)
    return step, graph, all_descriptions(graph)


def planned(graph, descriptions, nodes, planner):
    return make_plan(graph, Cluster.even(nodes), PlanOptions(planner=planner), descriptions)


def moved(graph, descriptions, nodes, planner):
    return between_agents(build_direct(planned(graph, descriptions, nodes, planner), Pieces(graph, descriptions)))


def followed(name, planner, cluster):
    """Run some steps of a plan, compare their losses with those of plain onnxruntime, and return the program of further steps."""
    step, graph, descriptions = known(name)
    plan = make_plan(graph, cluster, PlanOptions(planner=planner), descriptions)
    program = compile_checked(plan, descriptions).optimized
    begin = compile_checked(plan, descriptions, begins=layout_of(program)).optimized
    session = make_session(write_graph(graph, weights="inline").data, threads=1)
    weights, state, artifacts = step.initial, None, {True: export(begin), False: export(program)}
    kernels = {first: local_kernels(made) for first, made in artifacts.items()}
    for number in range(STEPS):
        feed = batch_of(step, number)
        wanted = dict(zip(graph.outputs, session.run(list(graph.outputs), feed | weights), strict=True))
        first = state is None
        given = [(feed | weights)[name] for name in (graph.inputs if first else graph.given)]
        (loss,), state = simulate_step(artifacts[first], given, [()] * len(cluster.nodes) if first else state, kernels[first])
        assert_close(loss, wanted["loss"], f"loss of step {number}", rtol=1e-4)
        weights = {name: wanted[output] for name, output in graph.state.items()}
    return program


def test_what_reads_weights_of_the_step_before_can_be_made_in_parts():
    """Whether samples come in chunks depends on links; that it is right does not."""
    step, graph, descriptions = known("perceptron")
    plan = planned(graph, descriptions, 4, "pipeline")
    program = compile_plan(plan, descriptions, instalments=False).optimized
    first = export(compile_plan(plan, descriptions, instalments=False, begins=layout_of(program)).optimized)
    feed = batch_of(step)
    _, state = simulate_step(first, [(feed | step.initial)[name] for name in graph.inputs], [()] * 4, local_kernels(first))

    def loss_of(program):
        made = export(program)
        (loss,), _ = simulate_step(made, [feed[name] for name in graph.given], state, local_kernels(made))
        return loss

    device = program.devices[0]
    prefixes = [prefix for prefix in prefixes_of(program, device) if any(feed in op.reads for op in prefix.ops for feed in device.feeds)]
    assert prefixes
    for prefix in prefixes:
        whole = device.buffers[prefix.target].region
        halves = [whole.replace(0, IntervalSet.of(part)) for part in split_by_shares(len(whole.axes[0]), (1.0, 1.0))]
        parted = made_in_parts(program, device, prefix, halves, narrower(graph, descriptions))
        assert_close(loss_of(parted), loss_of(program), "loss", rtol=1e-6)


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize(("name", "nodes"), [("perceptron", 4), pytest.param("branches", 2, marks=pytest.mark.broad)])
def test_steps_go_on_from_each_others_weights(name, nodes, planner):
    program = followed(name, planner, Cluster.even(nodes))
    graph = program.graph
    moments = [held for device in layout_of(program) for held in device if held[0].endswith(MOMENTS)]
    assert sum(region.size for _, region in moments) == sum(graph.types[n].nbytes // 4 for n in graph.state if n.endswith(MOMENTS))


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_data_parallelism_moves_every_gradient_and_every_weight_once_for_each_other_device(nodes):  # HyPar, table 1
    _, graph, descriptions = known("vgg")
    weights = sum(graph.types[name].nbytes for name in training_structure(graph, descriptions).parameters if not name.endswith(MOMENTS))
    losses = graph.types["loss"].nbytes * (nodes - 1)
    assert moved(graph, descriptions, nodes, "data-parallel") == 2 * (nodes - 1) * weights + losses


SMALL, LARGE = ("sconv", "lenet-c", "cifar-c"), ("sfc", "alexnet", "vgg-a", "vgg-b", "vgg-c", "vgg-d", "vgg-e")


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_hypar_moves_no_more_than_what_it_chooses_from(name, nodes):  # its ten networks, at its batch
    step = training.build(name, batch=256)
    graph = with_state(step.graph, step.state)
    descriptions = all_descriptions(graph)
    kinds = [moved(graph, descriptions, nodes, planner) for planner in ("data-parallel", "model-parallel", "one-weird-trick")]
    assert moved(graph, descriptions, nodes, "hypar") <= min(kinds)


@pytest.mark.parametrize("nodes", [2, pytest.param(3, marks=pytest.mark.broad), pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("name", [pytest.param("vgg", marks=pytest.mark.broad), "branches"])
def test_the_bytes_that_tofu_minimises_are_those_of_programs(name, planner, nodes):
    _, graph, descriptions = known(name)
    tiles = planned(graph, descriptions, nodes, planner).tiles
    assert bytes_moved(Pieces(graph, descriptions), tiles) == moved(graph, descriptions, nodes, planner)


@pytest.mark.parametrize("nodes", [2, pytest.param(4, marks=pytest.mark.broad)])
@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlp", "alexnet", *LARGE))])
def test_tofu_moves_no_more_than_soybean_and_soybean_no_more_than_hypar(name, nodes):
    step = training.build(name, batch=256)
    graph = with_state(step.graph, step.state)
    descriptions = all_descriptions(graph)
    tofu, soybean, hypar = (moved(graph, descriptions, nodes, planner) for planner in ("tofu", "soybean", "hypar"))
    assert tofu <= soybean <= hypar


def test_the_choice_for_a_level_is_the_best_of_all():
    _, graph, descriptions = known("perceptron")
    step, levels, pieces = training_structure(graph, descriptions), Levels((2,), (1.0, 1.0)), Pieces(graph, descriptions)
    names = [layer.node.name for layer in step.layers]
    every = product(*(forms_of(step, layer, (), 2, levels).values() for layer in step.layers))
    plans = (step.tiles(levels, {name: (placement,) for name, placement in zip(names, chosen, strict=True)}) for chosen in every)
    assert bytes_moved(pieces, step.tiles(levels, place_by_bytes(step, levels))) == min(bytes_moved(pieces, tiles) for tiles in plans)


def test_statistics_of_a_batch_are_sums_over_the_machines_of_sums():
    """Weights and their gradients travel, and what normalisations add up; no map does."""
    _, graph, descriptions = known("branches")
    plan = planned(graph, descriptions, 2, "data-parallel")
    maps = [node for node in graph.nodes if len(graph.types[node.outputs[0]].shape) == 4 and graph.types[node.outputs[0]].shape[0] == 4]
    assert maps
    assert all({len(tile.region.axes[0]) for tile in plan.tiles[node.name]} == {2} for node in maps if ".weight" not in node.name)
    weights = sum(graph.types[name].nbytes for name in training_structure(graph, descriptions).parameters if not name.endswith(MOMENTS))
    assert moved(graph, descriptions, 2, "data-parallel") < 3 * weights


@pytest.mark.parametrize(
    ("name", "nodes"), [pytest.param("perceptron", 4, marks=pytest.mark.broad), pytest.param("vgg", 2, marks=pytest.mark.slow)]
)
def test_auto_expects_to_be_as_fast_as_each(name, nodes):
    _, graph, descriptions = known(name)
    found = plan_auto(graph, Cluster.even(nodes), PlanOptions("auto"), descriptions)
    seconds = {candidate.name: candidate.score.seconds for candidate in found.candidates}
    asked = {f"planner '{planner}'" for planner in FOR_TRAINING}
    assert asked & seconds.keys()
    assert found.score.seconds <= min(seconds.values())
    pieces = Pieces(graph, descriptions)
    for planner in FOR_TRAINING:  # some make the same plan: it is a candidate once
        tiles = planned(graph, descriptions, nodes, planner).tiles
        assert any(bytes_moved(pieces, candidate.tiles) == bytes_moved(pieces, tiles) for candidate in found.candidates), planner


def test_what_is_no_training_step_is_planned_as_before():
    graph = NETWORKS["vgg"](4)
    assert training_structure(graph, all_descriptions(graph)) is None
    assert np.prod(graph.types[graph.outputs[0]].shape) > 1
