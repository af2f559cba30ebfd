"""What one machine does for one request, in its own local coordinates: the form of a program that agents receive and run.

A schedule is a list of steps over numbered buffers. It knows nothing of the model: a segment is a number, a region is a slice of a
local array. The last device number, `host`, is the coordinator: it computes nothing, holds the model's inputs and needs its outputs,
so its schedule only sends, receives and joins.

    device 0:  Receive m0 <- host | Run s0 | Send m3 -> 1 | Receive m4 <- 1 | Run s1 | Send m5 -> host
    device 1:  Receive m1 <- host | Run s0 | Send m4 -> 0 | Receive m3 <- 0 | Run s1 | Send m6 -> host
    host:      Send m0 -> 0 | Send m1 -> 1 | Receive m5 <- 0 | Receive m6 <- 1 | Join output

Laws (`check_schedule`): every buffer is written once, before it is read; a message number is used by one `LocalSend` of one device and
one `LocalReceive` of another; what goes to the host stays exact, and dictionaries come from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

import numpy as np

from bbgrap.graph.types import Array, DType
from bbgrap.program.encodings import WireType

Ranges = tuple[tuple[int, int], ...]
"""Half-open local ranges along one axis, ascending."""

Box = tuple[Ranges, ...]
"""A region of a local array: ranges per axis, axis 0 first."""

OPEN = 1 << 62
"""Where a range ends that has all of an axis of any size."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One local tensor: a readable name for traces, element type, and shape in elements (None: only the run tells)."""

    name: str
    dtype: DType
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class LocalPart:
    """A region of a buffer; `box=None` is all of it."""

    buffer: int
    box: Box | None


@dataclass(frozen=True, slots=True)
class LocalReceive:
    """Wait for message `message` from device `source`; its parts fill `buffers`, in order; `wire` is that of its `LocalSend`."""

    message: int
    source: int
    buffers: tuple[int, ...]
    wire: WireType = "exact"


@dataclass(frozen=True, slots=True)
class LocalRun:
    """Run stand-alone model number `segment` of this device: its inputs are `inputs`, its outputs fill `outputs`."""

    segment: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LocalJoin:
    """Fill buffer `output` by copying each part into its box (local coordinates of `output`); the boxes cover it."""

    output: int
    pieces: tuple[tuple[LocalPart, Box | None], ...]


@dataclass(frozen=True, slots=True)
class LocalSend:
    """Send the parts, in order, as message `message` to device `destination`; never waits for the receiver.

    `wire` is what 32-bit floats become on the way (`bbgrap.program.encodings`).
    """

    message: int
    destination: int
    parts: tuple[LocalPart, ...]
    wire: WireType = "exact"


LocalStep = LocalReceive | LocalRun | LocalJoin | LocalSend


@dataclass(frozen=True, slots=True)
class Schedule:
    """All steps of one device for one request.

    `feeds` are the buffers filled before the first step (the model's inputs, on the host) and `results` those read after the last one
    (the model's outputs, on the host); both in the model's order.
    """

    device: int
    host: int
    buffers: tuple[BufferSpec, ...]
    steps: tuple[LocalStep, ...]
    feeds: tuple[int, ...] = ()
    results: tuple[int, ...] = ()


def reads_of(step: LocalStep) -> tuple[int, ...]:
    """Return the buffers a step reads."""
    match step:
        case LocalReceive():
            return ()
        case LocalRun():
            return step.inputs
        case LocalJoin():
            return tuple(part.buffer for part, _ in step.pieces)
        case LocalSend():
            return tuple(part.buffer for part in step.parts)


def writes_of(step: LocalStep) -> tuple[int, ...]:
    """Return the buffers a step fills."""
    match step:
        case LocalReceive():
            return step.buffers
        case LocalRun():
            return step.outputs
        case LocalJoin():
            return (step.output,)
        case LocalSend():
            return ()


def check_schedule(schedule: Schedule) -> tuple[str, ...]:
    """List every breach of the laws within one schedule; empty if it keeps them. For schedules that come from elsewhere."""
    faults: list[str] = []
    count = len(schedule.buffers)
    written = set(schedule.feeds)
    messages: set[tuple[str, int]] = set()
    for number, step in enumerate(schedule.steps):
        label = f"device {schedule.device}, step {number} ({type(step).__name__})"
        outside = [b for b in (*reads_of(step), *writes_of(step)) if not 0 <= b < count]
        if outside:
            faults.append(f"{label}: buffers {outside} do not exist, there are {count}")
            continue
        faults += [f"{label}: reads buffer {b} before it is filled" for b in reads_of(step) if b not in written]
        faults += [f"{label}: fills buffer {b} a second time" for b in writes_of(step) if b in written]
        written.update(writes_of(step))
        if isinstance(step, LocalReceive | LocalSend):
            key = (type(step).__name__, step.message)
            peer = step.source if isinstance(step, LocalReceive) else step.destination
            if key in messages:
                faults.append(f"{label}: message {step.message} is used twice")
            if step.wire != "exact" and schedule.host == (schedule.device if isinstance(step, LocalReceive) else step.destination):
                faults.append(f"{label}: message {step.message} goes to the host as {step.wire}, expected exact")
            source = peer if isinstance(step, LocalReceive) else schedule.device
            if step.wire == "dictionary" and source != schedule.host:
                faults.append(f"{label}: message {step.message} comes from device {source} as dictionary, expected that of the host only")
            if peer == schedule.device or not 0 <= peer <= schedule.host:
                faults.append(f"{label}: device {peer} is no peer")
            messages.add(key)
        faults += [f"{label}: {fault}" for fault in _box_faults(schedule, step)]
    faults += [f"device {schedule.device}: result buffer {b} is never filled" for b in schedule.results if b not in written]
    return tuple(faults)


