"""Running a schedule, one request at a time: the same code drives agents, the coordinator and `simulate`.

An `Execution` walks through the steps until it needs a message that has not arrived. It never waits, opens nothing and starts nothing:
whoever owns the sockets calls `deliver` when a message came and `advance` to go on. Compute and sending are given to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter

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
    index_of,
    joined_shape,
    last_reads,
    place,
)

Kernel = Callable[[int, Sequence[Array]], Sequence[Array]]
"""Runs segment number n on its inputs."""

SendParts = Callable[[LocalSend, Mapping[int, Array]], None]
"""Sends the parts of a step out of these arrays, which are those of the buffers by number; nothing changes them any more."""

Take = Callable[[Array], Array]
"""Takes a region out of a buffer's array; it may return a view."""

Copy = Callable[[Array, Array], None]
"""Copies a region of its second argument, a buffer's array, to where it belongs in the first one, a joined array."""


class SlicePlan:
    """How regions are taken out of buffers, buffers put together, and when they are let go: all that is known before any request.

    Here a buffer is the array that its shape says.

    Invariants: what `part` returns is the array that the part's shape says, whatever buffers are; it may be a view.
    """

    def __init__(self, schedule: Schedule) -> None:
        """Work for this schedule, any number of requests."""
        self.schedule = schedule
        self.freed = last_reads(schedule)
        self.ahead = _joins_ahead(schedule)
        self._sent: dict[int, list[tuple[int, Take]]] = {}
        self._pieces: dict[int, list[tuple[int, Copy]]] = {}

    def sent(self, step: LocalSend, arrays: Mapping[int, Array]) -> list[Array]:
        """Return the parts of a message; `arrays` are those of the buffers, by number."""
        takes = self._sent.get(step.message)
        if takes is None:
            takes = self._sent[step.message] = [(part.buffer, self.taker(part)) for part in step.parts]
        return [take(arrays[buffer]) for buffer, take in takes]

    def taker(self, part: LocalPart) -> Take:
        """Return a function that does what `part` does for one region, with all that can be known before prepared."""
        index = index_of(part.box)
        return partial(self.part, part) if index is None else itemgetter(index)

    def part(self, part: LocalPart, array: Array) -> Array:
        """Return a region of a buffer's array."""
        return extract(array, part.box)

    def join(self, step: LocalJoin, arrays: Mapping[int, Array]) -> Array:
        """Return the array of a `LocalJoin`'s output; `arrays` are those of the buffers, by number."""
        if _is_view(step):
            part = step.pieces[0][0]
            return self.part(part, arrays[part.buffer])
        joined = self._open(step, arrays) if self.schedule.buffers[step.output].shape is None else self.begin(step)
        for buffer, copy in self.pieces(step):
            copy(joined, arrays[buffer])
        return joined

    def _open(self, step: LocalJoin, arrays: Mapping[int, Array]) -> Array:
        """Return the array of an output of any size, which the pieces tell."""
        spec = self.schedule.buffers[step.output]
        pieces = [(box, self.part(part, arrays[part.buffer])) for part, box in step.pieces if box is not None]
        if len(pieces) < len(step.pieces):
            raise ExecutionError(f"device {self.schedule.device}: '{spec.name}' has no shape to join pieces in")
        return np.empty(joined_shape(pieces), spec.dtype.numpy)

    def begin(self, step: LocalJoin) -> Array:
        """Return the array of a `LocalJoin`'s output before anything was copied there."""
        spec = self.schedule.buffers[step.output]
        if spec.shape is None:
            raise ExecutionError(f"device {self.schedule.device}: '{spec.name}' has no shape to join pieces in")
        return np.empty(spec.shape, spec.dtype.numpy)

    def pieces(self, step: LocalJoin) -> list[tuple[int, Copy]]:
        """Return the buffers that a `LocalJoin` reads, and what copies its pieces of them."""
        pieces = self._pieces.get(step.output)
        if pieces is None:
            pieces = self._pieces[step.output] = [(part.buffer, self.copier(step, part, box)) for part, box in step.pieces]
        return pieces

    def copier(self, step: LocalJoin, part: LocalPart, box: Box | None) -> Copy:
        """Return what copies one piece of a `LocalJoin`."""
        take, index = self.taker(part), index_of(box)

        def copy(joined: Array, array: Array) -> None:
            if index is None:
                place(joined, box, take(array))
            else:
                joined[index] = take(array)

        return copy


def _is_view(step: LocalJoin) -> bool:
    return len(step.pieces) == 1 and step.pieces[0][1] is None


def _joins_ahead(schedule: Schedule) -> Sequence[tuple[LocalJoin, ...]]:
    """For each step, the joins between it and the next `LocalRun` that copy something: who waits at a `LocalReceive` can begin them.

    None without such a `LocalRun`: the host's processor may be that of an agent, which computes while the host waits.
    """
    ahead: list[tuple[LocalJoin, ...]] = []
    joins: tuple[LocalJoin, ...] | None = None
    for step in reversed(schedule.steps):
        if isinstance(step, LocalRun):
            joins = ()
        elif isinstance(step, LocalJoin) and joins is not None and not _is_view(step):
            joins = (step, *joins)
        ahead.append(joins or ())
    return ahead[::-1]


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
        self._begun: dict[int, tuple[Array, list[tuple[int, Copy]]]] = {}
        """Joined arrays that are not complete, and what is missing, by the buffer that they will be."""

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
                        self._join_ahead()
                        return False
                    self._fill(step.buffers, self._mail.pop(step.message))
                case LocalRun():
                    self._fill(step.outputs, kernel(step.segment, [self._buffers[b] for b in step.inputs]))
                case LocalJoin():
                    self._buffers[step.output] = self._joined(step)
                case LocalSend():
                    send(step, self._buffers)
            for buffer in self.slices.freed[self.position]:
                self._buffers.pop(buffer, None)
            self.position += 1
        return self.finished

    def results(self) -> list[Array]:
        """Return the result buffers, in order; only once finished."""
        return [self._buffers[b] for b in self.schedule.results]

    def _join_ahead(self) -> None:
        """Copy what is there of the joins that come next: to wait for a message is the time for it."""
        for step in self.slices.ahead[self.position]:
            begun = self._begun.get(step.output)
            missing = self.slices.pieces(step) if begun is None else begun[1]
            there = [piece for piece in missing if piece[0] in self._buffers]
            if there:
                joined = self.slices.begin(step) if begun is None else begun[0]
                self._begun[step.output] = joined, [piece for piece in missing if piece[0] not in self._buffers]
                for buffer, copy in there:
                    copy(joined, self._buffers[buffer])

    def _joined(self, step: LocalJoin) -> Array:
        begun = self._begun.pop(step.output, None)
        if begun is None:
            return self.slices.join(step, self._buffers)
        joined, missing = begun
        for buffer, copy in missing:
            copy(joined, self._buffers[buffer])
        return joined

    def _fill(self, buffers: Sequence[int], arrays: Sequence[Array]) -> None:
        self._buffers.update(zip(buffers, arrays, strict=True))
