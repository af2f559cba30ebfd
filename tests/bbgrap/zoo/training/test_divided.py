"""Training steps are divided by every planner: forward, backward and update, and no operator of theirs has to stay whole."""

from functools import cache

import pytest

from bbgrap.cluster import Cluster
from bbgrap.engine.prepare import plan_graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import NAMES
from bbgrap.zoo import training
from tests.partition import all_values, assert_close, run_checked
from tests.training_networks import NETWORKS, batch_of

ROUNDING = 1e-5
FOR_TRAINING = ("data-parallel", "model-parallel", "one-weird-trick", "hypar", "soybean", "tofu")


@cache
def known(name):
    """Return a step of a network, its inputs, and every tensor in it as plain onnxruntime computes it."""
    step = training.step_of(NETWORKS[name](4))
    given = batch_of(step) | step.initial
    feeds = [given[name] for name in step.graph.inputs]
    return step, feeds, all_values(step.graph, feeds)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_operator_of_a_step_is_described(name):
    step, _, _ = known(name)
    assert None not in all_descriptions(step.graph).values()


USUAL = {(*case, planner) for case in (("branches", 2), ("perceptron", 4)) for planner in FOR_TRAINING} | {("perceptron", 2, "auto")}
"""What the default suite tries; the others are slow tests."""

CASES = [
    pytest.param(*case, marks=() if case in USUAL else pytest.mark.slow)
    for case in ((name, nodes, planner) for name in NETWORKS for nodes in (2, 4) for planner in NAMES)
]


@pytest.mark.parametrize(("name", "nodes", "planner"), CASES)
def test_a_divided_step_is_that_of_plain_onnxruntime(name, nodes, planner):
    step, feeds, values = known(name)
    result = plan_graph(step.graph, Cluster.even(nodes), PlanOptions(planner=planner)).compiled
    for output, got in zip(step.graph.outputs, run_checked(result.optimized, feeds, values, ROUNDING), strict=True):
        assert_close(got, values[output], output, ROUNDING)
    if planner not in ("single", "auto", "layerwise"):  # these may find that a step this small is not worth dividing
        assert len(result.plan.devices_used) == nodes
