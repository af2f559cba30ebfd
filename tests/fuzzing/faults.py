"""Faults to plant in what is deployed, by which the judge is judged: each is what a wrong rule or pass would make."""

from __future__ import annotations

from dataclasses import replace

import onnx

from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts, SegmentModel
from bbgrap.runtime.schedule import Box, LocalPart, LocalSend, LocalStep


def shift_pads(artifacts: Artifacts) -> Artifacts:
    """The first device pads its last convolution at the bottom instead of the top: the shape stays, the rows are off by one."""
    device = artifacts.devices[0]
    segment = device.segments[-1]
    model = onnx.load_from_string(segment.skeleton)
    node = [node for node in model.graph.node if node.op_type == "Conv"][-1]
    pads = next(attribute for attribute in node.attribute if attribute.name == "pads").ints
    assert pads[0] != pads[2], "the first of several devices pads at the top only"
    pads[0], pads[2] = pads[2], pads[0]
    return _with_segment(artifacts, 0, segment, model)


def send_the_row_before(artifacts: Artifacts) -> Artifacts:
    """The first device sends its neighbour the row before the one that is needed."""
    device = artifacts.devices[0]
    steps = tuple(_earlier(step, artifacts.host.device) for step in device.schedule.steps)
    assert steps != device.schedule.steps, "the first device sends a row of its output"
    changed = replace(device, schedule=replace(device.schedule, steps=steps))
    return replace(artifacts, devices=(changed, *artifacts.devices[1:]))


def _earlier(step: LocalStep, host: int) -> LocalStep:
    if not isinstance(step, LocalSend) or step.destination == host:
        return step
    return replace(step, parts=tuple(_one_row_up(part) for part in step.parts))


def _one_row_up(part: LocalPart) -> LocalPart:
    if part.box is None:
        return part
    rows = tuple((start - 1, stop - 1) for start, stop in part.box[2])
    box: Box = (*part.box[:2], rows, *part.box[3:])
    return replace(part, box=box)


def lose_a_partial_sum(artifacts: Artifacts) -> Artifacts:
    """The first device keeps its own sum over input channels and adds nobody else's."""
    segment = artifacts.devices[0].segments[-1]
    model = onnx.load_from_string(segment.skeleton)
    node = next(node for node in model.graph.node if node.op_type in ("Add", "Sum"))
    node.op_type = "Identity"
    del node.input[1:]
    return _with_segment(artifacts, 0, segment, model)


def _with_segment(artifacts: Artifacts, number: int, segment: SegmentModel, model: onnx.ModelProto) -> Artifacts:
    changed = replace(segment, skeleton=model.SerializeToString())
    device = artifacts.devices[number]
    segments = tuple(changed if one is segment else one for one in device.segments)
    new = DeviceArtifacts(device.schedule, segments)
    return replace(artifacts, devices=(*artifacts.devices[:number], new, *artifacts.devices[number + 1 :]))
