"""From a network to its training step: see the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bbgrap.errors import ModelError
from bbgrap.graph.lower import remove_dead
from bbgrap.graph.types import Array, DType, Graph, Node
from bbgrap.zoo.builder import Builder
from bbgrap.zoo.training.gradients import RULES, normalized

RATE, MOMENTUM = 0.001, 0.9
"""Chosen: the usual momentum, and a rate at which the networks of this package learn from their seeded weights without a warm-up."""

_PARAMETERS = {"Conv": slice(1, None), "Gemm": slice(1, None), "BatchNormalization": slice(1, 3)}
"""Which inputs of an operator are learned. The statistics that a normalisation has in the forward network are not used in training."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A graph that does one step of training.

    Invariants: `initial` and `state` have the same names, which are inputs of the graph; `state` pairs each with an output of its type.
    """

    graph: Graph
    initial: Mapping[str, Array]
    """What weights and momenta begin with, by the name of the input."""
    state: Mapping[str, str]
    """Input to output: what the next step begins with."""


def step_of(network: Graph, *, rate: float = RATE, momentum: float = MOMENTUM) -> TrainingStep:
    """Return the training step of a network with one output [batch, classes], whose loss is the mean cross-entropy of its softmax.

    Update: m' = momentum * m + gradient, w' = w - rate * m' (the form of Sutskever et al. that torch uses).

    Raises:
        ModelError: if a node has an operator, or a form of it, that there is no gradient for, or the output is no row of logits per sample.
    """
    network = remove_dead(network)  # of what has no part in the output there is no gradient
    b = Builder(f"{network.name}-step")
    for name in network.inputs:
        b.input(name, network.types[name].known_shape, network.types[name].dtype)
    (logits,) = network.outputs
    batch = _batch(network, logits)
    b.input("labels", (batch,), DType.INT64)
    learned = [name for node in network.nodes for name in node.inputs[_PARAMETERS.get(node.op, slice(0))]]
    parameters = [b.input(name, network.types[name].known_shape) for name in dict.fromkeys(learned)]
    momenta = [b.input(f"{name}.momentum", b.shape(name)) for name in parameters]
    for node in network.nodes:
        _forward(b, network, node)
    loss, gradient = _cross_entropy(b, logits)
    gradients = _backward(b, network, parameters, {logits: [gradient]})
    state = _update(b, dict(zip(parameters, momenta, strict=True)), gradients, rate, momentum)
    weights = {name: network.weights[name].array for name in parameters}
    initial = weights | {name: np.zeros(b.shape(name), np.float32) for name in momenta}
    return TrainingStep(b.graph(loss, *state.values()), initial, state)


def _batch(network: Graph, logits: str) -> int:
    shape = network.types[logits].known_shape
    if len(shape) != 2:
        raise ModelError(f"training of '{network.name}': expected an output [batch, classes], got '{logits}' {list(shape)}")
    return shape[0]


def _forward(b: Builder, network: Graph, node: Node) -> None:
    if node.op not in RULES:
        raise ModelError(f"training: node '{node.name}' ({node.op}): expected one of {', '.join(sorted(RULES))}")
    if node.op == "BatchNormalization":
        normalized(b, node)
    else:
        b.append(node, {name: network.types[name] for name in node.outputs})


def _cross_entropy(b: Builder, logits: str) -> tuple[str, str]:
    """Add the mean of -log softmax(logits)[label], and its gradient (softmax(logits) - one-hot(label)) / batch."""
    shape = batch, classes = b.shape(logits)
    values = [b.weight("classes", np.array(classes, np.int64)), b.weight("off_on", np.array([0, 1], np.float32))]
    hot = b.node("OneHot", "labels.hot", ["labels", *values], shape, {"axis": -1})
    logarithm = b.node("LogSoftmax", "probabilities.log", [logits], shape, {"axis": -1})
    chosen = b.binary("Mul", logarithm, hot, "labels.log")
    total = b.node("ReduceSum", "labels.sum", [chosen], (), {"keepdims": 0})
    loss = b.scalar("Mul", total, "loss", -1 / batch)
    difference = b.binary("Sub", b.act("Exp", logarithm, "probabilities"), hot, "probabilities.error")
    return loss, b.scalar("Mul", difference, f"{logits}.gradient", 1 / batch)


def _backward(b: Builder, network: Graph, parameters: list[str], parts: dict[str, list[str]]) -> Mapping[str, str]:
    """Add the gradients of all parameters, and return their names; `parts` are what is known of those of values, to be added up."""
    wanted = set(parameters)
    for node in network.nodes:
        if wanted.intersection(node.inputs):
            wanted.update(node.outputs)
    for node in reversed(network.nodes):
        (value,) = node.outputs
        if value not in wanted or value not in parts:
            continue
        names = {k: _gradient_name(network, name, node) for k, name in enumerate(node.inputs) if name in wanted}
        for k, gradient in RULES[node.op](b, node, _sum(b, value, parts[value]), names).items():
            parts.setdefault(node.inputs[k], []).append(gradient)
    return {name: _sum(b, name, parts[name]) for name in parameters}


def _gradient_name(network: Graph, value: str, reader: Node) -> str:
    return f"{value}.gradient" if len(network.consumers[value]) == 1 else f"{value}.gradient.{reader.name}"


def _sum(b: Builder, value: str, parts: list[str]) -> str:
    """Add up what the readers of a value say of its gradient, once."""
    while len(parts) > 1:
        name = f"{value}.gradient" if len(parts) == 2 else f"{value}.gradient.sum{len(parts)}"
        parts[:2] = [b.binary("Add", parts[0], parts[1], name)]
    return parts[0]


def _update(b: Builder, momenta: Mapping[str, str], gradients: Mapping[str, str], rate: float, momentum: float) -> dict[str, str]:
    """Add the update of every parameter, and return the state."""
    factors = {label: b.weight(label, np.array(value, np.float32)) for label, value in (("rate", rate), ("momentum", momentum))}
    moved: dict[str, str] = {}
    for name, velocity in momenta.items():
        kept = b.node("Mul", f"{velocity}.kept", [velocity, factors["momentum"]], b.shape(name))
        moved[name] = b.binary("Add", kept, gradients[name], f"{velocity}.next")
    steps = {name: b.node("Mul", f"{name}.step", [after, factors["rate"]], b.shape(name)) for name, after in moved.items()}
    weights = {name: b.binary("Sub", name, step, f"{name}.next") for name, step in steps.items()}
    return weights | {momenta[name]: after for name, after in moved.items()}
