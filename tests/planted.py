"""Faults of a distributed run, planted one at a time in a compiled program, at seeded places.

A fault changes the program, a schedule, the bytes of a segment, a weight slice, or what arrives at a segment: whatever the real fault would
change. Nothing checks the laws of the changed program, so all of it runs as the real one would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from bbgrap.compiler.artifacts import Artifacts
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.graph import Array
from bbgrap.program.steps import Combine, Compute
from bbgrap.runtime.schedule import Box, LocalReceive, LocalRun, LocalSend, Schedule, reads_of
from tests.victim import Victim

Plant = Callable[[Victim, np.random.Generator], "list[Array] | None"]
"""Plants one fault and returns the answer; None if the program has no place for it."""


def _pick(random: np.random.Generator, places: Sequence[object]) -> int | None:
    return int(random.integers(len(places))) if places else None


def _received(victim: Victim) -> list[tuple[int, int, int]]:
    """Return device, segment and place of every input of a segment that came in a message and has something to lose."""
    found = []
    for number, device in enumerate(victim.artifacts.devices):
        arrived = {b for step in device.schedule.steps if isinstance(step, LocalReceive) for b in step.buffers}
        for step in device.schedule.steps:
            if isinstance(step, LocalRun):
                found += [
                    (number, step.segment, place)
                    for place, buffer in enumerate(step.inputs)
                    if buffer in arrived and any(extent > 1 for extent in device.schedule.buffers[buffer].shape or ())
                ]
    return found


def short_halo(victim: Victim, random: np.random.Generator) -> list[Array] | None:
    """The last or first line of what was received is missing: it is zero, or its neighbour's."""
    places = _received(victim)
    chosen = _pick(random, places)
    if chosen is None:
        return None
    first, by_zero, share = bool(random.integers(2)), bool(random.integers(2)), random.random()

    def shorten(array: Array) -> Array:
        axis = [axis for axis, extent in enumerate(array.shape) if extent > 1][int(share * sum(extent > 1 for extent in array.shape))]
        moved = np.moveaxis(array, axis, 0)
        line, neighbour = (0, 1) if first else (-1, -2)
        moved[line] = 0 if by_zero else moved[neighbour]
        return array

    return victim.with_input(*places[chosen], shorten)


def shifted_region(victim: Victim, random: np.random.Generator) -> list[Array] | None:
    """A message carries the region beside the right one."""
    places = [
        (number, at, part, axis, by)
        for number, schedule in enumerate(_schedules(victim.artifacts))
        for at, step in enumerate(schedule.steps)
        if isinstance(step, LocalSend)
        for part, sent in enumerate(step.parts)
        for axis, by in _room(schedule, sent.buffer, sent.box)
    ]
    chosen = _pick(random, places)
    if chosen is None:
        return None
    number, at, place, axis, by = places[chosen]
    schedule = _schedules(victim.artifacts)[number]
    step = schedule.steps[at]
    assert isinstance(step, LocalSend)
    box = step.parts[place].box
    assert box is not None
    moved = tuple(((r[0][0] + by, r[0][1] + by),) if n == axis else r for n, r in enumerate(box))
    parts = tuple(replace(part, box=moved) if n == place else part for n, part in enumerate(step.parts))
    return victim.run(_with_step(victim.artifacts, number, at, replace(step, parts=parts)))


def _room(schedule: Schedule, buffer: int, box: Box | None) -> list[tuple[int, int]]:
    """Return along which axes, and by how much, a region can be shifted within its buffer."""
    shape = schedule.buffers[buffer].shape
    if box is None or shape is None:
        return []
    single = [(axis, ranges[0], extent) for axis, (ranges, extent) in enumerate(zip(box, shape, strict=True)) if len(ranges) == 1]
    return [(axis, by) for axis, (start, stop), extent in single for by in (-1, 1) if start + by >= 0 and stop + by <= extent]


def _schedules(artifacts: Artifacts) -> list[Schedule]:
    return [*(device.schedule for device in artifacts.devices), artifacts.host]


