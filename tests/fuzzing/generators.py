"""Random valid models: a seed decides everything, and what plain onnxruntime does not run is left out node by node.

Every model contains one operator on purpose, the `focus`, called as in the tests of its description; around it stand layers of networks
with odd attributes and calls of further operators. Consecutive seeds take the described operators in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bbgrap.graph import Array
from tests.bbgrap.tdl.verifier import Case, attributes_of
from tests.fuzzing.calls import OPERATORS, Operator, random_call
from tests.fuzzing.growth import Call, Growth
from tests.fuzzing.layers import NETWORK
from tests.fuzzing.moves import MOVES, PLAIN
from tests.fuzzing.operands import fitted, normal, parameter, weight
from tests.fuzzing.samples import Sample

MOST_NODES = 25
ATTEMPTS = 12
"""Calls of the focus that are tried before a model does without it: some strategies draw what onnxruntime refuses at another opset."""

_UNCHECKED = frozenset({"QLinearWhere"})
"""Operators whose kernels onnxruntime 1.31 makes without looking whether what steers them is there yet: a zero point that is computed
ends the process."""

OPSETS = (13, 17, 18, 19, 20, 21, 22, 23)


def operator_of(seed: int) -> Operator:
    """Return the operator that a seed's model contains on purpose."""
    return OPERATORS[seed % len(OPERATORS)]


def random_sample(seed: int) -> Sample:
    """Return the model of a seed with inputs for it."""
    random = np.random.default_rng(seed)
    focus = operator_of(seed)
    case = random_call(focus, random)
    opset = case.opset if case is not None and random.random() < 0.8 else int(random.choice(OPSETS))
    growth = Growth(random, opset)
    for _ in range(growth.one_of(1, 1, 1, 2, 3)):
        growth.made.append(growth.give(_input(growth)))
    layers = growth.number(0, 9)
    at = growth.number(0, layers)
    kept: list[str] = []
    for number in range(layers + 1):
        if len(growth.nodes) >= MOST_NODES:
            break
        if number == at:
            kept = _focused(growth, focus, case)
        else:
            _grow(growth)
    if not growth.nodes:
        kept = growth.add("Identity", [growth.made[0]])
    return _finished(growth, kept, f"own{seed}")


def random_network(seed: int) -> Sample:
    """Return a network of plain layers for converters: one float32 image or sequence, all weights initializers."""
    random = np.random.default_rng((seed, 7))
    growth = Growth(random, int(random.choice(OPSETS[:-2])), plain=True)
    shape = (growth.number(1, 2), growth.one_of(3, 4, 6, 8), growth.number(6, 14), growth.number(6, 14))
    if growth.chance(0.25):
        shape = (growth.number(1, 2), growth.number(4, 9), growth.one_of(8, 12, 16))  # type: ignore[assignment]
    growth.made.append(growth.give(normal(growth, shape)))
    for _ in range(growth.number(2, 9)):
        if len(growth.nodes) < MOST_NODES:
            layer: Callable[[Growth, str], Any] = growth.one_of(*(NETWORK if growth.chance(0.65) else PLAIN))
            layer(growth, growth.made[-growth.one_of(*[1] * 6, min(2, len(growth.made)))])
    kept = growth.made[-1:] if growth.nodes else growth.add("Relu", growth.made[:1])
    return _finished(growth, kept, f"network{seed}")


def _input(growth: Growth) -> Array:
    image = (growth.number(1, 3), growth.one_of(1, 2, 3, 4, 6, 8, 16, 17), growth.number(1, 14), growth.number(1, 14))
    sequence = (growth.number(1, 3), growth.number(1, 9), growth.one_of(1, 4, 6, 8, 12))
    shape = growth.one_of(image, image, image, sequence, sequence, image[1:2], image[2:], (*image, 3), (*image[:2], 9), ())
    kind = growth.one_of(*[np.float32] * 14, np.float16, np.float16, np.float64, np.int32, np.int64, np.uint8, np.int8, np.bool_)
    return normal(growth, shape, kind)


def _recent(growth: Growth) -> str:
    """Return a value to go on from: the latest, one of the latest, or any."""
    back = growth.one_of(1, 1, 2, 3, len(growth.made))
    return growth.made[-growth.number(1, min(back, len(growth.made)))]


def _grow(growth: Growth) -> None:
    form = growth.random.random()
    if form < 0.2:
        operator = growth.one_of(*OPERATORS)
        case = random_call(operator, growth.random)
        if case is not None:
            _called(growth, case, 0.7)
        return
    layer: Callable[[Growth, str], Any] = growth.one_of(*(NETWORK if form < 0.6 else MOVES))
    layer(growth, _recent(growth))


def _focused(growth: Growth, focus: Operator, case: Case | None) -> list[str]:
    """Add the focus: at first on values of the model, then more and more on data of its own."""
    for attempt in range(ATTEMPTS):
        made = _called(growth, case, (0.8, 0.5, 0.2, 0.0)[min(attempt, 3)]) if case is not None else []
        if made:
            return made
        if attempt >= 3 or case is None:
            case = random_call(focus, growth.random)
    return []


def _called(growth: Growth, case: Case, bound: float) -> list[str]:
    """Add a call; each operand with data is a value of the model with a probability, falling from the first operand on."""
    operands: list[str] = []
    for number, array in enumerate(case.operands):
        if array is None:
            operands.append("")
            continue
        array = np.asarray(array)
        is_data = number not in case.parameters and number not in case.below and array.dtype.kind in "fiub"
        name = None
        if is_data and growth.chance(bound * (1.0 if number == 0 else 0.3)):
            name = fitted(growth, _recent(growth), array.shape, array.dtype)
        if name is None:
            steer = growth.keep if case.op in _UNCHECKED else partial(parameter, growth)
            name = steer(array) if number in case.parameters else _data(growth, array, number)
        operands.append(name)
    used = (case.position, *case.further)
    wanted = tuple(n in used for n in range(max(used) + 1))
    return growth.call(Call(case.op, tuple(operands), attributes_of(case.attributes), case.domain, wanted))


def _data(growth: Growth, array: Array, number: int) -> str:
    if number == 0 and growth.chance(0.6):
        return growth.give(array)
    return weight(growth, array)


def _finished(growth: Growth, kept: list[str], name: str) -> Sample:
    read = {operand for node in growth.nodes for operand in node.input}
    read |= {n for node in growth.nodes for a in node.attribute if a.HasField("g") for inner in a.g.node for n in inner.input}
    made = [value for node in growth.nodes for value in node.output if value]
    leaves = [value for value in made if value not in read]
    chosen = leaves if growth.chance(0.6) else leaves[-growth.number(1, 2) :]
    outputs = [*chosen, *(value for value in made if value not in chosen and growth.chance(0.06))]
    if kept and not _reaches(growth, kept, outputs):
        outputs += kept[:1]
    model = growth.finish(list(dict.fromkeys(outputs)))
    feeds = {value.name: growth.inputs[value.name] for value in model.graph.input}
    return Sample(name, model.SerializeToString(), feeds)


def _reaches(growth: Growth, values: list[str], outputs: list[str]) -> bool:
    """Whether the outputs depend on some of the values."""
    needed = set(outputs)
    for node in reversed(growth.nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
    return not needed.isdisjoint(values)