def _box_faults(schedule: Schedule, step: LocalStep) -> list[str]:
    boxed: list[tuple[int, Box | None]] = []
    if isinstance(step, LocalSend):
        boxed = [(part.buffer, part.box) for part in step.parts]
    elif isinstance(step, LocalJoin):
        boxed = [(part.buffer, part.box) for part, _ in step.pieces] + [(step.output, box) for _, box in step.pieces]
    faults = []
    for buffer, box in boxed:
        shape = schedule.buffers[buffer].shape
        if box is None:
            continue
        if shape is None and is_open(box) and all(0 <= a < b for ranges in box for a, b in ranges):
            continue
        if shape is None or len(box) != len(shape):
            faults.append(f"buffer {buffer} of shape {shape} has no region {box}")
        elif any(not 0 <= a < b <= extent for ranges, extent in zip(box, shape, strict=True) for a, b in ranges):
            faults.append(f"buffer {buffer} of shape {shape}: region {box} lies outside")
    return faults


def box_shape(box: Box) -> tuple[int, ...]:
    """Return the extents of the dense tensor that a box cuts out."""
    return tuple(sum(stop - start for start, stop in ranges) for ranges in box)


def is_open(box: Box) -> bool:
    """Whether a region has all of an axis of any size."""
    return any(ranges == ((0, OPEN),) for ranges in box)


def _closed(box: Box, array: Array) -> Box:
    """Return a region with the sizes that an array has."""
    return tuple(((0, size),) if ranges == ((0, OPEN),) else ranges for ranges, size in zip(box, array.shape, strict=True))


def joined_shape(pieces: Sequence[tuple[Box, Array]]) -> tuple[int, ...]:
    """Return the shape that pieces make whose regions are open, each along the same axes."""
    axes = zip(*(box for box, _ in pieces), strict=True)
    return tuple(
        pieces[0][1].shape[axis] if of[0] == ((0, OPEN),) else max(stop for ranges in of for _, stop in ranges)
        for axis, of in enumerate(axes)
    )


def _index_of(box: Box | None) -> tuple[slice, ...] | None:
    """Return the index of a region with one range per axis in a local array; None for others."""
    if box is None or any(len(ranges) != 1 for ranges in box):
        return None
    return tuple(slice(*ranges[0]) for ranges in box)


def extract(array: Array, box: Box | None) -> Array:
    """Return a region of a local array: a view where every axis has one range, else a copy."""
    if box is None:
        return array
    index = _index_of(box)
    if index is not None:
        return array[index]
    box = _closed(box, array)
    region = np.empty(box_shape(box), array.dtype)
    for there, here in _slabs(box):
        region[here] = array[there]
    return region


def place(array: Array, box: Box | None, piece: Array) -> None:
    """Copy a piece into a region of a local array, in place."""
    if box is None:
        array[...] = piece
        return
    for there, here in _slabs(_closed(box, array)):
        array[there] = piece[here]


def _slabs(box: Box) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Yield, for every choice of one range per axis, where it lies in a tensor and in the dense tensor that the box cuts out of it."""
    axes = []
    for ranges in box:
        stops = accumulate(stop - start for start, stop in ranges)
        axes.append([(slice(start, stop), slice(end - (stop - start), end)) for (start, stop), end in zip(ranges, stops, strict=True)])
    for slab in product(*axes):
        yield tuple(there for there, _ in slab), tuple(here for _, here in slab)


def part_shape(spec: BufferSpec, part: LocalPart) -> tuple[int, ...] | None:
    """Return the shape of a part, or None where only the run tells."""
    if part.box is None:
        return spec.shape
    return None if is_open(part.box) else box_shape(part.box)


def last_reads(schedule: Schedule) -> Sequence[tuple[int, ...]]:
    """For each step, the buffers that nothing reads after it (and that are no results): they can be let go."""
    keep = set(schedule.results)
    freed: list[tuple[int, ...]] = []
    for step in reversed(schedule.steps):
        done = tuple(b for b in dict.fromkeys((*reads_of(step), *writes_of(step))) if b not in keep)
        keep.update(done)
        freed.append(done)
    return freed[::-1]


def reading_of(further: Schedule) -> tuple[Schedule, Schedule]:
    """Return what a device does that has the model whole and sends what its next request would begin with, and what the host does.

    `further` is the schedule of its further requests. Both ends know the number of the message by it. The device leaves the
    state as it was, as a further request leaves the next one.
    """
    specs = tuple(further.buffers[buffer] for buffer in further.feeds)
    all_of_them = tuple(range(len(specs)))
    message = 1 + max((step.message for step in further.steps if isinstance(step, LocalSend | LocalReceive)), default=0)
    send = LocalSend(message, further.host, tuple(LocalPart(buffer, None) for buffer in all_of_them))
    device = Schedule(further.device, further.host, specs, (send,), all_of_them, all_of_them)
    return device, Schedule(further.host, further.host, specs, (LocalReceive(message, further.device, all_of_them),), (), all_of_them)