def _with_step(artifacts: Artifacts, number: int, at: int, step: LocalSend | LocalReceive) -> Artifacts:
    schedule = _schedules(artifacts)[number]
    changed = replace(schedule, steps=(*schedule.steps[:at], step, *schedule.steps[at + 1 :]))
    if number == len(artifacts.devices):
        return replace(artifacts, host=changed)
    devices = tuple(replace(d, schedule=changed) if n == number else d for n, d in enumerate(artifacts.devices))
    return replace(artifacts, devices=devices)


def swapped_messages(victim: Victim, random: np.random.Generator) -> list[Array] | None:
    """Two received parts of one shape and type end in each other's buffers."""
    places = []
    for number, schedule in enumerate(_schedules(victim.artifacts)):
        parts = [(at, k, b) for at, s in enumerate(schedule.steps) if isinstance(s, LocalReceive) for k, b in enumerate(s.buffers)]
        specs = schedule.buffers
        places += [
            (number, one, two)
            for n, one in enumerate(parts)
            for two in parts[n + 1 :]
            if (specs[one[2]].shape, specs[one[2]].dtype) == (specs[two[2]].shape, specs[two[2]].dtype)
            and specs[one[2]].shape is not None
            and _used_after(schedule, one[0], two[0], (one[2], two[2]))
        ]
    chosen = _pick(random, places)
    if chosen is None:
        return None
    number, (at, place, buffer), (later, other_place, other) = places[chosen]
    artifacts = victim.artifacts
    for where, slot, value in ((at, place, other), (later, other_place, buffer)):
        step = _schedules(artifacts)[number].steps[where]
        assert isinstance(step, LocalReceive)
        artifacts = _with_step(artifacts, number, where, replace(step, buffers=(*step.buffers[:slot], value, *step.buffers[slot + 1 :])))
    return victim.run(artifacts)


def _used_after(schedule: Schedule, first: int, second: int, buffers: tuple[int, int]) -> bool:
    """Whether nothing between the two receptions reads one of the buffers: else the program would not run at all."""
    return not any(b in reads_of(step) for step in schedule.steps[first : second + 1] for b in buffers)


def stale_buffer(victim: Victim, random: np.random.Generator) -> list[Array] | None:
    """A segment is given what it was given in the request before."""
    places = _received(victim)
    chosen = _pick(random, places)
    if chosen is None:
        return None
    device, segment, place = places[chosen]
    old = victim.heard_before[device, segment][place]
    return victim.with_input(device, segment, place, lambda array: old if old.shape == array.shape else array)


def lost_partial_sum(victim: Victim, random: np.random.Generator) -> list[Array] | None:
    """One of the partial sums is left out."""
    return _recombined(victim, random, lambda inputs, k: inputs[:k] + inputs[k + 1 :])


def doubled_partial_sum(victim: Victim, random: np.random.Generator) -> list[Array] | None:
    """One of the partial sums is added twice."""
    return _recombined(victim, random, lambda inputs, k: (*inputs, inputs[k]))


def _recombined(
    victim: Victim, random: np.random.Generator, change: Callable[[tuple[int, ...], int], tuple[int, ...]]
) -> list[Array] | None:
    places = [
        (d.device, at, n, k)
        for d in victim.program.devices[: victim.program.host]
        for at, step in enumerate(d.steps)
        if isinstance(step, Compute)
        for n, op in enumerate(step.ops)
        if isinstance(op, Combine)
        for k in range(len(op.inputs))
    ]
    chosen = _pick(random, places)
    if chosen is None:
        return None
    number, at, n, k = places[chosen]
    device = victim.program.devices[number]
    step = device.steps[at]
    assert isinstance(step, Compute)
    op = step.ops[n]
    assert isinstance(op, Combine)
    ops = (*step.ops[:n], replace(op, inputs=change(op.inputs, k)), *step.ops[n + 1 :])
    changed = replace(device, steps=(*device.steps[:at], replace(step, ops=ops), *device.steps[at + 1 :]))
    harmed = replace(victim.program, devices=tuple(changed if d is device else d for d in victim.program.devices))
    artifacts = export(harmed)
    return simulate(artifacts, victim.feeds, local_kernels(artifacts))


