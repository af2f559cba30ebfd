"""Training steps: their gradients are those of finite differences and of torch, their updates those of SGD with momentum."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from bbgrap.engine.double import double_answer
from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError
from bbgrap.graph import check_graph
from bbgrap.graph.lower import remove_dead
from bbgrap.graph.onnx_io import parse_model, write_graph
from bbgrap.zoo import training
from bbgrap.zoo.builder import Builder
from bbgrap.zoo.training.networks import NETWORKS as WELL_KNOWN
from benchmarks.training import losses_of
from tests.partition import assert_close
from tests.training_networks import NETWORKS, batch_of

STEP = 1e-6
"""Of finite differences, relative to a weight's largest value: in 64 bits, and so small that no maximum moves to another element."""


LARGE = (("resnet", 20), ("alexnet", 3), ("cifar-c", 20), ("vgg-a", 2))
"""Networks of the package that are compared with torch, and for how many steps."""


@cache
def step_of(name, batch=4):
    return training.step_of(NETWORKS[name](batch))


@cache
def session_of(data):
    return make_session(data, threads=1)


def run(step, feed):
    session = session_of(write_graph(step.graph, weights="inline").data)
    outputs = session.run(list(step.graph.outputs), {name: feed[name] for name in step.graph.inputs})
    return dict(zip(step.graph.outputs, outputs, strict=True))


def parameters(step):
    return [name for name in step.state if not name.endswith(".momentum")]


def loss_in_double(step, feed):
    """Compute the loss in 64 bits, forward only."""
    forward = remove_dead(replace(step.graph, outputs=("loss",)))
    model = parse_model(write_graph(forward, weights="inline").data, Path(), forward.name)
    found = double_answer(model, {name: np.asarray(value, np.float64) if name != "labels" else value for name, value in feed.items()})
    assert found is not None, "every operator of the forward part has a form in 64 bits"
    return float(found[0])


@pytest.mark.parametrize("name", ["branches", "remainders", "perceptron", pytest.param("vgg", marks=pytest.mark.slow)])
def test_gradients_are_those_of_finite_differences(name):
    step = step_of(name)
    feed = batch_of(step) | step.initial  # momenta are zero, so the next ones are gradients
    outputs = run(step, feed)
    here = loss_in_double(step, feed)
    assert float(outputs["loss"]) == pytest.approx(here, rel=1e-5)
    random = np.random.default_rng(3)
    for parameter in parameters(step):
        gradient, value = (array.astype(np.float64) for array in (outputs[f"{parameter}.momentum.next"], feed[parameter]))
        direction = STEP * np.abs(value).max() * random.standard_normal(gradient.shape)
        there = loss_in_double(step, feed | {parameter: value + direction})
        most = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert there - here == pytest.approx((gradient * direction).sum(), abs=1e-3 * most + 1e-12), parameter


@pytest.mark.parametrize("name", NETWORKS)
def test_types_are_those_that_onnx_infers(name):
    step = step_of(name)
    assert check_graph(step.graph) == ()
    model = onnx.load_from_string(write_graph(step.graph, weights="inline").data)
    onnx.checker.check_model(model, full_check=True)
    for value in onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.value_info:
        assert tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) == step.graph.types[value.name].shape, value.name


@pytest.mark.parametrize("name", NETWORKS)
def test_state_pairs_inputs_with_outputs_of_their_type(name):
    step = step_of(name)
    assert step.state.keys() == step.initial.keys() == set(step.graph.inputs) - {"input", "labels"}
    assert step.graph.outputs == ("loss", *step.state.values())
    assert all(before + ".next" == after for before, after in step.state.items())
    assert all(step.graph.types[before] == step.graph.types[after] for before, after in step.state.items())
    assert all(step.graph.types[name].shape == value.shape for name, value in step.initial.items())


def test_updates_are_those_of_momentum():
    step = training.step_of(NETWORKS["perceptron"](4), rate=0.5, momentum=0.25)
    feed = batch_of(step) | step.initial
    gradient = run(step, feed)["fc1.weight.momentum.next"]
    before = np.random.default_rng(1).standard_normal(gradient.shape, np.float32)
    after = run(step, feed | {"fc1.weight.momentum": before})
    assert_close(after["fc1.weight.momentum.next"], 0.25 * before + gradient, "momentum", 1e-6)
    assert_close(after["fc1.weight.next"], feed["fc1.weight"] - 0.5 * (0.25 * before + gradient), "weight", 1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_loss_falls(name):
    step = training.step_of(NETWORKS[name](8), rate=0.02)
    losses = losses_of(step, write_graph(step.graph, weights="inline").data, [batch_of(step)] * 15)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("name", "steps"), [*((name, 20) for name in NETWORKS), *(pytest.param(*large, marks=pytest.mark.slow) for large in LARGE)]
)
def test_steps_are_those_of_torch(name, steps):
    torch = pytest.importorskip("torch")
    network = (NETWORKS | WELL_KNOWN)[name](4)
    rate = 1e-4 if name in WELL_KNOWN else 0.02  # deep ones part at larger rates: rounding grows from step to step
    step = training.step_of(network, rate=rate)
    weights = {name: torch.tensor(step.initial[name], requires_grad=True) for name in parameters(step)}
    optimizer = torch.optim.SGD(weights.values(), lr=rate, momentum=0.9)
    state = dict(step.initial)
    for number in range(steps):
        samples = batch_of(step, number)
        outputs = run(step, samples | state)
        state = {before: outputs[after] for before, after in step.state.items()}
        optimizer.zero_grad()
        logits = in_torch(torch, network, weights, torch.tensor(samples["input"]))
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(samples["labels"]))
        loss.backward()
        optimizer.step()
        assert outputs["loss"] == pytest.approx(loss.item(), rel=1e-4), number
        for parameter, value in weights.items():
            assert_close(state[parameter], value.detach().numpy(), f"{parameter} after step {number}", 1e-3)


