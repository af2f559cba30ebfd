"""Running a schedule, one request at a time: the same code drives agents, the coordinator and `simulate`.

An `Execution` walks through the steps until it needs a message that has not arrived. It never waits, opens nothing and starts nothing:
whoever owns the sockets calls `deliver` when a message came and `advance` to go on. Compute and sending are given to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bbgrap.errors import ExecutionError
from bbgrap.graph.types import Array
from bbgrap.runtime.schedule import (
    Box,
    LocalJoin,
    LocalPart,
    LocalReceive,
    LocalRun,
    LocalSend,
    Schedule,
    extract,
    joined_shape,
    last_reads,
    place,
)

Kernel = Callable[[int, Sequence[Array]], Sequence[Array]]
"""Runs segment number n on its inputs."""

SendParts = Callable[[LocalSend, Mapping[int, Array]], None]
"""Sends the parts of a step out of these arrays, which are those of the buffers by number; nothing changes them any more."""


class SlicePlan:
    """How regions are taken out of buffers, buffers put together, and when they are let go.

    Here a buffer is the array that its shape says.

    Invariants: what `part` returns is the array that the part's shape says, whatever buffers are; it may be a view.
    """

    def __init__(self, schedule: Schedule) -> None:
        """Work for this schedule, any number of requests."""
        self.schedule = schedule
        self.freed = last_reads(schedule)

    def sent(self, step: LocalSend, arrays: Mapping[int, Array]) -> list[Array]:
        """Return the parts of a message; `arrays` are those of the buffers, by number."""
        return [self.part(part, arrays[part.buffer]) for part in step.parts]

    def part(self, part: LocalPart, array: Array) -> Array:
        """Return a region of a buffer's array."""
        return extract(array, part.box)

    def join(self, step: LocalJoin, arrays: Mapping[int, Array]) -> Array:
        """Return the array of a `LocalJoin`'s output; `arrays` are those of the buffers, by number."""
        if len(step.pieces) == 1 and step.pieces[0][1] is None:
            part = step.pieces[0][0]
            return self.part(part, arrays[part.buffer])
        joined = self.empty(step, arrays)
        for part, box in step.pieces:
            self.place(step, joined, box, part, arrays[part.buffer])
        return joined

    def empty(self, step: LocalJoin, arrays: Mapping[int, Array]) -> Array:
        """Return the array of a `LocalJoin`'s output before anything is there; its size, if it may have any, the pieces tell."""
        spec = self.schedule.buffers[step.output]
        if spec.shape is not None:
            return np.empty(spec.shape, spec.dtype.numpy)
        pieces = [(box, self.part(part, arrays[part.buffer])) for part, box in step.pieces if box is not None]
        if len(pieces) < len(step.pieces):
            raise ExecutionError(f"device {self.schedule.device}: '{spec.name}' has no shape to join pieces in")
        return np.empty(joined_shape(pieces), spec.dtype.numpy)

    def place(self, step: LocalJoin, joined: Array, box: Box | None, part: LocalPart, array: Array) -> None:
        """Copy one piece of a `LocalJoin` to where it belongs."""
        place(joined, box, self.part(part, array))


class Execution:
    """One request on one device.

    Invariants: `position` only grows; a message is delivered at most once; after the last step `finished` is true.
    """

    def __init__(self, schedule: Schedule, feeds: Sequence[Array] = (), slices: SlicePlan | None = None) -> None:
        """Start before the first step, with the feed buffers filled; `slices` of the schedule serve many requests."""
        if len(feeds) != len(schedule.feeds):
            raise ExecutionError(f"device {schedule.device}: expected {len(schedule.feeds)} feeds, got {len(feeds)}")
        self.schedule = schedule
        self.position = 0
        self.slices = slices or SlicePlan(schedule)
        self._buffers: dict[int, Array] = dict(zip(schedule.feeds, feeds, strict=True))
        self._mail: dict[int, Sequence[Array]] = {}

    @property
    def finished(self) -> bool:
        """Whether every step is done."""
        return self.position == len(self.schedule.steps)

    @property
    def awaited(self) -> LocalReceive | None:
        """The receive step the execution stands at, if it stands at one."""
        step = None if self.finished else self.schedule.steps[self.position]
        return step if isinstance(step, LocalReceive) else None

    def deliver(self, message: int, parts: Sequence[Array]) -> None:
        """Hand over a message that arrived; early ones wait here, a repeated one is ignored."""
        self._mail.setdefault(message, parts)

    def advance(self, kernel: Kernel, send: SendParts, *, limit: int | None = None) -> bool:
        """Do steps until one needs a message that is not there, the end, or `limit` steps; return whether the end is reached."""
        steps = self.schedule.steps
        stop = len(steps) if limit is None else min(len(steps), self.position + limit)
        while self.position < stop:
            step = steps[self.position]
            match step:
                case LocalReceive():
                    if step.message not in self._mail:
                        return False
                    self._fill(step.buffers, self._mail.pop(step.message))
                case LocalRun():
                    self._fill(step.outputs, kernel(step.segment, [self._buffers[b] for b in step.inputs]))
                case LocalJoin():
                    self._buffers[step.output] = self.slices.join(step, self._buffers)
                case LocalSend():
                    send(step, self._buffers)
            for buffer in self.slices.freed[self.position]:
                self._buffers.pop(buffer, None)
            self.position += 1
        return self.finished

    def results(self) -> list[Array]:
        """Return the result buffers, in order; only once finished."""
        return [self._buffers[b] for b in self.schedule.results]

    def _fill(self, buffers: Sequence[int], arrays: Sequence[Array]) -> None:
        self._buffers.update(zip(buffers, arrays, strict=True))
