"""The pass that lets a device begin before all of its input is there.

A device on the far side of a slow way gets its part of the model's input late. In chunks it computes the first layers of what came
first while the rest is on its way:

    at once          m0 ─────────────────────►│ a b c d
    in chunks   m0 ─────►│ m1 ─────►│ m2 ─────►│
                              │ a b      │ a b      │ a b │ c d

The chunks are parts of one buffer (here what `b` makes), along one axis: images of a batch, or rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from bbgrap.compiler.memory import weight_bytes
from bbgrap.compiler.passes.chunks import Derived, Narrow, Prefix, derive, made_in_parts, prefixes_of
from bbgrap.compiler.predict import Predictor
from bbgrap.costmodel.messages import MESSAGE_S
from bbgrap.program.steps import Assemble, Compute, DeviceProgram, Program, Receive
from bbgrap.shapemap import Interval, IntervalSet, ShapeMap

LEAST_S = 10 * MESSAGE_S
"""An input that is there sooner is waited for: a chunk costs a message and a segment. Chosen."""

MOST = 8
"""Chunks. Chosen: with more, what is waited for gets less by little."""

LONG_ENOUGH = 4.0
"""Layers that take so many times as long as the input is on its way hide it as well as longer stretches would."""

LONGER = 1.1
"""How many times as long as the last stretch the next one that is looked at takes: so few of a thousand small layers are. Chosen."""

WORTH = 0.9
"""What of the time until the first layers are done must be left, at most, as links are not known better than that. Chosen."""

UNREAD_BYTES = 3 << 20
"""That a system takes in for a receiver who computes: half of what Linux gives a connection at most, usually (decision 23)."""

REPEATED_BYTES = 16 << 20
"""Of weights that more than one chunk uses, a session each has its own copy: so many bytes of them at most. Chosen."""


@dataclass(frozen=True, slots=True)
class ChunkInputs:
    """Send devices their inputs in chunks where that is predicted to shorten the request. After `fuse_segments`.

    1. Only agents that begin with one message from the host, over a way that takes a while.
    2. The stretch of first operations ends at a buffer that alone is read by what follows. It is cut along the axis, and into the parts,
       with which it is predicted to be done first; parts that overlap on the way are computed twice there.
    3. Nothing is sent twice, so no byte is added. Not with int8, whose scales belong to messages.
    """

    predictor: Predictor
    narrow: Narrow

    def __call__(self, program: Program) -> Program:
        """Return the program with inputs in chunks where that is faster."""
        if program.transfers == "int8":
            return program
        for device in program.devices[: program.host]:
            program = self._faster(program, device)
        return program

    def _faster(self, program: Program, device: DeviceProgram) -> Program:
        way = self._way(program, device)
        if way is None:
            return program
        found = min(self._choices(program, device, way), key=lambda choice: choice.seconds, default=None)
        if found is None:
            return program
        whole = device.buffers[found.prefix.target].region
        parts = [_part(whole, found.axis, *bounds) for bounds in pairwise(accumulate(found.sizes, initial=0))]
        changed = made_in_parts(program, device, found.prefix, parts, self.narrow)
        if changed is None:
            return program
        before, after = (self.predictor.timeline(p).total_s for p in (program, changed))
        return changed if after < before else program

    def _way(self, program: Program, device: DeviceProgram) -> _Way | None:
        """Return what brings a device's input, if that takes a while."""
        match device.steps[:2]:
            case (Receive(source=source, message=message), Compute()) if source == program.host:
                link = self.predictor.cluster.link(source, device.device)
                size = sum(program.part_bytes(source, program.senders[message][1]))
                network = self.predictor.network
                if network.is_memory(source, device.device) or size < LEAST_S * link.bandwidth_bytes_per_s:
                    return None
                received_s = network.handling(device.device, source, device.device, 0)
                each = received_s + self.predictor.segment_seconds(program, device, Compute(()))
                return _Way(size, size / link.bandwidth_bytes_per_s, each)
        return None

    def _choices(self, program: Program, device: DeviceProgram, way: _Way) -> Iterator[_Choice]:
        for prefix in self._prefixes(program, device, way):
            whole = device.buffers[prefix.target].region
            all_at_once = Derived(prefix.ops, {b: device.buffers[b].region for b in prefix.receive.buffers})
            join_s = self.predictor.op_seconds(program, device, Assemble(prefix.target, ()))
            weights = weight_bytes(program.graph, prefix.ops)
            most = min(MOST, 1 + REPEATED_BYTES // weights if weights else MOST)
            for axis, extent in _axes(whole):
                least = -(-extent // MOST)
                first = derive(device, prefix.ops, prefix.target, _part(whole, axis, 0, least), self.narrow)
                if first is None:
                    continue
                (some_bytes, some_s), (all_bytes, all_s) = (self._costs(program, device, prefix, of) for of in (first, all_at_once))
                stretch = _Stretch(
                    way, extent, _Line.through((least, some_bytes), (extent, all_bytes)), _Line.through((least, some_s), (extent, all_s))
                )
                for sizes in stretch.divisions(most):
                    seconds = stretch.seconds(sizes) + join_s
                    if seconds < WORTH * stretch.seconds((extent,)):
                        yield _Choice(prefix, axis, sizes, seconds - all_s)

    def _prefixes(self, program: Program, device: DeviceProgram, way: _Way) -> Iterator[Prefix]:
        """Yield the stretches that a device's first segment begins with, as long as they are long enough and not too long."""
        counted, took, least = 0, 0.0, way.seconds / LONG_ENOUGH
        for prefix in prefixes_of(program, device):
            took += sum(self.predictor.op_seconds(program, device, op) for op in prefix.ops[counted:])
            counted = len(prefix.ops)
            if took > LONG_ENOUGH * way.seconds:
                return
            if took > least:
                yield prefix
                least = LONGER * took

    def _costs(self, program: Program, device: DeviceProgram, prefix: Prefix, of: Derived) -> tuple[float, float]:
        """Return the bytes that a part of the target needs of the input, and the seconds that its operations take."""
        values = ((device.buffers[b].value, of.regions[b]) for b in prefix.receive.buffers if b in of.regions)
        size = sum(program.region_bytes(value, region, program.wire(program.host, device.device)) for value, region in values)
        return size, sum(self.predictor.op_seconds(program, device, op) for op in of.ops)


@dataclass(frozen=True, slots=True)
class _Way:
    """How a device's input comes: its bytes, how long they take, and what every message with a segment costs besides."""

    size: int
    seconds: float
    each_s: float


@dataclass(frozen=True, slots=True)
class _Choice:
    """A stretch and its chunks, positions along an axis each; `seconds` until it is done, less those of its operations at once."""

    prefix: Prefix
    axis: int
    sizes: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Line:
    """A quantity that grows with the positions of a chunk."""

    fixed: float
    each: float

    @classmethod
    def through(cls, one: tuple[int, float], other: tuple[int, float]) -> _Line:
        each = (other[1] - one[1]) / (other[0] - one[0])
        return cls(one[1] - each * one[0], each)

    def at(self, count: int) -> float:
        return self.fixed + self.each * count


@dataclass(frozen=True, slots=True)
class _Progress:
    """Positions that are done, the bytes they needed, and when that was; the way is late by what it had to wait for its receiver."""

    come: int = 0
    read: float = 0.0
    late_s: float = 0.0
    done_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What chunks of a stretch cost by their positions along an axis: the bytes that must have come, and seconds of operations."""

    way: _Way
    extent: int
    bytes: _Line
    work: _Line

    def seconds(self, sizes: Sequence[int]) -> float:
        """Return when the last of these chunks is done."""
        progress = _Progress()
        for size in sizes:
            progress = self._after(progress, size)
        return progress.done_s

    def _after(self, before: _Progress, size: int) -> _Progress:
        """Return where things stand once another chunk is done; while one is computed, the system takes in some of the next ones."""
        rate = self.way.size / self.way.seconds
        late_s = max(before.late_s, before.done_s - (before.read + UNREAD_BYTES) / rate)
        read = min(self.bytes.at(before.come + size), self.way.size)
        there_s = max(before.done_s, read / rate + late_s)
        return _Progress(before.come + size, read, late_s, there_s + self.way.each_s + self.work.at(size))

    def divisions(self, most: int) -> Iterator[tuple[int, ...]]:
        """Yield divisions of the axis into up to so many equal parts."""
        for count in range(2, min(most, self.extent) + 1):
            bounds = [self.extent * number // count for number in range(count + 1)]
            yield tuple(b - a for a, b in pairwise(bounds))


def _axes(region: ShapeMap) -> Iterator[tuple[int, int]]:
    """Yield the axes that a region may be divided along, with its extents: the first one if there are images, else all others."""
    if region.rank and region.shape[0] > 1:
        yield from [(0, region.shape[0])] if len(region.axes[0].ranges) == 1 else []
        return
    yield from (
        (axis, region.shape[axis]) for axis in range(1, region.rank) if region.shape[axis] > 1 and len(region.axes[axis].ranges) == 1
    )


def _part(region: ShapeMap, axis: int, start: int, stop: int) -> ShapeMap:
    """Return the positions `[start, stop)` of a region along an axis of one range."""
    first = region.axes[axis].hull.start
    return region.replace(axis, IntervalSet.of(Interval(first + start, first + stop)))