def in_torch(torch, network, weights, x):
    """Run a network of the builder in torch; batch normalisation by the batch."""
    f, values = torch.nn.functional, {"input": x}
    operators = {
        "Add": lambda x, y, **_: x + y,
        "AveragePool": lambda x, kernel_shape, strides, pads: f.avg_pool2d(x, kernel_shape, strides, pads[:2]),
        "BatchNormalization": lambda x, *w, epsilon: f.batch_norm(x, None, None, *w[:2], training=True, eps=epsilon),
        "Conv": lambda x, *w, strides, pads, **_: f.conv2d(x, *w, stride=strides, padding=pads[:2]),
        "Flatten": lambda x, **_: x.flatten(1),
        "Gemm": lambda x, *w, **_: f.linear(x, *w),
        "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
        "MaxPool": lambda x, kernel_shape, strides, pads: f.max_pool2d(x, kernel_shape, strides, pads[:2]),
        "Relu": lambda x: x.relu(),
    }
    for node in network.nodes:
        operands = [values.get(name, weights.get(name)) for name in node.inputs]
        values[node.outputs[0]] = operators[node.op](*operands, **node.attributes)
    return values[network.outputs[0]]


def grouped(b):
    return b.conv("input", "conv", 4, 3, groups=2)


def sigmoid(b):
    return b.act("Sigmoid", "input", "gate")


def padded_average(b):
    return b.node("AveragePool", "pool", [grouped(b)], (1, 4, 8, 8), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)})


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (grouped, "'conv' .Conv.: expected no groups"),
        (sigmoid, "'gate' .Sigmoid.: expected one of"),
        (padded_average, "expected no padding"),
    ],
)
def test_what_has_no_gradient_is_refused_by_name(layer, said):
    b = Builder("other", (1, 4, 8, 8))
    x = b.conv("input", "first", 4, 1)
    del x
    graph = b.graph(b.dense(b.flatten(layer(b), "flat"), "fc", 3))
    with pytest.raises(ModelError, match=said):
        training.step_of(graph)


def test_layers_that_have_no_part_in_the_output_are_not_trained():
    b = Builder("aside", (2, 6))
    x = b.dense("input", "first", 5)
    b.act("Sigmoid", b.dense(x, "aside", 4), "gate")
    step = training.step_of(b.graph(b.dense(x, "last", 3)))
    assert parameters(step) == ["first.weight", "first.bias", "last.weight", "last.bias"]
    assert not any("aside" in name for name in step.graph.types)


def test_an_output_that_is_no_row_of_logits_is_refused():
    b = Builder("maps", (1, 4, 8, 8))
    with pytest.raises(ModelError, match=r"expected an output \[batch, classes\], got 'conv' \[1, 2, 8, 8\]"):
        training.step_of(b.graph(b.conv("input", "conv", 2, 1)))


COUNTS = {
    "sconv": 100_500,
    "lenet-c": 430_500,
    "cifar-c": 145_376,
    "alexnet-half": 16_624_656,
    "sfc": 140_722_176,
    "vgg-a": 132_851_392,
    "vgg-b": 133_035_712,
    "vgg-c": 133_625_536,
    "vgg-d": 138_344_128,
    "vgg-e": 143_652_544,
    "alexnet": 61_100_840,
    "mlp": 784 * 2048 + 2048 * 2048 + 2048 * 10,
}
"""Weights of HyPar's networks, without biases, as its figure 8 counts them, and of others as they are known."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if count > 1e7 else n for n, count in COUNTS.items()])
def test_networks_have_the_weights_of_the_papers(name):
    step = training.build(name, batch=2)
    assert sum(step.initial[parameter].size for parameter in parameters(step)) == COUNTS[name]
    assert step.graph.types["loss"].shape == ()
    assert check_graph(step.graph) == ()


def test_a_small_residual_network_learns():
    step = training.build("resnet", batch=8, rate=0.05)
    losses = losses_of(step, write_graph(step.graph, weights="inline").data, [batch_of(step)] * 6)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(("name", "batch", "said"), [("lenet", 1, "no network 'lenet'; there are alexnet, "), ("mlp", 0, "or more, got 0")])
def test_unknown_networks_and_batches_are_refused(name, batch, said):
    with pytest.raises(ModelError, match=said):
        training.build(name, batch)
