"""Running a schedule, one request at a time: the same code drives agents, the coordinator and `simulate`.

An `Execution` walks through the steps until it needs a message that has not arrived. It never waits, opens nothing and starts nothing:
whoever owns the sockets calls `deliver` when a message came and `advance` to go on. Compute and sending are given to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bbgrap.errors import ExecutionError
from bbgrap.graph.types import Array
from bbgrap.program.schedule import Join, Part, Receive, Run, Schedule, Send, extract, last_reads, place

Kernel = Callable[[int, Sequence[Array]], Sequence[Array]]
"""Runs segment number n on its inputs."""

Outbox = Callable[[int, int, Sequence[Array]], None]
"""Sends message number m to a device; the parts may be views, and nothing changes them any more."""


Take = Callable[[Array], Array]
"""Takes a region out of a buffer's array; it may return a view."""

Empty = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Makes an array that is not filled yet."""


class Copies:
    """How regions are taken out of buffers, buffers put together, and when they are let go: all that is known before any request.

    Here a buffer is the array that its shape says.

    Invariants: what `part` returns is the array that the part's shape says, whatever buffers are; it may be a view.
    """

    def __init__(self, schedule: Schedule) -> None:
        """Work for this schedule, any number of requests."""
        self.schedule = schedule
        self.freed = last_reads(schedule)
        self._sent: dict[int, list[tuple[int, Take]]] = {}

    def sent(self, step: Send, arrays: Mapping[int, Array]) -> list[Array]:
        """Return the parts of a message; `arrays` are those of the buffers, by number."""
        takes = self._sent.get(step.message)
        if takes is None:
            takes = self._sent[step.message] = [(part.buffer, self.taker(part)) for part in step.parts]
        return [take(arrays[buffer]) for buffer, take in takes]

    def taker(self, part: Part) -> Take:
        """Return a function that does what `part` does for one region, with all that can be known before prepared."""
        return partial(self.part, part)

    def part(self, part: Part, array: Array) -> Array:
        """Return a region of a buffer's array."""
        return extract(array, part.box)

    def join(self, step: Join, arrays: Mapping[int, Array], empty: Empty = np.empty) -> Array:
        """Return the array of a `Join`'s output; `arrays` are those of the buffers, by number, and `empty` makes a new one."""
        if len(step.pieces) == 1 and step.pieces[0][1] is None:
            part = step.pieces[0][0]
            return self.part(part, arrays[part.buffer])
        spec = self.schedule.buffers[step.output]
        if spec.shape is None:
            raise ExecutionError(f"device {self.schedule.device}: '{spec.name}' has no shape to join pieces in")
        joined = empty(spec.shape, spec.dtype.numpy)
        for part, box in step.pieces:
            place(joined, box, self.part(part, arrays[part.buffer]))
        return joined


class Execution:
    """One request on one device.

    Invariants: `position` only grows; a message is delivered at most once; after the last step `finished` is true.
    """

    def __init__(self, schedule: Schedule, feeds: Sequence[Array] = (), copies: Copies | None = None, empty: Empty = np.empty) -> None:
        """Start before the first step, with the feed buffers filled.

        `copies` of the schedule serve many requests; `empty` makes the arrays in which pieces are joined.
        """
        if len(feeds) != len(schedule.feeds):
            raise ExecutionError(f"device {schedule.device}: expected {len(schedule.feeds)} feeds, got {len(feeds)}")
        self.schedule = schedule
        self.position = 0
        self._copies = copies or Copies(schedule)
        self._empty = empty
        self._buffers: dict[int, Array] = dict(zip(schedule.feeds, feeds, strict=True))
        self._mail: dict[int, Sequence[Array]] = {}

    @property
    def finished(self) -> bool:
        """Whether every step is done."""
        return self.position == len(self.schedule.steps)

    @property
    def awaited(self) -> Receive | None:
        """The receive step the execution stands at, if it stands at one."""
        step = None if self.finished else self.schedule.steps[self.position]
        return step if isinstance(step, Receive) else None

    def deliver(self, message: int, parts: Sequence[Array]) -> None:
        """Hand over a message that arrived; early ones wait here, a repeated one is ignored."""
        self._mail.setdefault(message, parts)

    def advance(self, kernel: Kernel, outbox: Outbox, *, limit: int | None = None) -> bool:
        """Do steps until one needs a message that is not there, the end, or `limit` steps; return whether the end is reached."""
        steps = self.schedule.steps
        stop = len(steps) if limit is None else min(len(steps), self.position + limit)
        while self.position < stop:
            step = steps[self.position]
            match step:
                case Receive():
                    if step.message not in self._mail:
                        return False
                    self._fill(step.buffers, self._mail.pop(step.message))
                case Run():
                    self._fill(step.outputs, kernel(step.segment, [self._buffers[b] for b in step.inputs]))
                case Join():
                    self._buffers[step.output] = self._copies.join(step, self._buffers, self._empty)
                case Send():
                    outbox(step.message, step.destination, self._copies.sent(step, self._buffers))
            for buffer in self._copies.freed[self.position]:
                self._buffers.pop(buffer, None)
            self.position += 1
        return self.finished

    def results(self) -> list[Array]:
        """Return the result buffers, in order; only once finished."""
        return [self._buffers[b] for b in self.schedule.results]

    def _fill(self, buffers: Sequence[int], arrays: Sequence[Array]) -> None:
        self._buffers.update(zip(buffers, arrays, strict=True))