def wrong_pad(victim: Victim, random: np.random.Generator) -> list[Array] | None:
    """A window's padding is on the other side, or one line from the beginning to the end."""
    places = []
    for number, segment, model in _segments(victim):
        for n, node in enumerate(model.graph.node):
            pads = next((a.ints for a in node.attribute if a.name == "pads"), [])
            half = len(pads) // 2
            places += [(number, segment, n, axis) for axis in range(half) if pads[axis] + pads[half + axis] > 0]
    chosen = _pick(random, places)
    if chosen is None:
        return None
    number, segment, n, axis = places[chosen]
    model = onnx.ModelProto.FromString(victim.artifacts.devices[number].segments[segment].skeleton)
    pads = next(a.ints for a in model.graph.node[n].attribute if a.name == "pads")
    begin, end = axis, axis + len(pads) // 2
    if pads[begin]:
        pads[begin], pads[end] = pads[begin] - 1, pads[end] + 1
    else:
        pads[begin], pads[end] = pads[begin] + 1, pads[end] - 1
    return _with_model(victim, number, segment, model)


def _segments(victim: Victim) -> list[tuple[int, int, onnx.ModelProto]]:
    return [
        (number, k, onnx.ModelProto.FromString(segment.skeleton))
        for number, device in enumerate(victim.artifacts.devices)
        for k, segment in enumerate(device.segments)
    ]


def _with_model(victim: Victim, number: int, segment: int, model: onnx.ModelProto) -> list[Array]:
    old = victim.artifacts.devices[number].segments[segment]
    return victim.with_segment(number, segment, replace(old, skeleton=model.SerializeToString()), victim.artifacts.weights)


def doubled_bias(victim: Victim, random: np.random.Generator) -> list[Array] | None:
    """The biases of a layer are counted twice."""
    return _reweighted(victim, random, _biases, lambda array: 2 * array)


def wrong_slice(victim: Victim, random: np.random.Generator) -> list[Array] | None:
    """A weight slice begins one element too late along one of its axes."""
    share = random.random()

    def shift(array: Array) -> Array:
        axes = [axis for axis, extent in enumerate(array.shape) if extent > 1]
        return np.roll(array, -1, axes[int(share * len(axes))])

    return _reweighted(victim, random, _kernels_of, shift)


_BIAS_PLACES = {"Conv": 2, "Gemm": 2, "LSTM": 3, "GRU": 3, "LayerNormalization": 2}


def _biases(model: onnx.ModelProto) -> list[str]:
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    places = [(node, _BIAS_PLACES.get(node.op_type)) for node in model.graph.node]
    found = [node.input[place] for node, place in places if place is not None and place < len(node.input)]
    added = [name for node in model.graph.node if node.op_type == "Add" for name in node.input if name in weights]
    return [name for name in (*found, *added) if name in weights and weights[name].data_type == onnx.TensorProto.FLOAT]


def _kernels_of(model: onnx.ModelProto) -> list[str]:
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    read = [
        name
        for node in model.graph.node
        if node.op_type in ("Conv", "Gemm", "MatMul", "LSTM", "GRU", "DequantizeLinear")
        for name in node.input[:3]
    ]
    return [name for name in read if name in weights and any(extent > 1 for extent in weights[name].dims)]


def _reweighted(
    victim: Victim, random: np.random.Generator, names: Callable[[onnx.ModelProto], list[str]], change: Callable[[Array], Array]
) -> list[Array] | None:
    places = [(number, segment, name) for number, segment, model in _segments(victim) for name in dict.fromkeys(names(model))]
    chosen = _pick(random, places)
    if chosen is None:
        return None
    number, segment, name = places[chosen]
    old = victim.artifacts.devices[number].segments[segment]
    if name in old.weights:
        digest = old.weights[name].digest
        changed = {**victim.artifacts.weights, "changed": change(victim.artifacts.weights[digest])}
        weights = {**old.weights, name: replace(old.weights[name], digest="changed")}
        return victim.with_segment(number, segment, replace(old, weights=weights), changed)
    model = onnx.ModelProto.FromString(old.skeleton)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), name))
    return _with_model(victim, number, segment, model)


FAULTS: Mapping[str, Plant] = {
    plant.__name__: plant
    for plant in (
        short_halo,
        shifted_region,
        wrong_pad,
        lost_partial_sum,
        doubled_partial_sum,
        stale_buffer,
        swapped_messages,
        doubled_bias,
        wrong_slice,
    )
}
